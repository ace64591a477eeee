"""The prelude: what its functions return and tell, `run` and `!` lines, and that the man page knows them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernels.inside_rig import InsideRig, kernel, ours
from supervisord_py.kernels.inside import prelude
from waiting import until

MAN = Path(__file__).parents[2] / "man" / "man7" / "px-prelude.7"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(prelude, "publish_display_data", lambda data: published.append(*data.values()))
    return published


@pytest.fixture(scope="module")
def rig() -> Iterator[InsideRig]:
    with kernel(ours(), interrupted=True) as made:
        yield made


def test_files_are_read_written_and_compared_and_that_is_told(here: Path, events: list[dict[str, Any]]) -> None:
    assert prelude.write("new/folder/a.txt", "same\nbefore\n") == Path("new/folder/a.txt")
    assert events == [{"op": "write", "path": "new/folder/a.txt", "bytes": 12, "preview": "same\nbefore\n"}]
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
    assert prelude.find("src/*n.py", here) == [f"{here}/src/main.py"]
    found = [("README.md", 1, "needle."), ("src/main.py", 2, "    return 'needle'")]
    assert [it for it in prelude.grep("needle") if it.path not in built] == found  # and not in data.bin
    assert len(prelude.grep("(?i)NEEDLE", "src", glob="*a*")) == 2
    assert prelude.grep("def", "src/main.py")[0].line == 1
    assert prelude.tree("src").splitlines() == ["src/", "  deep/", "    er/", "      test_a.py", "  main.py"]
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


# -- commands ----------------------------------------------------------------------------------------------------------


def is_over(pid: int) -> bool:
    """Say whether a process has ended; whoever inherited it may not have looked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_run_returns_code_and_both_streams(here: Path, events: list[dict[str, Any]]) -> None:
    done = prelude.run("echo out; echo err >&2; exit 3")
    assert (done, bool(done), repr(done)) == ((3, "out\n", "err\n"), False, "out\nerr\n[exit code 3]")
    assert (events[0]["op"], events[0]["returncode"], events[0]["preview"]) == ("run", 3, repr(done))
    (here / "sub").mkdir()
    assert prelude.run('pwd; echo "$MINE"; cat', cwd="sub", env={"MINE": "value"}).stdout == f"{here}/sub\nvalue\n"
    os.kill(int(prelude.run("sleep 600 & echo $!").stdout), signal.SIGKILL)  # in the background: not waited for


def test_run_ends_what_is_late_with_all_of_its_group(
    here: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prelude, "GRACE", 0.5)
    command = "trap 'echo asked' INT; (trap '' INT; echo $BASHPID; exec sleep 600) & while :; do wait; done"
    with pytest.raises(subprocess.TimeoutExpired) as late:
        prelude.run(command, timeout=2.0)
    stubborn, asked = str(late.value.stdout).split()
    assert asked == "asked"
    until(lambda: is_over(int(stubborn)), "the end of the stubborn child")
    assert (events[0]["timed_out"], events[0]["returncode"]) == (True, -signal.SIGKILL)


def test_an_interrupt_of_the_cell_reaches_the_command_first(rig: InsideRig) -> None:
    """As SIGINT, with time to tidy up; its own session keeps it from the kernel's."""
    rig.good("import sys; sys.modules['px_inside.prelude'].GRACE = 600.0")
    cell = rig.send("run(\"trap 'echo tidied > tidy; exit 0' INT; touch begun; while :; do sleep 0.05; done\")")
    until((rig.cwd / "begun").exists, "the command")
    rig.interrupt()
    assert rig.collect(cell).reply["ename"] == "KeyboardInterrupt"
    assert (rig.cwd / "tidy").read_text() == "tidied\n"


def test_the_output_of_a_line_is_what_it_wrote_and_its_code_is_kept(rig: InsideRig) -> None:
    ran = rig.good("def f():\n    local = 'here'\n    !printf \"$local {local} $$HOME\\377\\n\"; exit 3\nf()")
    assert rig.out(ran.id) == b"here here " + os.environ["HOME"].encode() + b"\xff\n"
    rig.good("assert _exit_code == 3")
    ran = rig.good("print('first')\n!cat; read x; echo $?\nprint('last')")
    assert rig.out(ran.id) == b"first\n1\nlast\n"
    ran = rig.good("%%capture got\n!echo hidden")
    assert rig.out(ran.id) == b""
    rig.good("assert got.stdout.strip() == 'hidden', got.stdout")
    assert rig.run("!tty -s && echo 'a terminal'", px=False).text().strip() == "a terminal", "of others"
