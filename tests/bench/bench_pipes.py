"""Pipes with commands that do nothing: from the request to the process, and executions a second
against task-spooler.

task-spooler (`tsp`) does for a shell what is the least of this: a queue with slots, output in
files; it forgets all of it when it ends. Ours records each execution in the ledger before and
after, with prompt, window and events.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import bench_stage as stage

RUNS = 80
SLOTS = 4
ROUNDS = 5
LATENCY_ROUNDS = 40
CLOCK = ("date", "+%s.%N")
"""Says when it was there to say it."""


def write(held: stage.Daemon, name: str, *command: str) -> None:
    folder = held.home / "pipes" / name
    folder.mkdir(parents=True)
    front = f"agent: command\ncommand: {' '.join(command)}\nallow_empty: true\nschedule: manual"
    (folder / "pipe.md").write_text(f"---\n{front}\n---\nDo it.\n")


def run(held: stage.Daemon, name: str, count: int) -> None:
    """Run a pipe so many times, all of them queued at once; return when the last is over."""
    with contextlib.closing(held.connect()) as connection:
        for _ in range(count - 1):
            stage.ask(connection, "POST", f"/api/pipes/{name}/run", {"queue": True})
        check([stage.ask(connection, "POST", f"/api/pipes/{name}/run?wait=1", {"queue": True})])


def run_batch(held: stage.Daemon, name: str, count: int) -> None:
    check(
        held.ask("POST", f"/api/pipes/{name}/run?wait=1", {"context": [{}] * count})["executions"]
    )


def check(rows: list[Any]) -> None:
    if {row["status"] for row in rows} != {"completed"}:
        raise RuntimeError(str(rows))


# -- task-spooler ----------------------------------------------------------------------------------


def tsp(*words: str) -> str:
    return subprocess.run(
        ["tsp", *words], stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True
    ).stdout


def spool(slots: int, count: int = RUNS) -> None:
    """Queue `true` so many times; return when all are over."""
    tsp("-S", str(slots))
    jobs = [tsp("true").strip() for _ in range(count)]
    for job in jobs[-slots:]:
        tsp("-w", job)
    tsp("-C")


@contextmanager
def spooler() -> Iterator[None]:
    """Start task-spooler; where it is not there, it is installed, or said how."""
    if shutil.which("tsp") is None:
        print("tsp is not there: apt-get install task-spooler", file=sys.stderr)
        subprocess.run(
            ["apt-get", "install", "--yes", "task-spooler"], stdout=subprocess.DEVNULL, check=True
        )
    with tempfile.TemporaryDirectory(prefix="pxt", dir="/tmp") as folder:
        os.environ |= {"TS_SOCKET": f"{folder}/tsp", "TMPDIR": folder}
        try:
            yield
        finally:
            tsp("-K")


# -- figures ---------------------------------------------------------------------------------------


def latency(held: stage.Daemon) -> list[stage.Row]:
    connection = held.connect()

    def until_there() -> float:
        begin = time.time()
        done = stage.ask(connection, "POST", "/api/pipes/clock/run?wait=1")
        return float(done["stdout"]) - begin

    def plainly() -> float:
        begin = time.time()
        return float(subprocess.run(CLOCK, capture_output=True, check=True).stdout) - begin

    acts = {
        "ours": until_there,
        "plain": plainly,
        "asked": lambda: stage.timed(lambda: stage.ask(connection, "GET", "/api/pipes/queue")),
        "whole": lambda: stage.timed(
            lambda: stage.ask(connection, "POST", "/api/pipes/clock/run?wait=1")
        ),
        "process": lambda: stage.timed(
            lambda: subprocess.run(CLOCK, capture_output=True, check=True)
        ),
    }
    with contextlib.closing(connection):
        it = stage.interleaved(acts, LATENCY_ROUNDS)
    least = [one + other for one, other in zip(it["plain"], it["asked"], strict=True)]
    added = 1000 * (statistics.median(it["ours"]) - statistics.median(least))
    times = stage.ratio(it["ours"], least)
    return [
        stage.compared("POST run until the process is there", it["ours"], it["plain"]),
        stage.Row(
            "against a Popen and a request that asks little", "", stage.milliseconds(least), times
        ),
        stage.Row("added by queue, ledger and keeper", f"{added:.1f} ms"),
        stage.compared("the whole execution", it["whole"], it["process"]),
    ]


def throughput(held: stage.Daemon) -> list[stage.Row]:
    brain, names = held.pids()[1], [f"nothing{at}" for at in range(SLOTS)]
    spent: list[list[float]] = [[], [], []]

    def ours(at: int, act: Callable[[stage.Daemon, str, int], None], *pipes: str) -> float:
        before, count = stage.cpu_seconds(brain), RUNS // len(pipes)
        seconds = stage.timed(
            lambda: stage.together([partial(act, held, name, count) for name in pipes])
        )
        spent[at].append((stage.cpu_seconds(brain) - before) / RUNS)
        return seconds

    slots = f"of {SLOTS} pipes, {SLOTS} slots"
    acts = {
        "of one pipe": lambda: ours(0, run, names[0]),
        slots: lambda: ours(1, run, *names),
        f"{slots}, batched": lambda: ours(2, run_batch, *names),
        "one": lambda: stage.timed(lambda: spool(1)),
        "many": lambda: stage.timed(lambda: spool(SLOTS)),
    }
    rates = {
        name: RUNS / statistics.median(taken)
        for name, taken in stage.interleaved(acts, ROUNDS).items()
    }
    peers, rows = {"one": rates.pop("one"), "many": rates.pop("many")}, []
    for (what, rate), cpu in zip(rates.items(), spent, strict=True):
        theirs = peers["one" if what == "of one pipe" else "many"]
        rows.append(
            stage.Row(
                f"executions {what}",
                f"{rate:.0f}/s",
                f"tsp {theirs:.0f}/s",
                f"{rate / theirs:.2f}x",
            )
        )
        rows.append(stage.Row("CPU of the control plane for each", stage.milliseconds(cpu[1:])))
    return rows


if __name__ == "__main__":
    with stage.daemon(PX_PIPES__SLOTS_MANUAL=str(SLOTS)) as daemon, spooler():
        write(daemon, "clock", *CLOCK)
        for at in range(SLOTS):
            write(daemon, f"nothing{at}", "true")
        one, many = latency(daemon), throughput(daemon)
    stage.print_table(
        "a run of a pipe whose command is `date`, the same with subprocess, times as long", one
    )
    stage.print_table("executions of `true` a second, task-spooler's, times as many", many)
