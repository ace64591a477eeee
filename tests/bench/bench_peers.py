"""Other supervisors doing the same: asked how things are, and a program that dies until it answers again.

What asking costs is compared as well with the least that a program with click, and an interpreter, can be.

Supervisor and Circus are installed into `.bench`, an environment of the benchmarks' own.
"""

from __future__ import annotations

import compileall
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_cold_start import APP
from bench_stage import (
    BIN,
    ROOT,
    Daemon,
    Row,
    compared,
    daemon,
    free_port,
    interleaved,
    print_table,
    timed,
    until,
    write_tool,
)

PEERS = ROOT / ".bench"
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


def install() -> None:
    """Make the environment of the peers, if it is not there."""
    if not (PEERS / "bin" / "supervisord").exists() or not (PEERS / "bin" / "circusd").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([PEERS / "bin" / "pip", "install", "--quiet", "supervisor", "circus"], check=True)


def answers(port: int) -> bool:
    """Say whether the program answers."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def pid_of(port: int) -> int:
    """Return the pid of the program, which it tells."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("POST", "/run", "{}", {"Content-Type": "application/json"})
        return int(connection.getresponse().read())


@contextmanager
def peer(place: Path, program: str, config: str) -> Iterator[int]:
    """Run a supervisor that holds the program; give its port."""
    port = free_port()
    (place / f"{program}.conf").write_text(config.format(place=place, python=sys.executable, port=port))
    words = [PEERS / "bin" / program, *(["-c"] if program == "supervisord" else []), place / f"{program}.conf"]
    with (place / f"{program}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=place, stdout=log, stderr=log)
    try:
        until(lambda: answers(port), f"the program of {program} answers")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def statuses(held: Daemon, place: Path, rounds: int) -> list[Row]:
    """Compare the commands that tell how things are, as whole processes."""
    # As pip leaves an installed package: under PYTHONDONTWRITEBYTECODE each call would compile what was edited.
    compileall.compile_dir(ROOT / "cli", quiet=1)
    env = os.environ | {"PX_HOME": str(held.home)}
    commands = {
        "pxctl": [BIN / "pxctl", "status"],
        "supervisorctl": [PEERS / "bin" / "supervisorctl", "-c", place / "supervisord.conf", "status"],
        "circusctl": [PEERS / "bin" / "circusctl", "--endpoint", f"ipc://{place}/endpoint", "status"],
        "import click (target: 1.4x)": [sys.executable, "-c", "import click"],
        "python -c ''": [sys.executable, "-c", ""],
    }

    def whole(command: list[object]) -> Callable[[], float]:
        words = [str(word) for word in command]
        return lambda: timed(lambda: subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True))

    found = interleaved({name: whole(command) for name, command in commands.items()}, rounds)
    ours = found.pop("pxctl")
    return [compared(f"status, {name}", ours, theirs) for name, theirs in found.items()]


def deaths(held: Daemon, port: int, rounds: int) -> list[Row]:
    """Compare the time from the death of a program until it answers again."""

    def restarted() -> float:
        time.sleep(1.0)  # who dies at once is held back
        pid = pid_of(port)
        os.kill(pid, signal.SIGKILL)
        return timed(lambda: until(lambda: answers(port), "the program answers again"))

    def ours() -> float:
        while True:
            pid = int(held.ask("POST", "/api/tools/app/run", {}))
            state = held.ask("GET", "/api/launcher/state")["app"]
            if state["start_method"] == "zygote":
                break
            held.ask("POST", "/api/tools/app/stop")  # what it imports is known after its first start
            time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        return timed(lambda: until(lambda: is_back(held), "the tool answers again"))

    found = interleaved({"ours": ours, "theirs": restarted}, rounds)
    return [compared("kill -9 of a FastAPI program to its next answer", found["ours"], found["theirs"])]


def is_back(held: Daemon) -> bool:
    """Say whether a run is answered; one that meets the dying process is not."""
    try:
        held.ask("POST", "/api/tools/app/run", {})
    except RuntimeError:
        return False
    return True


def measure(rounds: int = 15) -> list[Row]:
    """Return the rows against both."""
    install()
    with tempfile.TemporaryDirectory(prefix="pxb", dir="/tmp") as folder:
        place = Path(folder)
        app = APP.replace("return asked", "return __import__('os').getpid()")
        tool = write_tool(place / "app", app)
        with (
            daemon([tool]) as held,
            peer(place, "supervisord", SUPERVISORD) as port,
            peer(place, "circusd", CIRCUS),
        ):
            return [*statuses(held, place, rounds), *deaths(held, port, rounds)]


if __name__ == "__main__":
    print_table("other supervisors: ours, theirs, times as long", measure())
