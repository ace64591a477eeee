"""A warm call through the daemon, and through a bare relay, against the same call made to the tool itself.

All on a kept connection.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bench_stage as stage

NAME = "compound-interest"
BODY = stage.request_of(stage.EXAMPLES / NAME)
CALLS = 100
CLIENTS = 16
FEWER = 25
Connect = Callable[[], http.client.HTTPConnection]


def calls(connect: Connect, path: str, count: int) -> float:
    """Return the seconds of one call, the mean over `count` on one connection."""
    with contextlib.closing(connect()) as connection:
        stage.ask(connection, "POST", path, BODY)
        begin = time.perf_counter()
        for _ in range(count):
            stage.ask(connection, "POST", path, BODY)
        return (time.perf_counter() - begin) / count


def crowd(connect: Connect, path: str) -> float:
    """Return the seconds per call when CLIENTS connections call at the same time."""
    begin = time.perf_counter()
    stage.together([lambda: calls(connect, path, FEWER)] * CLIENTS)
    return (time.perf_counter() - begin) / (CLIENTS * (FEWER + 1))


def measure(rounds: int = 20) -> list[stage.Row]:
    with stage.daemon([stage.EXAMPLES / NAME]) as held, tempfile.TemporaryDirectory() as place:
        port = int(held.fork_tool(NAME, BODY)["port"])  # from then on nothing else goes on in the daemon
        relay, ours, theirs = Path(place) / "relay", f"/api/tools/{NAME}/run", "/run"

        def direct() -> http.client.HTTPConnection:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=stage.DEADLINE)

        with stage.process(sys.executable, Path(__file__).with_name("relay.py"), relay, port):
            stage.until(relay.exists, "the relay")
            acts = {
                "daemon": lambda: calls(held.connect, ours, CALLS),
                "relay": lambda: calls(lambda: stage.UnixConnection(str(relay)), ours, CALLS),
                "direct": lambda: calls(direct, theirs, CALLS),
            }
            one = stage.interleaved(acts, rounds)
        acts = {"daemon": lambda: crowd(held.connect, ours), "direct": lambda: crowd(direct, theirs)}
        many = stage.interleaved(acts, rounds // 2)
    added = 1000 * (statistics.median(one["daemon"]) - statistics.median(one["direct"]))
    return [
        stage.compared("one client", one["daemon"], one["direct"]),
        stage.Row("added by the daemon", f"{added:.2f} ms"),
        stage.compared("one client, a bare aiohttp relay", one["relay"], one["direct"]),
        stage.compared(f"per call, {CLIENTS} clients", many["daemon"], many["direct"]),
    ]


if __name__ == "__main__":
    stage.print_table("warm call: through the daemon, direct, times as long", measure())
