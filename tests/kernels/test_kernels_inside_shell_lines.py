"""`!command` lines of cells of ours: their input is empty; output, codes and interrupts are true."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from kernels.inside_rig import InsideRig, kernel, ours, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rig() -> Iterator[InsideRig]:
    folder = Path(tempfile.mkdtemp(prefix="pxi", dir="/tmp"))
    try:
        with kernel(folder, ours(), interrupted=True) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_over(pid: int) -> bool:
    """Say whether a process has ended; whoever inherited it may not have looked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_line_that_reads_finds_the_end_of_its_input(rig: InsideRig) -> None:
    ran = rig.good("print('first')\n!cat; read x; echo $?; (exec < /dev/tty) 2>/dev/null || echo none\nprint('last')")
    assert rig.out(ran.id) == b"first\n1\nnone\nlast\n"


def test_the_output_of_a_line_is_what_it_wrote_and_its_code_is_kept(rig: InsideRig) -> None:
    ran = rig.good("def f():\n    local = 'here'\n    !printf \"$local {local} $$HOME\\377\\n\"; exit 3\nf()")
    assert rig.out(ran.id) == b"here here " + os.environ["HOME"].encode() + b"\xff\n"
    rig.good("assert _exit_code == 3")
    rig.good("!kill -9 $$")
    rig.good("assert _exit_code == -9, _exit_code")
    ran = rig.good("%%capture got\n!printf 'b\\303\\244\\377\\n'")
    assert rig.out(ran.id) == b""
    rig.good("assert got.stdout == 'b\\u00e4\\ufffd\\n', got.stdout")
    ran = rig.good("!sleep 600 & echo $!")
    psutil.Process(int(rig.out(ran.id))).kill()  # goes on in the background, and is not waited for


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
    assert rig.run("!tty -s && echo 'a terminal'", px=False).text().strip() == "a terminal"
    rig.good("shell = get_ipython()\nshell.system = lambda line: print('mine', line)")
    ran = rig.good("!read x\ndel shell.system")
    assert rig.out(ran.id) == b"mine read x\n"
