"""What it costs to hold 200 idle children, for keeper and control plane, and for Supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_peers import PEERS, install
from bench_stage import Daemon, Row, daemon, print_table, resident_mib, until, write_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

CHILDREN = 200
WATCH_SECONDS = 20.0
STARTERS = 8
SUPERVISORD = """[supervisord]
nodaemon=true
[program:idle]
command={python} {program} --port %(process_num)d
process_name=%(process_num)d
numprocs={children}
numprocs_start=20000
"""
SERVER = '''"""The smallest tool there is: it answers everything with {"ok": true}."""
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[2])))
listener.listen()
while True:
    connection, _ = listener.accept()
    with connection:
        if connection.recv(65536):
            connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n'
                               b'Content-Length: 12\\r\\nConnection: close\\r\\n\\r\\n{"ok": true}')
'''


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used: seconds of processor, voluntary switches (one for each time that it went to sleep)."""

    seconds: float
    switches: int


def use_of(pid: int) -> Use:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        line = next(line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches"))
        switches += int(line.split()[1])
    return Use(ticks / os.sysconf("SC_CLK_TCK"), switches)


def start_all(held: Daemon, names: list[str]) -> float:
    """Start all tools, some at a time; return the seconds."""
    left = list(names)

    def starter() -> None:
        while left:
            held.ask("POST", f"/api/tools/{left.pop()}/start")

    threads = [threading.Thread(target=starter) for _ in range(STARTERS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def watch(pid: int) -> str:
    """Return what the process used while nothing happened."""
    before = use_of(pid)
    time.sleep(WATCH_SECONDS)
    after = use_of(pid)
    share = 100 * (after.seconds - before.seconds) / WATCH_SECONDS
    wakes = (after.switches - before.switches) / WATCH_SECONDS
    return f"{share:.2f} % CPU, {wakes:.1f} wake-ups/s"


@contextmanager
def supervised(place: Path, program: Path) -> Iterator[int]:
    """Run Supervisor with as many of the same program; give its pid."""
    install()
    (place / "supervisord.conf").write_text(
        SUPERVISORD.format(children=CHILDREN, python=sys.executable, program=program)
    )
    with (place / "supervisord.log").open("wb") as log:
        words = [PEERS / "bin" / "supervisord", "-c", place / "supervisord.conf"]
        process = subprocess.Popen(words, cwd=place, stdout=log, stderr=log)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: len(children.read_text().split()) == CHILDREN, "Supervisor has started them all")
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def measure() -> list[Row]:
    """Return rows for both processes, before and with the children."""
    with tempfile.TemporaryDirectory() as folder:
        tools = [write_tool(Path(folder) / f"idle-{number:03}", SERVER) for number in range(CHILDREN)]
        settings = {"PX_TOOLS__WARM_KEEP_MAX": "1000", "PX_TOOLS__WARM_KEEP_SECONDS": "100000"}
        with daemon(tools, **settings) as held, supervised(Path(folder), tools[0] / "main.py") as supervisor:
            keeper, control = held.pids()
            empty = (resident_mib(keeper), resident_mib(control))
            taken = start_all(held, [tool.name for tool in tools])
            time.sleep(2)  # let what follows the starts (schema checks) end
            rows = [
                Row(
                    f"{CHILDREN} starts, {STARTERS} at a time",
                    f"{taken:.1f} s",
                    f"{1000 * taken / CHILDREN:.1f} ms each",
                )
            ]
            for name, pid, before in (("keeper", keeper, empty[0]), ("control plane", control, empty[1])):
                rows.append(
                    Row(f"{name}, resident", f"{resident_mib(pid):.1f} MiB", f"{before:.1f} MiB without children")
                )
                rows.append(Row(f"{name}, idle", watch(pid)))
            ours, theirs = resident_mib(keeper) + resident_mib(control), resident_mib(supervisor)
            figures = f"{ours:.1f} MiB", f"Supervisor {theirs:.1f} MiB", f"{ours / theirs:.2f}x"
            rows += [Row("both, resident", *figures), Row("Supervisor, idle", watch(supervisor))]
    return rows


if __name__ == "__main__":
    print_table(f"{CHILDREN} idle children", measure())
