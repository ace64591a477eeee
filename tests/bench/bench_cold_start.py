"""From nothing to the first answer: forked and spawned by the daemon, against 'start it, ask /healthz each 100 ms'."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench_stage import (
    DEADLINE,
    EXAMPLES,
    Daemon,
    Row,
    ask,
    daemon,
    interleaved,
    milliseconds,
    print_table,
    ratio,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.1


def by_polling(name: str) -> Callable[[], float]:
    """Return what measures the usual way: pick a port, start the program, poll, send the request."""
    folder = EXAMPLES / name
    body = json.loads((folder / "test-request.json").read_text())
    command = json.loads((folder / "tool.json").read_text()).get(
        "command", [sys.executable, "main.py", "--port", "{port}"]
    )

    def once() -> float:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        begin = time.perf_counter()
        process = subprocess.Popen([part.replace("{port}", str(port)) for part in command], cwd=folder)
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
                while True:
                    try:
                        ask(connection, "GET", "/healthz")
                        break
                    except OSError:
                        connection.close()
                        time.sleep(POLL_SECONDS)
                ask(connection, "POST", "/run", body)
            return time.perf_counter() - begin
        finally:
            process.kill()
            process.wait()

    return once


def through(held: Daemon, name: str, method: str) -> Callable[[], float]:
    """Return what measures the daemon's way: the tool is stopped, then asked; its start must be by that method."""
    body = json.loads((EXAMPLES / name / "test-request.json").read_text())

    def once() -> float:
        while True:  # what the tool imports is known after its first start
            held.ask("POST", f"/api/tools/{name}/stop")
            seconds = timed(lambda: held.ask("POST", f"/api/tools/{name}/run", body))
            if held.ask("GET", "/api/launcher/state")[name]["start_method"] == method:
                return seconds
            time.sleep(1.0)

    return once


def measure(rounds: int = 15) -> list[Row]:
    """Return a row for each example tool."""
    names = ["compound-interest", "lorenz-ode-solver"] + (["text-stats"] if shutil.which("node") else [])
    rows = []
    tools = [EXAMPLES / name for name in names]
    with daemon(tools) as held, daemon(tools, PX_DAEMON__ZYGOTES="0") as plain:
        for name in names:
            acts = {"spawn": through(plain, name, "spawn"), "polling": by_polling(name)}
            if name != "text-stats":  # it is no Python
                acts["zygote"] = through(held, name, "zygote")
                acts["zygote"]()
            found = interleaved(acts, rounds)
            theirs = found.pop("polling")
            for method, ours in found.items():
                rows.append(Row(f"{name}, {method}", milliseconds(ours), milliseconds(theirs), ratio(ours, theirs)))
    return rows


if __name__ == "__main__":
    print_table("cold start to first answer: daemon, polling every 100 ms, times as long", measure())
