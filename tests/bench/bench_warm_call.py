"""A warm call through the daemon, and through a bare relay, against the same call made to the tool itself.

All on a kept connection.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_stage import (
    DEADLINE,
    EXAMPLES,
    Row,
    UnixConnection,
    ask,
    compared,
    daemon,
    interleaved,
    print_table,
    together,
    until,
)

NAME = "compound-interest"
BODY = json.loads((EXAMPLES / NAME / "test-request.json").read_text())
CALLS = 100
CLIENTS = 16
FEWER = 25


def calls(connect: Callable[[], http.client.HTTPConnection], path: str, count: int) -> float:
    """Return the seconds of one call, the mean over `count` on one connection."""
    with contextlib.closing(connect()) as connection:
        ask(connection, "POST", path, BODY)
        begin = time.perf_counter()
        for _ in range(count):
            ask(connection, "POST", path, BODY)
        return (time.perf_counter() - begin) / count


def crowd(connect: Callable[[], http.client.HTTPConnection], path: str) -> float:
    """Return the seconds per call when CLIENTS connections call at the same time."""
    begin = time.perf_counter()
    together([lambda: calls(connect, path, FEWER)] * CLIENTS)
    return (time.perf_counter() - begin) / (CLIENTS * (FEWER + 1))


@contextlib.contextmanager
def relayed(port: int) -> Iterator[Callable[[], http.client.HTTPConnection]]:
    """Run the bare relay; give what connects to it."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "relay"
        process = subprocess.Popen([sys.executable, Path(__file__).with_name("relay.py"), path, str(port)])
        try:
            until(path.exists, "the relay")
            yield lambda: UnixConnection(str(path))
        finally:
            process.kill()
            process.wait()


def measure(rounds: int = 20) -> list[Row]:
    """Return the rows for one client, and for many."""
    with daemon([EXAMPLES / NAME]) as held:
        held.ask("POST", f"/api/tools/{NAME}/run", BODY)
        port = int(held.ask("GET", "/api/launcher/state")[NAME]["port"])

        def direct() -> http.client.HTTPConnection:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)

        ours, theirs = f"/api/tools/{NAME}/run", "/run"
        with relayed(port) as relay:
            one = interleaved(
                {
                    "daemon": lambda: calls(held.connect, ours, CALLS),
                    "relay": lambda: calls(relay, ours, CALLS),
                    "direct": lambda: calls(direct, theirs, CALLS),
                },
                rounds,
            )
        many = interleaved(
            {"daemon": lambda: crowd(held.connect, ours), "direct": lambda: crowd(direct, theirs)}, rounds // 2
        )
    added = 1000 * (statistics.median(one["daemon"]) - statistics.median(one["direct"]))
    return [
        compared("one client", one["daemon"], one["direct"]),
        Row("added by the daemon", f"{added:.2f} ms"),
        compared("one client, a bare aiohttp relay", one["relay"], one["direct"]),
        compared(f"per call, {CLIENTS} clients", many["daemon"], many["direct"]),
    ]


if __name__ == "__main__":
    print_table("warm call: through the daemon, direct, times as long", measure())
