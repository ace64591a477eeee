"""Interrupts, exits and failures: every request of ours gets its reply, and its end is on disk. The
prelude: what its functions return and tell, `run` and `!` lines.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.inside_rig import InsideRig, kernel, ours
from supervisord_py.kernels.inside import prelude
from waiting import alive, until


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
@pytest.mark.parametrize(
    "code", ["await asyncio.sleep(600)", "await asyncio.sleep(0)\nwhile True: pass"]
)
def test_an_interrupt_alone_ends_an_asynchronous_cell(
    rig: InsideRig, whose: str, code: str
) -> None:
    """See ipykernel #881: without us the cell would go on until its ten minutes are over, or for
    ever.
    """
    cell = started(rig, f"import asyncio\n{code}", px=whose == "ours")
    rig.interrupt()
    assert rig.collect(cell).reply["status"] == "error"
    rig.good("1")


def test_a_signal_wakes_a_loop_that_is_just_about_to_sleep(rig: InsideRig) -> None:
    """Without a descriptor to which C writes, Python would see it when the loop wakes by itself:
    ten minutes later.
    """
    rig.good(
        "import asyncio, signal\nawait asyncio.sleep(0)\nfd = "
        "signal.set_wakeup_fd(-1)\nsignal.set_wakeup_fd(fd)"
    )
    rig.good("assert fd == asyncio.get_running_loop()._csock.fileno()")
    rig.good("import socket\nown, other = socket.socketpair()\nown.setblocking(False)")
    rig.good(
        "signal.set_wakeup_fd(own.fileno())\nawait asyncio.sleep(0)\nassert "
        "signal.set_wakeup_fd(-1) == own.fileno()"
    )
    rig.good("own.close()\nother.close()")


LINES = "for number in range(300): print(number)\nprint('done')"
AWAITS = (
    "import asyncio\nfor _ in range(20): await asyncio.sleep(0)\nawait asyncio.sleep(0.002)\nwhile "
    "True: pass"
)


@pytest.mark.parametrize(("code", "rounds", "seconds"), [(LINES, 40, 0.03), (AWAITS, 25, 0.004)])
def test_whenever_an_interrupt_hits_the_request_is_answered_and_ended(
    rig: InsideRig, code: str, rounds: int, seconds: float
) -> None:
    """Before the code begins, while records are written, after it ended; in an await, between
    two, away from both.
    """
    # what was asked before is answered to its end: in that, SIGINT is ipykernel's own affair
    rig.good("1")
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


def test_a_failing_cell_aborts_those_that_wait_behind_it_and_their_files_say_so(
    rig: InsideRig,
) -> None:
    go = rig.cwd / "go"
    failing = rig.send(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\ntime.sleep(0.3); 1 / 0"
    )
    waiting = [rig.send("print('never')"), rig.send("print('never')")]
    # sent behind them: they are there, too
    rig.message("control", rig.ask("control", "kernel_info_request", {}))
    go.touch()
    assert rig.collect(failing).reply["status"] == "error"
    go.unlink()
    for cell in waiting:
        assert rig.collect(cell).reply["status"] == "aborted"
        assert [record["kind"] for record in rig.records(cell)] == ["begin", "end"]
        assert rig.records(cell, "end")[0]["status"] == "aborted"
        assert rig.out(cell) == b""
    rig.good("1")


def test_output_through_a_wrapper_of_the_users_belongs_to_the_cell_that_runs(
    rig: InsideRig,
) -> None:
    """Alone, ipykernel tells only `sys.stdout` whose output comes, and a wrapper does not pass
    it on.
    """
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


MAN = Path(__file__).parents[2] / "man" / "man7" / "px-prelude.7"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(
        prelude, "publish_display_data", lambda data: published.append(*data.values())
    )
    return published


def test_files_are_read_written_and_compared_and_that_is_told(
    here: Path, events: list[dict[str, Any]]
) -> None:
    assert prelude.write("new/folder/a.txt", "same\nbefore\n") == Path("new/folder/a.txt")
    assert events == [
        {"op": "write", "path": "new/folder/a.txt", "bytes": 12, "preview": "same\nbefore\n"}
    ]
    prelude.write("b", b"same\n\xff\n")
    assert prelude.read("b") == "same\n\ufffd\n"
    assert repr(prelude.read("b")) == "same\n\ufffd\n", "as it is, where it is a cell's value"
    assert prelude.diff("new/folder/a.txt", "b").splitlines()[3:] == [" same", "-before", "+\ufffd"]


@pytest.mark.parametrize("with_git", [True, False])
def test_searches_leave_out_what_is_hidden_and_what_git_ignores(
    here: Path, events: list[dict[str, Any]], with_git: bool
) -> None:
    if with_git:
        subprocess.run(["git", "init", "-q", str(here)], check=True)
    for name, text in {
        "src/main.py": "def main():\n    return 'needle'\n",
        "src/deep/er/test_a.py": "# Needle\n",
        "README.md": "needle.\n",
        "build/out.py": "needle\n",
        ".hidden/x.py": "needle\n",
        "data.bin": "\0needle\n",
        ".gitignore": "build/\n",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    built = [] if with_git else ["build/out.py"]
    assert prelude.find("*.py") == [*built, "src/deep/er/test_a.py", "src/main.py"]
    assert events[0]["matches"] == prelude.find("*.py")
    assert prelude.find("src/**/test_*.py") == ["src/deep/er/test_a.py"]
    assert prelude.find("src/*est_*.py") == [], "a star is within one name"
    assert prelude.find("src/**/est_*.py") == [], "and two stars are whole names"
    assert prelude.find("**/main.py") == prelude.find("./src/mai[n].py") == ["src/main.py"]
    assert prelude.find("src/mai[!n].py") == prelude.find("src?main.py/") == []
    assert prelude.find("src/**") == ["src/deep/er/test_a.py", "src/main.py"]
    assert prelude.find("src/*n.py", here) == [f"{here}/src/main.py"]
    found = [("README.md", 1, "needle."), ("src/main.py", 2, "    return 'needle'")]
    # and not in data.bin
    assert [it for it in prelude.grep("needle") if it.path not in built] == found
    assert len(prelude.grep("(?i)NEEDLE", "src", glob="*a*")) == 2
    assert prelude.grep("def", "src/main.py")[0].line == 1
    assert prelude.tree("src").splitlines() == [
        "src/",
        "  deep/",
        "    er/",
        "      test_a.py",
        "  main.py",
    ]
    assert len(prelude.tree(depth=2).splitlines()) == 6 + 2 * len(built)


def test_env_gets_sets_and_lists_without_telling_values(
    events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_ONE", "hush")
    assert prelude.env("SECRET_ONE") == "hush"
    assert prelude.env("SECRET_ONE", "hush2") == os.environ["SECRET_ONE"] == "hush2"
    assert prelude.env("NOT_THERE_AT_ALL") is None
    assert "SECRET_ONE" in str(prelude.env()).splitlines()
    assert "hush" not in str(events)


def test_output_reads_what_another_cell_printed(rig: InsideRig) -> None:
    rig.good("; ".join(prelude.__all__))
    first = rig.good("print('é' * 100_000); import sys; print('err', file=sys.stderr)")
    whole = rig.good(f"assert output('{first.id}') == 'é' * 100_000 + '\\nerr\\n'")
    assert rig.records(whole.id, "status")[0]["event"]["bytes"] == 200_005
    for none in ("0000", "../x"):
        assert rig.run(f"output({none!r})").reply["ename"] == "FileNotFoundError"


def test_run_returns_code_and_both_streams(here: Path, events: list[dict[str, Any]]) -> None:
    done = prelude.run("echo out; echo err >&2; exit 3")
    assert (done, bool(done), repr(done)) == (
        (3, "out\n", "err\n"),
        False,
        "out\nerr\n[exit code 3]",
    )
    assert (events[0]["op"], events[0]["returncode"], events[0]["preview"]) == (
        "run",
        3,
        repr(done),
    )
    (here / "sub").mkdir()
    assert (
        prelude.run('pwd; echo "$MINE"; cat', cwd="sub", env={"MINE": "value"}).stdout
        == f"{here}/sub\nvalue\n"
    )
    # in the background: not waited for
    os.kill(int(prelude.run("sleep 600 & echo $!").stdout), signal.SIGKILL)


def test_run_ends_what_is_late_with_all_of_its_group(
    here: Path, events: list[dict[str, Any]]
) -> None:
    command = (
        "trap 'echo asked' INT; (trap '' INT; echo $BASHPID; exec sleep 600) & while :; do wait; "
        "done"
    )
    with pytest.raises(subprocess.TimeoutExpired) as late:
        prelude.run(command, timeout=2.0)
    stubborn, asked = str(late.value.stdout).split()
    assert asked == "asked"
    until(lambda: not alive(int(stubborn)), "the end of the stubborn child")
    assert (events[0]["timed_out"], events[0]["returncode"]) == (True, -signal.SIGKILL)


def test_an_interrupt_of_the_cell_reaches_the_command_first(rig: InsideRig) -> None:
    """As SIGINT, with time to tidy up; its own session keeps it from the kernel's."""
    rig.good("import sys; sys.modules['px_inside.prelude'].GRACE = 600.0")
    cell = rig.send(
        "run(\"trap 'echo tidied > tidy; exit 0' INT; touch begun; while :; do sleep 0.05; done\")"
    )
    until((rig.cwd / "begun").exists, "the command")
    rig.interrupt()
    assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"
    assert (rig.cwd / "tidy").read_text() == "tidied\n"


def test_the_output_of_a_line_is_what_it_wrote_and_its_code_is_kept(rig: InsideRig) -> None:
    ran = rig.good(
        "def f():\n    local = 'here'\n    !printf \"$local {local} $$HOME\\377\\n\"; exit 3\nf()"
    )
    assert rig.out(ran.id) == b"here here " + os.environ["HOME"].encode() + b"\xff\n"
    rig.good("assert _exit_code == 3")
    ran = rig.good("print('first')\n!cat; read x; echo $?\nprint('last')")
    assert rig.out(ran.id) == b"first\n1\nlast\n"
    ran = rig.good("%%capture got\n!echo hidden")
    assert rig.out(ran.id) == b""
    rig.good("assert got.stdout.strip() == 'hidden', got.stdout")
    assert rig.run("!tty -s && echo 'a terminal'", px=False).text().strip() == "a terminal", (
        "of others"
    )
