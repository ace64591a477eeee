"""Pipes with commands that do nothing: from the request to the process, and executions a second against task-spooler.

task-spooler (`tsp`) does for a shell what is the least of this: a queue with slots, output in files; it forgets all of
it when it ends. Ours records each execution in the ledger before and after, with prompt, window and events.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


def run(held: stage.Daemon, *names: str, count: int) -> None:
    """Run each pipe so many times, all of them queued at once; return when the last of each is over."""

    def one(name: str) -> None:
        with contextlib.closing(held.connect()) as connection:
            for _ in range(count - 1):
                stage.ask(connection, "POST", f"/api/pipes/{name}/run", {"queue": True})
            last = stage.ask(connection, "POST", f"/api/pipes/{name}/run?wait=1", {"queue": True})
        check([last])

    stage.together([partial(one, name) for name in names])


def run_batch(held: stage.Daemon, *names: str, count: int) -> None:

    def one(name: str) -> None:
        check(held.ask("POST", f"/api/pipes/{name}/run?wait=1", {"context": [{}] * count})["executions"])

    stage.together([partial(one, name) for name in names])


def check(rows: list[Any]) -> None:
    if {row["status"] for row in rows} != {"completed"}:
        raise RuntimeError(str(rows))


# -- task-spooler ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spooler:
    env: dict[str, str]

    def tsp(self, *words: str) -> str:
        done = subprocess.run(["tsp", *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def run(self, slots: int, count: int) -> None:
        """Queue `true` so many times; return when all are over."""
        self.tsp("-S", str(slots))
        jobs = [self.tsp("true") for _ in range(count)]
        for job in jobs[-slots:]:
            self.tsp("-w", job)
        self.tsp("-C")


@contextmanager
def spooler() -> Iterator[Spooler]:
    """Start task-spooler; where it is not there, it is installed, or said how."""
    if shutil.which("tsp") is None:
        print("tsp is not there: apt-get install task-spooler", file=sys.stderr)
        subprocess.run(["apt-get", "install", "--yes", "task-spooler"], stdout=subprocess.DEVNULL, check=True)
    with tempfile.TemporaryDirectory(prefix="pxt", dir="/tmp") as folder:
        held = Spooler(os.environ | {"TS_SOCKET": f"{folder}/tsp", "TMPDIR": folder})
        try:
            yield held
        finally:
            held.tsp("-K")


# -- figures -----------------------------------------------------------------------------------------------------------


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
        "whole": lambda: stage.timed(lambda: stage.ask(connection, "POST", "/api/pipes/clock/run?wait=1")),
        "process": lambda: stage.timed(lambda: subprocess.run(CLOCK, capture_output=True, check=True)),
    }
    with contextlib.closing(connection):
        it = stage.interleaved(acts, LATENCY_ROUNDS)
    least = [one + other for one, other in zip(it["plain"], it["asked"], strict=True)]
    added = 1000 * (statistics.median(it["ours"]) - statistics.median(least))
    return [
        stage.compared("POST run until the process is there", it["ours"], it["plain"]),
        stage.Row(
            "against a Popen and a request that asks little",
            "",
            stage.milliseconds(least),
            stage.ratio(it["ours"], least),
        ),
        stage.Row("added by queue, ledger and keeper", f"{added:.1f} ms"),
        stage.compared("the whole execution", it["whole"], it["process"]),
    ]


def throughput(held: stage.Daemon, other: Spooler) -> list[stage.Row]:
    names = [f"nothing{at}" for at in range(SLOTS)]
    brain = held.pids()[1]
    spent: dict[str, list[float]] = {"one": [], "many": [], "batch": []}

    def ours(name: str, count: int, *pipes: str) -> float:
        before, act = stage.cpu_seconds(brain), run_batch if name == "batch" else run
        seconds = stage.timed(lambda: act(held, *pipes, count=count))
        spent[name].append((stage.cpu_seconds(brain) - before) / RUNS)
        return seconds

    acts = {
        "one": lambda: ours("one", RUNS, names[0]),
        "many": lambda: ours("many", RUNS // SLOTS, *names),
        "batch": lambda: ours("batch", RUNS // SLOTS, *names),
        "tsp one": lambda: stage.timed(lambda: other.run(1, RUNS)),
        "tsp many": lambda: stage.timed(lambda: other.run(SLOTS, RUNS)),
    }
    figures = stage.interleaved(acts, ROUNDS)
    rows = []
    slots = f"of {SLOTS} pipes, {SLOTS} slots"
    for name, peer, what in (
        ("one", "one", "of one pipe"),
        ("many", "many", slots),
        ("batch", "many", f"{slots}, batched"),
    ):
        rate, theirs = (RUNS / statistics.median(figures[side]) for side in (name, f"tsp {peer}"))
        rows.append(stage.Row(f"executions {what}", f"{rate:.0f}/s", f"tsp {theirs:.0f}/s", f"{rate / theirs:.2f}x"))
        rows.append(stage.Row("CPU of the control plane for each", stage.milliseconds(spent[name][1:])))
    return rows


def measure() -> tuple[list[stage.Row], list[stage.Row]]:
    with stage.daemon(PX_PIPES__SLOTS_MANUAL=str(SLOTS)) as held, spooler() as other:
        write(held, "clock", *CLOCK)
        for at in range(SLOTS):
            write(held, f"nothing{at}", "true")
        return latency(held), throughput(held, other)


if __name__ == "__main__":
    one, many = measure()
    stage.print_table("a run of a pipe whose command is `date`, the same with subprocess, times as long", one)
    stage.print_table("executions of `true` a second, task-spooler's, times as many", many)
