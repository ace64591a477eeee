"""`!command` lines of cells of ours: who asks is told that nobody answers; output, codes and interrupts are true."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from kernels.inside_rig import InsideRig, kernel, ours, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=[None, "/bin/sh", "/bin/bash"])
def rig(request: pytest.FixtureRequest) -> Iterator[InsideRig]:
    """A kernel under each shell, and under a service manager that names none: they differ at the terminal."""
    folder = Path(tempfile.mkdtemp(prefix="pxi", dir="/tmp"))
    environ = {name: value for name, value in os.environ.items() if name != "SHELL"}
    environ |= {"SHELL": request.param} if request.param else {}
    try:
        with kernel(folder, ours(), interrupted=True, env=environ) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_over(pid: int) -> bool:
    """Say whether a process has ended; whoever inherited it may not have looked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    "line",
    [
        "read x",
        "echo question; read x; exit 4",
        "read x < /dev/tty",
        "while true; do read x || exit 2; done",
        "stty -icanon; dd bs=1 count=3 2>/dev/null",  # single keys: an end of input means nothing there
    ],
)
def test_a_line_that_asks_fails_at_once_and_says_why(rig: InsideRig, line: str) -> None:
    ran = rig.run(f"before = 1\n!{line}\nafter = 1")
    assert ran.reply["status"] == "error", line
    assert ran.reply["ename"] in {"StdinNotImplementedError", "OSError"}
    assert f"!{line} asked for input, but nobody can answer" in ran.reply["evalue"]
    assert "shell_lines.py" not in "".join(ran.reply["traceback"])
    rig.good("assert before and 'after' not in dir() and _exit_code != 0")


def test_a_line_that_reads_and_is_content_with_nothing_goes_well(rig: InsideRig) -> None:
    ran = rig.good("!cat; echo over; exit 0")
    assert rig.out(ran.id) == b"over\n"
    rig.good("assert _exit_code == 0")


def test_the_output_of_a_line_is_what_it_wrote_and_its_code_is_kept(rig: InsideRig) -> None:
    ran = rig.good(
        "def f():\n    local = 'here'\n    !printf \"$local {local} $$HOME\\377\\n\"; test -t 1; exit 3\nf()"
    )
    assert rig.out(ran.id) == b"here here " + os.environ["HOME"].encode() + b"\xff\n"
    rig.good("assert _exit_code == 3")
    ran = rig.good("!kill -9 $$")
    rig.good("assert _exit_code == -9, _exit_code")
    ran = rig.good("!head -c 300000 /dev/zero | tr '\\0' x; echo end")
    assert rig.out(ran.id) == b"x" * 300_000 + b"end\n"
    ran = rig.good("%%capture got\n!printf 'b\\303\\244\\377\\n'")
    assert rig.out(ran.id) == b""
    rig.good("assert got.stdout == 'b\\u00e4\\ufffd\\n', got.stdout")


def test_what_is_left_in_the_background_is_hung_up_on_and_not_waited_for(rig: InsideRig) -> None:
    """As with IPython's own lines: its terminal is gone."""
    ran = rig.good("!sleep 600 > /dev/null & echo $!")
    pid = int(rig.out(ran.id))
    until(lambda: is_over(pid), "its end")
    ran = rig.good("!trap '' HUP; sleep 600 > /dev/null & echo $!")
    pid = int(rig.out(ran.id))
    assert not is_over(pid)
    os.kill(pid, signal.SIGKILL)
    assert rig.run("!sleep 600 &").reply["ename"] == "OSError"


def test_an_interrupt_ends_the_command_and_the_cell(rig: InsideRig) -> None:
    """IPython would go on with the next line."""
    cell = rig.send("!echo begun; echo $$ > pid; sleep 600\nafter = 2")
    written = rig.cwd / "pid"
    pid = int(until(lambda: rig.out(cell) == b"begun\n" and written.exists() and written.read_text(), "the command"))
    rig.interrupt()
    assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"
    rig.good("assert 'after' not in dir()")
    until(lambda: is_over(pid), "its end")


def test_lines_of_others_and_lines_that_somebody_has_changed_are_left_alone(rig: InsideRig) -> None:
    ran = rig.run("get_ipython().system.__module__", px=False)
    assert ran.of("execute_result")[0]["data"]["text/plain"] != "'px_inside.shell_lines'"
    ran = rig.good("get_ipython().system.__module__", allow_stdin=True)
    assert rig.records(ran.id, "result")[0]["data"]["text/plain"] != "'px_inside.shell_lines'"
    rig.good("shell = get_ipython()\nshell.system = lambda line: print('mine', line)")
    ran = rig.good("!read x\ndel shell.system")
    assert rig.out(ran.id) == b"mine read x\n"
    rig.good("shell.system_raise_on_error = True")
    failed = rig.run("!exit 5")
    rig.good("shell.system_raise_on_error = False")
    assert failed.reply["ename"] == "CalledProcessError"
    rig.good("!true")
