"""Other supervisors doing the same: asked how things are, a program that dies, and processes that
sleep.

What asking costs is compared as well with the least that a program with click, and an interpreter,
can be. A death is timed until the program answers again, and until its event is there: ours on a
followed stream, Supervisor's through an event listener. Our sleepers are executions, each in the
ledger.

Supervisor and Circus are installed into `.bench`, an environment of the benchmarks' own.
"""

from __future__ import annotations

import compileall
import contextlib
import http.client
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import bench_stage as stage
from bench_pipes import write
from bench_tools import APP

PEERS = stage.ROOT / ".bench"
SUPERVISORD = """[supervisord]
nodaemon=true
[unix_http_server]
file={place}/socket
[supervisorctl]
serverurl=unix://{place}/socket
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[program:app]
command={python} {place}/app/main.py {port}
startsecs=0
"""
CIRCUS = """[circus]
endpoint=ipc://{place}/endpoint
pubsub_endpoint=ipc://{place}/pubsub
[watcher:app]
cmd={python} {place}/app/main.py {port}
"""
SLEEPERS = (200, 1000)
SLEEP = ("sleep", "100000")
DEATHS = 60
WATCH_SECONDS = 20.0
SLEEPING = """[supervisord]
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


def install() -> None:
    if not (PEERS / "bin" / "supervisord").exists() or not (PEERS / "bin" / "circusd").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run(
            [PEERS / "bin" / "pip", "install", "--quiet", "supervisor", "circus"], check=True
        )


@contextmanager
def peer(place: Path, program: str, config: str, **values: object) -> Iterator[int]:
    """Run another supervisor with a configuration; give its pid."""
    (place / f"{program}.conf").write_text(
        config.format(place=place, python=sys.executable, **values)
    )
    words = [
        PEERS / "bin" / program,
        *(["-c"] if program == "supervisord" else []),
        place / f"{program}.conf",
    ]
    with (
        (place / f"{program}.log").open("wb") as log,
        stage.process(*words, cwd=place, stdout=log, stderr=log) as it,
    ):
        yield it.pid


def answers(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException), stage.local(port) as connection:
        return bool(stage.ask(connection, "GET", "/healthz"))
    return False


def statuses(held: stage.Daemon, place: Path, rounds: int) -> list[stage.Row]:
    # As pip leaves an installed package: under PYTHONDONTWRITEBYTECODE each call would compile what
    # was edited.
    compileall.compile_dir(stage.ROOT / "cli", quiet=1)
    env = os.environ | {"PX_HOME": str(held.home)}
    commands = {
        "pxctl": [stage.BIN / "pxctl", "status"],
        "supervisorctl": [
            PEERS / "bin" / "supervisorctl",
            "-c",
            place / "supervisord.conf",
            "status",
        ],
        "circusctl": [
            PEERS / "bin" / "circusctl",
            "--endpoint",
            f"ipc://{place}/endpoint",
            "status",
        ],
        "import click (target: 1.3x)": [sys.executable, "-c", "import click"],
        "python -c ''": [sys.executable, "-c", ""],
    }

    def whole(command: list[object]) -> Callable[[], float]:
        words = [str(word) for word in command]
        return lambda: stage.timed(
            lambda: subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True)
        )

    found = stage.interleaved({name: whole(command) for name, command in commands.items()}, rounds)
    ours = found.pop("pxctl")
    return [stage.compared(f"status, {name}", ours, theirs) for name, theirs in found.items()]


def deaths(held: stage.Daemon, port: int, rounds: int) -> list[stage.Row]:
    def to_answer(pid: int, probe: Callable[[], bool]) -> float:
        os.kill(pid, signal.SIGKILL)
        begin = time.perf_counter()
        while not probe():
            time.sleep(0.0005)  # too short to be seen in the figures
        return time.perf_counter() - begin

    def is_back() -> bool:
        # a run that meets the dying process is not answered
        with contextlib.suppress(RuntimeError):
            return bool(held.run_tool("app"))
        return False

    def theirs() -> float:
        time.sleep(1.0)  # who dies at once is held back
        with stage.local(port) as connection:
            pid = stage.ask(connection, "POST", "/run", {})  # it tells
        return to_answer(pid, lambda: answers(port))

    def ours() -> float:
        return to_answer(held.fork_tool("app")["pid"], is_back)

    return [stage.against("kill -9 of a FastAPI program to its next answer", ours, theirs, rounds)]


def measure(rounds: int = 15) -> list[stage.Row]:
    with tempfile.TemporaryDirectory(prefix="pxb", dir="/tmp") as folder:
        place = Path(folder)
        app = APP.replace("return asked", "return __import__('os').getpid()")
        tool = stage.write_tool(place / "app", app)
        ports = [stage.free_port(), stage.free_port()]
        others = (
            peer(place, "supervisord", SUPERVISORD, port=ports[0]),
            peer(place, "circusd", CIRCUS, port=ports[1]),
        )
        with stage.daemon([tool]) as held, others[0], others[1]:
            stage.until(lambda: all(map(answers, ports)), "the programs of the others answer")
            return [*statuses(held, place, rounds), *deaths(held, ports[0], rounds)]


def watch(pid: int) -> str:
    def told() -> tuple[float, int]:  # and how often its threads went to sleep
        texts = "".join(status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status"))
        return stage.cpu_seconds(pid), sum(
            map(int, re.findall(r"\nvoluntary_ctxt_switches:\s+(\d+)", texts))
        )

    before = told()
    time.sleep(WATCH_SECONDS)
    seconds, wakes = (now - then for now, then in zip(told(), before, strict=True))
    return f"{100 * seconds / WATCH_SECONDS:.2f} % CPU, {wakes / WATCH_SECONDS:.1f} wake-ups/s"


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def victims(pid: int) -> list[int]:
    found = [
        each
        for each in children_of(pid)
        if Path(f"/proc/{each}/comm").read_text().strip() == SLEEP[0]
    ]
    return random.sample(found, len(found))


def until_told(pid: int, word: bytes, lines: IO[bytes]) -> float:
    """Kill a process; return the seconds until a line with the word is there."""
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while word not in lines.readline():
        pass
    return time.perf_counter() - begin


def sleepers(count: int) -> list[stage.Row]:
    settings = {"PX_PIPES__SLOTS_MANUAL": str(count), "PX_PIPES__RETRIES": "0"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_ones:
        held = open_ones.enter_context(stage.daemon(**settings))
        for number in range(count):
            write(held, f"sleeper-{number}", *SLEEP)
        keeper, control = held.pids()
        empty = stage.resident_mib(keeper, control)
        stage.until(
            lambda: len(held.ask("GET", "/api/pipes")["pipes"]) == count, "all pipes are known"
        )
        with contextlib.closing(held.connect()) as connection:
            for number in range(count):
                stage.ask(connection, "POST", f"/api/pipes/sleeper-{number}/run")
        stage.until(lambda: len(children_of(keeper)) == count + 1, "all executions run")
        events = held.connect()
        events.request("GET", "/api/events?follow=1", headers={"Accept": "application/x-ndjson"})
        ours = events.getresponse()
        (Path(folder) / "listener.py").write_text(LISTENER)
        os.mkfifo(Path(folder) / "told")
        theirs = open_ones.enter_context(open(Path(folder) / "told", "r+b", buffering=0))
        words = {"children": count, "command": " ".join(SLEEP)}
        supervisor = open_ones.enter_context(peer(Path(folder), "supervisord", SLEEPING, **words))
        stage.until(
            lambda: len(children_of(supervisor)) == count + 1, "Supervisor has started them all"
        )
        time.sleep(60.0)  # what a daemon does once in its first minute is over
        held_by = {"keeper": keeper, "control plane": control, "Supervisor": supervisor}
        rows = [stage.Row(f"{name} with {count}", watch(pid)) for name, pid in held_by.items()]
        mine, other = stage.resident_mib(keeper, control), stage.resident_mib(supervisor)
        figures = f"{mine:.1f} MiB (empty {empty:.1f})", f"{other:.1f} MiB", f"{mine / other:.2f}x"
        rows.append(stage.Row(f"resident with {count}", *figures))
        mine_left, theirs_left = victims(keeper), iter(victims(supervisor))

        def of_ours() -> float:
            return until_told(mine_left.pop(), b"execution_failed", ours)

        def of_theirs() -> float:
            pid = next(theirs_left)
            return until_told(pid, b"%d" % pid, theirs)

        return [
            *rows,
            stage.against(f"kill -9 to its event with {count}", of_ours, of_theirs, DEATHS),
        ]


if __name__ == "__main__":
    install()
    stage.print_table("other supervisors: ours, theirs, times as long", measure())
    rows = [row for count in SLEEPERS for row in sleepers(count)]
    stage.print_table("processes that sleep: ours, Supervisor's, times as much", rows)
