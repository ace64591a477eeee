"""Ctrl-C is never lost: at whatever moment it comes, whoever notices it, the command ends, and without a traceback."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

from beside import beside
from cli.fake_daemon import FakeDaemon, ndjson, until_client_leaves
from cli.px import DEADLINE, REPOSITORY, until
from rounds import rounds

if TYPE_CHECKING:
    import socket

    from cli.fake_daemon import Request
    from cli.px import Px

UNNOTICED = """
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
from pxctl.main import main
sys.exit(main())
"""
"""The signal comes to another thread than the one that waits: no system call of that one ends by it. The same happens
in any process when the signal comes just before the call, which is what cannot be arranged."""
MOMENTS = REPOSITORY / "tests" / "cli" / "ctrl_c_moments.py"
WAITING = {
    "tools sync a": 1,
    "logs a -f": 0,
    "events -f": 0,
    "run a": 1,
    "exec 1": 1,
    "exec 1 --json": 1,
    "wait a": 1,
    "wait 12": 1,
    "pipe run a": 1,
    "pipe tail -f 12": 1,
    "kernel start": 1,
    "start tool:a tool:b": 1,
    "stop tool:a": 1,
    "status --watch": 0,
    "daemon stop": 1,
}


class Everywhere(dict[str, Any]):
    """No answer on any route."""

    def get(self, key: str, default: Any = None) -> Any:
        del key, default
        return [silent]


def silent(_: Request, connection: socket.socket) -> None:
    until_client_leaves(connection)


@pytest.mark.parametrize("arguments", WAITING)
def test_what_waits_for_an_answer_ends_though_no_system_call_is_interrupted(
    px: Px, daemon: FakeDaemon, arguments: str
) -> None:
    daemon.routes = Everywhere()
    process = px.popen(*arguments.split(), argv=[sys.executable, "-c", UNNOTICED])
    with daemon.changed:
        assert daemon.changed.wait_for(lambda: daemon.seen, DEADLINE)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == WAITING[arguments], err
    assert b"Traceback" not in err


@pytest.mark.parametrize("arguments", ["exec -", "run a --input -"])
def test_what_reads_its_input_ends_the_same_way(px: Px, arguments: str) -> None:
    process = px.popen(*arguments.split(), argv=[sys.executable, "-c", UNNOTICED], stdin=subprocess.PIPE)
    stdin = process.stdin
    assert stdin is not None
    os.write(stdin.fileno(), b"{")
    until(lambda: fcntl.ioctl(stdin, termios.FIONREAD, bytes(4)) == bytes(4), "the first of it is read")
    process.send_signal(signal.SIGINT)
    process.wait(DEADLINE)  # and only then is its input at an end
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, err
    assert b"Traceback" not in err


LOST = """
import os, signal, sys
from pxctl import interrupts

class Destroyed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

interrupts.begin()
Destroyed()
reading, writing = os.pipe()
try:
    interrupts.wait_readable(reading)
except KeyboardInterrupt:
    os.write(1, b"honoured ")
interrupts.wait_writable(writing)
os.write(1, b"cleared away ")
interrupts.end()
"""


def test_one_that_a_destructor_swallowed_is_honoured_at_the_next_wait(px: Px) -> None:
    ended = px(argv=[sys.executable, "-c", LOST])
    assert (ended.code, ended.text, ended.err) == (0, "honoured cleared away ", "")


STUCK = """
import os, signal, sys
from pxctl import interrupts

interrupts.begin()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    os.write(1, b"caught")
os.read(os.pipe()[0], 1)
"""


def test_the_second_one_ends_what_hangs_in_its_own_end(px: Px) -> None:
    process = beside(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=px.environment()
    )
    assert process.stdout is not None
    assert process.stdout.read(6) == b"caught"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=DEADLINE) == (b"", b"")
    assert process.returncode == -signal.SIGINT


def test_while_pxctl_is_still_being_imported_there_is_no_traceback(px: Px) -> None:
    (px.folder / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = px("status", PYTHONPATH=f"{px.folder}:{REPOSITORY / 'cli'}")
    assert (ended.code, ended.out, ended.err) == (1, b"", "pxctl: interrupted from the keyboard\n")


def moments(px: Px, wanted: str, answer: bytes, arguments: list[str]) -> list[list[int]]:
    """Play a command with Ctrl-C at these moments; return each moment with the exit code."""
    env = px.environment(PYTHONPATH=f"{REPOSITORY / 'cli'}", ANSWER=answer.hex())
    ended = subprocess.run(
        [sys.executable, MOMENTS, wanted, *arguments], env=env, capture_output=True, timeout=DEADLINE, check=False
    )
    os.unlink(px.socket)
    assert b"Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == 0, ended.stderr
    return [[int(word) for word in line.split()] for line in ended.stdout.splitlines()]


STREAMS: dict[str, tuple[int, dict[str, Any]]] = {
    "tools sync a": (1, {"progress": "x"}),
    "logs a -f": (0, {"text": "x", "next_position": 1}),
    "exec 1": (1, {"event": "starting", "kernel": "default-1"}),
    "kernel start": (1, {"event": "starting"}),
}


@pytest.mark.parametrize("seed", rounds(few=1, of=20))
@pytest.mark.parametrize("command", STREAMS)
def test_at_every_moment(px: Px, command: str, seed: int) -> None:
    """Each call and return of the main thread is a moment, in destructors and callbacks as well."""
    code, event = STREAMS[command]
    answer, arguments = ndjson(event, whole=False), command.split()
    (_, (last, ended)) = moments(px, "measure", answer, arguments)
    assert ended == code
    dice = random.Random(seed)
    # Most of it is the reading of the command line; what is at stake is at the end.
    chosen = sorted({*dice.sample(range(2, last), 30), *dice.sample(range(last - last // 10, last), 50)})
    found = moments(px, ",".join(map(str, chosen)), answer, arguments)[1:]
    # One of the last may not come: the command blocks a few calls earlier where its input comes in other pieces.
    assert all(moment <= wanted for (moment, _), wanted in zip(found, chosen, strict=True)), found
    assert sum(moment == wanted for (moment, _), wanted in zip(found, chosen, strict=True)) >= len(chosen) // 2, found
    assert {code for _, code in found} <= {0, 1}
