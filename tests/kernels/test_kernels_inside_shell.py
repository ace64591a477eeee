"""The prelude's `run`: exit code and output of a command, and nothing of it left after an interrupt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernels.inside_rig import InsideRig, kernel, ours, until
from supervisord_py.kernels.inside import prelude, shell

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class Clock:
    """The `time` of `run`, in which the grace is over once there is a sign: not while the shell is on its way to it."""

    def __init__(self, sign: Path) -> None:
        self._sign = sign
        self.sleep = time.sleep

    def monotonic(self) -> float:
        return time.monotonic() + (shell.GRACE if self._sign.exists() else 0)


def wait_first(monkeypatch: pytest.MonkeyPatch, sign: Path) -> threading.Event:
    """Have whoever waits for a command wait for its sign before; return what tells that somebody waits."""
    waits = threading.Event()

    class Waiting(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            waits.set()
            until(sign.exists, sign.name)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Waiting)
    return waits


def test_run_returns_code_and_both_streams(here: Path, events: list[dict[str, Any]]) -> None:
    done = prelude.run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr, done.ok, bool(done)) == (3, "out\n", "err\n", False, False)
    assert repr(done) == "out\nerr\n[exit code 3]"
    assert repr(prelude.run("true")) == "[exit code 0]"
    assert repr(prelude.run("echo x")) == "x"
    assert str(prelude.run("echo x")) == "x\n"
    assert (events[0]["op"], events[0]["returncode"], events[0]["stdout_chars"]) == ("run", 3, 4)
    assert events[0]["preview"] == repr(done)


def test_run_takes_folder_environment_and_input(here: Path) -> None:
    (here / "sub").mkdir()
    done = prelude.run('pwd; echo "$MINE"; cat', cwd="sub", env={"MINE": "value"}, input="given")
    assert done.stdout == f"{here}/sub\nvalue\ngiven"
    assert prelude.run("cat").stdout == ""
    assert prelude.run("cat", input=b"\xff").stdout == "�"


def test_run_shows_the_ends_of_much_output(here: Path) -> None:
    done = prelude.run("head -c 100000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 100_000
    assert "[… 80000 characters …]" in repr(done)


def test_run_does_not_wait_for_what_is_left_in_the_background(here: Path) -> None:
    done = prelude.run("sleep 600 & echo $!")
    os.kill(int(done.stdout), signal.SIGKILL)


def test_run_checks_where_asked(here: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        prelude.run("echo why >&2; exit 4", check=True)
    assert (failed.value.returncode, failed.value.stderr) == (4, "why\n")
    assert prelude.run("true", check=True).ok


def test_run_ends_what_is_late_with_all_of_its_group(
    here: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "GRACE", 600.0)
    monkeypatch.setattr(shell, "time", Clock(here / "told"))
    wait_first(monkeypatch, here / "begun")
    command = (
        "trap 'echo asked; touch told' INT; "
        "(trap '' INT; echo $BASHPID; touch begun; exec sleep 600) & while :; do wait; done"
    )
    with pytest.raises(subprocess.TimeoutExpired) as late:
        prelude.run(command, timeout=0.5)
    told_of, asked = str(late.value.stdout).split()
    assert asked == "asked"
    until(lambda: not Path(f"/proc/{told_of}").exists(), "the end of the stubborn child")
    assert events[0]["timed_out"] is True
    assert events[0]["returncode"] == -signal.SIGKILL


def test_an_interrupt_of_the_cell_reaches_the_command_first(rig: InsideRig) -> None:
    """As SIGINT, with time to tidy up; its own session keeps it from the kernel's."""
    rig.good(
        "import os, subprocess, sys\n"
        "sys.modules['px_inside.shell'].GRACE = 600.0\n"
        "class Waiting(subprocess.Popen):\n"
        "    def wait(self, timeout=None):\n"
        "        open('waits', 'w').close()\n"  # Popen has returned: from here on an interrupt is the command's, too
        "        return super().wait(timeout)\n"
        "subprocess.Popen = Waiting"
    )
    cell = rig.send("run(\"trap 'echo tidied > tidy; exit 0' INT; touch begun; while :; do sleep 0.05; done\")")
    for sign in ("begun", "waits"):
        until((rig.cwd / sign).exists, sign)
    rig.interrupt()
    assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"
    assert (rig.cwd / "tidy").read_text() == "tidied\n"


class Hit(subprocess.Popen[bytes]):
    """Interrupts who starts it, before they have it."""

    begun: Path
    pid_of_last = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Hit.pid_of_last = self.pid
        until(self.begun.exists, "the command")
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_command_is_started_ends_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised once the process is held."""
    handler = signal.getsignal(signal.SIGINT)
    Hit.begun = here / "begun"
    monkeypatch.setattr(subprocess, "Popen", Hit)
    with pytest.raises(KeyboardInterrupt):
        shell.run("trap 'echo tidied > tidy; exit 0' INT; touch begun; while :; do sleep 0.05; done")
    assert not Path(f"/proc/{Hit.pid_of_last}").exists(), "it is reaped"
    assert (here / "tidy").read_text() == "tidied\n"
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("code", ["run('echo $$ > command; exec sleep 600')", "!echo $$ > command; exec sleep 600"])
def test_an_interrupt_of_the_cell_while_a_command_is_started_leaves_nothing(rig: InsideRig, code: str) -> None:
    written = rig.cwd / "command"
    written.unlink(missing_ok=True)
    rig.good(
        "import os, signal, subprocess, time\n"
        "Popen = subprocess.Popen\n"
        "class Hit(Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        "        while not (os.path.exists('command') and open('command').read()): time.sleep(0.005)\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "subprocess.Popen = Hit"
    )
    ran = rig.run(code)
    rig.good("subprocess.Popen = Popen")
    assert ran.reply["ename"] == "KeyboardInterrupt"
    assert not Path(f"/proc/{int(written.read_text())}").exists(), "it is reaped"
    assert "kernels/inside/" not in "".join(ran.reply["traceback"])


def test_a_second_interrupt_kills_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "GRACE", 600.0)
    waits = wait_first(monkeypatch, here / "begun")
    killer = threading.Thread(target=_interrupt_twice, args=(waits, here / "begun", here / "asked"))
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        shell.run("trap 'touch asked' INT; touch begun; while :; do sleep 0.05; done")
    killer.join()


def _interrupt_twice(waits: threading.Event, begun: Path, asked: Path) -> None:
    until(waits.is_set, "the wait for the command")
    for sign in (begun, asked):
        until(sign.exists, sign.name)
        os.kill(os.getpid(), signal.SIGINT)
