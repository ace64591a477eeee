"""From nothing to the first answer: through the daemon, against 'start it and ask /healthz every 100 ms'."""

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


def through(held: Daemon, name: str) -> Callable[[], float]:
    """Return what measures the daemon's way: the tool is stopped, then asked."""
    body = json.loads((EXAMPLES / name / "test-request.json").read_text())

    def once() -> float:
        held.ask("POST", f"/api/tools/{name}/stop")
        return timed(lambda: held.ask("POST", f"/api/tools/{name}/run", body))

    return once


def measure(rounds: int = 15) -> list[Row]:
    """Return a row for each example tool."""
    names = ["compound-interest", "lorenz-ode-solver"] + (["text-stats"] if shutil.which("node") else [])
    rows = []
    with daemon([EXAMPLES / name for name in names]) as held:
        for name in names:
            figures = interleaved({"daemon": through(held, name), "polling": by_polling(name)}, rounds)
            ours, theirs = figures["daemon"], figures["polling"]
            rows.append(Row(name, milliseconds(ours), milliseconds(theirs), ratio(theirs, ours)))
    return rows


if __name__ == "__main__":
    print_table("cold start to first answer: daemon, polling every 100 ms, times faster", measure())
