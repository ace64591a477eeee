"""Commands: the prelude's `run` and `!` lines: exit code and output, and nothing of them left after an interrupt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernels.inside_rig import InsideRig, kernel, ours, until
from supervisord_py.kernels.inside import prelude, shell


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the status events that are published."""
    published: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data: published.append(*data.values()))
    return published


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


def test_run_returns_code_and_both_streams(here: Path, events: list[dict[str, Any]]) -> None:
    done = prelude.run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr, bool(done)) == (3, "out\n", "err\n", False)
    assert repr(done) == "out\nerr\n[exit code 3]"
    assert (events[0]["op"], events[0]["returncode"], events[0]["preview"]) == ("run", 3, repr(done))
    assert "[… 80000 characters …]" in repr(prelude.run("head -c 100000 /dev/zero | tr '\\0' x"))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        prelude.run("echo why >&2; exit 4", check=True)
    assert (failed.value.returncode, failed.value.stderr) == (4, "why\n")
    (here / "sub").mkdir()
    done = prelude.run('pwd; echo "$MINE"; cat', cwd="sub", env={"MINE": "value"}, input="given")
    assert done.stdout == f"{here}/sub\nvalue\ngiven"
    os.kill(int(prelude.run("sleep 600 & echo $!").stdout), signal.SIGKILL)  # in the background: not waited for


def test_run_ends_what_is_late_with_all_of_its_group(
    here: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "GRACE", 0.5)
    command = "trap 'echo asked' INT; (trap '' INT; echo $BASHPID; exec sleep 600) & while :; do wait; done"
    with pytest.raises(subprocess.TimeoutExpired) as late:
        prelude.run(command, timeout=2.0)
    stubborn, asked = str(late.value.stdout).split()
    assert asked == "asked"
    until(lambda: is_over(int(stubborn)), "the end of the stubborn child")
    assert (events[0]["timed_out"], events[0]["returncode"]) == (True, -signal.SIGKILL)


def test_an_interrupt_of_the_cell_reaches_the_command_first(rig: InsideRig) -> None:
    """As SIGINT, with time to tidy up; its own session keeps it from the kernel's."""
    rig.good("import sys; sys.modules['px_inside.shell'].GRACE = 600.0")
    cell = rig.send("run(\"trap 'echo tidied > tidy; exit 0' INT; touch begun; while :; do sleep 0.05; done\")")
    until((rig.cwd / "begun").exists, "the command")
    rig.interrupt()
    assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"
    assert (rig.cwd / "tidy").read_text() == "tidied\n"


# -- `!` lines ---------------------------------------------------------------------------------------------------------


def test_the_output_of_a_line_is_what_it_wrote_and_its_code_is_kept(rig: InsideRig) -> None:
    ran = rig.good("def f():\n    local = 'here'\n    !printf \"$local {local} $$HOME\\377\\n\"; exit 3\nf()")
    assert rig.out(ran.id) == b"here here " + os.environ["HOME"].encode() + b"\xff\n"
    rig.good("assert _exit_code == 3")
    ran = rig.good("print('first')\n!cat; read x; echo $?; (exec < /dev/tty) 2>/dev/null || echo none\nprint('last')")
    assert rig.out(ran.id) == b"first\n1\nnone\nlast\n"
    ran = rig.good("%%capture got\n!echo hidden")
    assert rig.out(ran.id) == b""
    rig.good("assert got.stdout.strip() == 'hidden', got.stdout")
    ran = rig.good("!sleep 600 & echo $!")
    psutil.Process(int(rig.out(ran.id))).kill()  # goes on in the background, and is not waited for


def test_lines_of_others_are_left_alone(rig: InsideRig) -> None:
    assert rig.run("!tty -s && echo 'a terminal'", px=False).text().strip() == "a terminal"
