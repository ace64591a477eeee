"""What it costs to hold 200 and 1,000 processes that sleep, for keeper and control plane, and for Supervisor.

Ours are executions, each in the ledger; and how long it takes from the death of one of them until its event is there:
ours on a followed stream, Supervisor's through an event listener.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_peers import PEERS, install
from bench_pipes import write
from bench_stage import Row, ask, compared, daemon, interleaved, print_table, resident_mib, until

SLEEPERS = (200, 1000)
SLEEP = ("sleep", "100000")
DEATHS = 60
WATCH_SECONDS = 20.0
SUPERVISORD = """[supervisord]
nodaemon=true
minfds=10000
childlogdir={place}
[program:idle]
command={command}
process_name=%(process_num)d
numprocs={children}
numprocs_start=20000
autorestart=false
[eventlistener:told]
command={python} {place}/listener.py {place}/told
events=PROCESS_STATE_EXITED
"""
LISTENER = '''"""Tells in a FIFO which process has ended; by Supervisor's event listener protocol."""
import sys
with open(sys.argv[1], "w", buffering=1) as told:
    while True:
        sys.stdout.write("READY\\n")
        sys.stdout.flush()
        header = dict(word.split(":") for word in sys.stdin.readline().split())
        event = dict(word.split(":") for word in sys.stdin.read(int(header["len"])).split())
        told.write(event["pid"] + "\\n")
        sys.stdout.write("RESULT 2\\nOK")
        sys.stdout.flush()
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


def watch(pid: int) -> str:
    """Return what the process used while nothing happened."""
    before = use_of(pid)
    time.sleep(WATCH_SECONDS)
    after = use_of(pid)
    share = 100 * (after.seconds - before.seconds) / WATCH_SECONDS
    wakes = (after.switches - before.switches) / WATCH_SECONDS
    return f"{share:.2f} % CPU, {wakes:.1f} wake-ups/s"


@contextmanager
def supervised(place: Path, children: int) -> Iterator[tuple[int, Path]]:
    """Run Supervisor with so many sleepers; give its pid, and the FIFO of its listener."""
    install()
    (place / "listener.py").write_text(LISTENER)
    os.mkfifo(place / "told")
    held_open = os.open(place / "told", os.O_RDWR)
    (place / "supervisord.conf").write_text(
        SUPERVISORD.format(children=children, python=sys.executable, command=" ".join(SLEEP), place=place)
    )
    with (place / "supervisord.log").open("wb") as log:
        words = [PEERS / "bin" / "supervisord", "-c", place / "supervisord.conf"]
        process = subprocess.Popen(words, cwd=place, stdout=log, stderr=log)
    try:
        until(lambda: len(children_of(process.pid)) == children + 1, "Supervisor has started them all")
        yield process.pid, place / "told"
    finally:
        process.terminate()
        process.wait(60)
        os.close(held_open)


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def heard(lines: Iterable[bytes]) -> queue.Queue[tuple[bytes, float]]:
    """Read lines in a thread; return where they come, each with its moment."""
    came: queue.Queue[tuple[bytes, float]] = queue.Queue()
    threading.Thread(target=lambda: [came.put((line, time.perf_counter())) for line in lines], daemon=True).start()
    return came


def until_told(pid: int, word: bytes, came: queue.Queue[tuple[bytes, float]]) -> float:
    """Kill a process; return the seconds until a line with the word is there."""
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while True:
        line, moment = came.get(timeout=60)
        if word in line:
            return moment - begin


def sleepers(count: int) -> list[Row]:
    """Return the rows of so many processes that do nothing, and of their deaths."""
    settings = {"PX_PIPES__SLOTS_MANUAL": str(count), "PX_PIPES__RETRIES": "0"}
    with tempfile.TemporaryDirectory() as folder, daemon([], **settings) as held:
        for number in range(count):
            write(held, f"sleeper-{number}", *SLEEP)
        keeper, control = held.pids()
        empty = resident_mib(keeper, control)
        with contextlib.closing(held.connect()) as connection:
            until(lambda: len(ask(connection, "GET", "/api/pipes")["pipes"]) == count, "all pipes are known")
            for number in range(count):
                ask(connection, "POST", f"/api/pipes/sleeper-{number}/run")
        until(lambda: len(children_of(keeper)) == count + 1, "all executions run")
        events = held.connect()
        events.request("GET", "/api/events?follow=1", headers={"Accept": "application/x-ndjson"})
        ours = heard(events.getresponse())
        with supervised(Path(folder), count) as (supervisor, fifo):
            theirs = heard(fifo.open("rb"))
            rows = [Row(f"keeper with {count}", watch(keeper)), Row(f"control plane with {count}", watch(control))]
            rows.append(Row(f"Supervisor with {count}", watch(supervisor)))
            mine, other = resident_mib(keeper, control), resident_mib(supervisor)
            figures = f"{mine:.1f} MiB (empty {empty:.1f})", f"{other:.1f} MiB", f"{mine / other:.2f}x"
            rows.append(Row(f"resident with {count}", *figures))
            left = {side: victims(pid) for side, pid in (("ours", keeper), ("theirs", supervisor))}

            def of_ours() -> float:
                return until_told(left["ours"].pop(), b"execution_failed", ours)

            def of_theirs() -> float:
                pid = left["theirs"].pop()
                return until_told(pid, str(pid).encode(), theirs)

            found = interleaved({"ours": of_ours, "theirs": of_theirs}, DEATHS)
    return [*rows, compared(f"kill -9 to its event with {count}", found["ours"], found["theirs"])]


def victims(pid: int) -> list[int]:
    """Return the children that sleep, in any order."""
    found = [each for each in children_of(pid) if Path(f"/proc/{each}/comm").read_text().strip() == SLEEP[0]]
    return random.sample(found, len(found))


if __name__ == "__main__":
    print_table(
        "processes that sleep: ours, Supervisor's, times as much", [row for n in SLEEPERS for row in sleepers(n)]
    )
