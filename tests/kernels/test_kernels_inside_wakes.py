"""An interrupt that Python has noted, and of which nobody has woken who sleeps."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import supervisord_py
from kernels.inside_rig import kernel, ours, until
from supervisord_py.kernels.inside import wakes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernels.inside_rig import InsideRig

SLEEPER = """
import signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from supervisord_py.kernels.inside import wakes
{begin}
def elsewhere():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=elsewhere, daemon=True).start()
try:
    print("begun", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("woke", signal.getsignal(signal.SIGURG), flush=True)
"""
"""What another thread has taken in comes between the main thread's last look and its sleep, wherever that is."""


def sleeping(begin: str) -> subprocess.Popen[str]:
    """Start one, and return when it sleeps; unmeasured, as all that is interrupted."""
    program = SLEEPER.format(begin=begin)
    home = str(Path(supervisord_py.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S", "it sleeps")
    return process


def test_whom_the_signal_did_not_wake_is_woken() -> None:
    process = sleeping("wakes.begin()")
    out, _ = process.communicate("go\n", timeout=60)
    assert out.startswith("woke <function _nothing")
    assert process.returncode == 0


def test_without_it_nobody_would_wake() -> None:
    """The premise: should Python do this itself one day, `wakes` can go."""
    process = sleeping("")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate("go\n", timeout=1.0)
    finally:
        process.kill()
        process.communicate()


def test_a_signal_that_is_somebody_elses_is_left_alone() -> None:
    before = signal.signal(wakes.POKE, signal.SIG_IGN)
    try:
        wakes.begin()
        assert signal.getsignal(wakes.POKE) == signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(wakes.POKE, before)


@pytest.fixture(scope="module")
def rig() -> Iterator[InsideRig]:
    folder = Path(tempfile.mkdtemp(prefix="pxi", dir="/tmp"))
    try:
        with kernel(folder, ours(), interrupted=True) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cell_that_just_begins_to_wait_is_interrupted_all_the_same(rig: InsideRig) -> None:
    ran = rig.run(
        "import signal, threading, time\n"
        "def elsewhere(): time.sleep(0.3); signal.pthread_kill(threading.get_ident(), signal.SIGINT)\n"
        "threading.Thread(target=elsewhere).start()\n"
        "time.sleep(600)"
    )
    assert ran.reply["ename"] == "KeyboardInterrupt"
    child = "import subprocess; subprocess.run(['sh', '-c', 'kill -URG $$; echo as ever'])"
    assert rig.good(child).text() == "as ever\n"
