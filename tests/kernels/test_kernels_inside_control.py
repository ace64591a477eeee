"""Interrupts, questions, exits and failures: every request of ours gets its reply, and its end is on disk."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from kernels.inside_rig import InsideRig, kernel, ours
from waiting import until


@pytest.fixture(scope="module")
def rig(python: str) -> Iterator[InsideRig]:
    with kernel(ours(python), interrupted=True) as made:
        yield made


def started(rig: InsideRig, code: str, *, px: bool = True) -> str:
    cell = rig.send("print('runs', flush=True)\n" + code, px=px)
    if px:
        until(lambda: rig.out(cell), "the first output")
    else:
        while rig.message("iopub", cell)["header"]["msg_type"] != "stream":
            pass
    return cell


@pytest.mark.parametrize("whose", ["ours", "any other"])
@pytest.mark.parametrize("code", ["await asyncio.sleep(600)", "await asyncio.sleep(0)\nwhile True: pass"])
def test_an_interrupt_alone_ends_an_asynchronous_cell(rig: InsideRig, whose: str, code: str) -> None:
    """See ipykernel #881: without us the cell would go on until its ten minutes are over, or for ever."""
    cell = started(rig, f"import asyncio\n{code}", px=whose == "ours")
    rig.interrupt()
    assert rig.collect(cell).reply["status"] == "error"
    rig.good("1")


def test_a_signal_wakes_a_loop_that_is_just_about_to_sleep(rig: InsideRig) -> None:
    """Without a descriptor to which C writes, Python would see it when the loop wakes by itself: ten minutes later."""
    rig.good("import asyncio, signal\nawait asyncio.sleep(0)\nfd = signal.set_wakeup_fd(-1)\nsignal.set_wakeup_fd(fd)")
    rig.good("assert fd == asyncio.get_running_loop()._csock.fileno()")
    rig.good("import socket\nown, other = socket.socketpair()\nown.setblocking(False)")
    rig.good(
        "signal.set_wakeup_fd(own.fileno())\nawait asyncio.sleep(0)\nassert signal.set_wakeup_fd(-1) == own.fileno()"
    )
    rig.good("own.close()\nother.close()")


LINES = "for number in range(300): print(number)\nprint('done')"
AWAITS = "import asyncio\nfor _ in range(20): await asyncio.sleep(0)\nawait asyncio.sleep(0.002)\nwhile True: pass"


@pytest.mark.parametrize(("code", "rounds", "seconds"), [(LINES, 40, 0.03), (AWAITS, 25, 0.004)])
def test_whenever_an_interrupt_hits_the_request_is_answered_and_ended(
    rig: InsideRig, code: str, rounds: int, seconds: float
) -> None:
    """Before the code begins, while records are written, after it ended; in an await, between two, away from both."""
    rig.good("1")  # what was asked before is answered to its end: in that, SIGINT is ipykernel's own affair
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(rounds):
        cell = rig.send(code) if code == LINES else started(rig, code)
        deadline = time.monotonic() + chance.random() * seconds
        while time.monotonic() < deadline:
            pass
        rig.interrupt()
        ran = rig.collect(cell)
        (end,) = rig.records(cell, "end")
        assert (end["status"], end["at"]) == (ran.reply["status"], len(rig.out(cell))), seed
        if ran.reply["status"] == "ok":
            assert code == LINES, seed
        else:
            assert ran.reply["ename"] in {"KeyboardInterrupt", "CancelledError"}, seed
        if code == LINES:
            whole = "".join(f"{number}\n" for number in range(300)).encode() + b"done\n"
            assert whole.startswith(rig.out(cell)), seed
    rig.good("1")


def test_a_kernel_that_inherits_an_ignored_sigint_can_be_interrupted(python: str) -> None:
    with kernel(["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *ours(python)]) as rig:
        cell = started(rig, "import time; time.sleep(600)")
        rig.interrupt()
        assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"


def test_a_failing_cell_aborts_those_that_wait_behind_it_and_their_files_say_so(rig: InsideRig) -> None:
    go = rig.cwd / "go"
    failing = rig.send("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\ntime.sleep(0.3); 1 / 0")
    waiting = [rig.send("print('never')"), rig.send("print('never')")]
    rig.message("control", rig.ask("control", "kernel_info_request", {}))  # sent behind them: they are there, too
    go.touch()
    assert rig.collect(failing).reply["status"] == "error"
    go.unlink()
    for cell in waiting:
        assert rig.collect(cell).reply["status"] == "aborted"
        assert [record["kind"] for record in rig.records(cell)] == ["begin", "end"]
        assert rig.records(cell, "end")[0]["status"] == "aborted"
        assert rig.out(cell) == b""
    rig.good("1")


def test_output_through_a_wrapper_of_the_users_belongs_to_the_cell_that_runs(rig: InsideRig) -> None:
    """Alone, ipykernel tells only `sys.stdout` whose output comes, and a wrapper does not pass it on."""
    first = rig.good(
        "import sys\n"
        "class Tee:\n"
        "    def __init__(self, beneath): self.beneath = beneath\n"
        "    def write(self, text): return self.beneath.write(text)\n"
        "    def flush(self): self.beneath.flush()\n"
        "sys.stdout = Tee(sys.stdout); print('first')"
    )
    second = rig.good("print('second'); sys.stdout = sys.stdout.beneath")
    assert (rig.out(first.id), rig.out(second.id)) == (b"first\n", b"second\n")
