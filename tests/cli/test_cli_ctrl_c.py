"""Ctrl-C ends what waits, without a traceback."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import termios

import pytest

from cli.fake_daemon import FakeDaemon, silent
from cli.px import DEADLINE, REPOSITORY, Px
from waiting import until

WAITING = {
    "tools sync a": 1, "logs a -f": 0, "run a": 1, "exec 1": 1, "exec 1 --json": 1, "wait 12": 1, "pipe tail -f 12": 1,
    "pipe run digest": 1, "kernel start": 1, "start tool:a tool:b": 1, "status --watch": 0, "daemon stop": 1,
}  # fmt: skip


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    process.send_signal(signal.SIGINT)
    process.wait(DEADLINE)  # and only then is its input at an end
    return process.returncode, b"Traceback" in process.communicate(timeout=DEADLINE)[1]


@pytest.mark.parametrize("arguments", WAITING)
def test_what_waits_for_an_answer_ends(px: Px, daemon: FakeDaemon, arguments: str) -> None:
    daemon.default = silent
    process = px.popen(*arguments.split())
    until(lambda: daemon.seen, "it is asked")
    assert interrupted(process) == (WAITING[arguments], False)


@pytest.mark.parametrize("arguments", ["exec -", "run a --input -"])
def test_what_reads_its_input_ends_the_same_way(px: Px, arguments: str) -> None:
    process = px.popen(*arguments.split(), stdin=subprocess.PIPE)
    stdin = process.stdin
    assert stdin is not None
    os.write(stdin.fileno(), b"{")
    until(lambda: fcntl.ioctl(stdin, termios.FIONREAD, bytes(4)) == bytes(4), "the first of it is read")
    assert interrupted(process) == (1, False)


def test_while_pxctl_is_still_being_imported_there_is_no_traceback(px: Px) -> None:
    (px.folder / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = px("status", PYTHONPATH=f"{px.folder}:{REPOSITORY / 'cli'}")
    assert (ended.code, ended.out, ended.err) == (1, b"", "pxctl: interrupted from the keyboard\n")
