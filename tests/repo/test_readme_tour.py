"""The README's tour is executed: each `$ command` of its console blocks, in order, in one shell.

The lines under a command are its expected output, stdout and stderr as they come on a terminal. An `…` stands for any
text; a line that is only `…` stands for any number of lines, none included.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STEP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command, the line of the README it stands on, and what it is to print."""

    line: int
    command: str
    expected: str


def steps(text: str) -> list[Step]:
    """Return the commands of all console blocks with their expected output."""
    found: list[Step] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Step(number, line[2:], ""))
        elif inside:
            last = found[-1]
            found[-1] = Step(last.line, last.command, f"{last.expected}{line}\n")
    return found


def fits(expected: str, got: str) -> bool:
    """Say whether an output is the expected one, `…` being a wildcard."""
    pattern = ""
    for line in expected.splitlines():
        pattern += r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
    whole = got if got.endswith("\n") or not got else f"{got}\n"  # answers of tools come as they are
    return re.fullmatch(pattern, whole) is not None


class Shell:
    """A bash that runs one command after the other and keeps its variables between them."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        self._process = process
        self._output = pipe

    def run(self, command: str) -> str:
        """Return what the command printed; fail when it takes too long."""
        mark = f"--- done {os.urandom(8).hex()}"
        assert self._process.stdin is not None
        # The mark is printed with the command's exit code kept, so that `echo $?` works as the next command.
        self._process.stdin.write(f"{command}\n__code=$?; echo '{mark}'; (exit $__code)\n".encode())
        self._process.stdin.flush()
        return self._read_until(f"{mark}\n".encode(), command)

    def _read_until(self, mark: bytes, command: str) -> str:
        got = b""
        deadline = time.monotonic() + STEP_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while not got.endswith(mark):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{command!r} took more than {STEP_SECONDS} s; so far: {got.decode()}")
                piece = os.read(self._output.fileno(), 65536)
                assert piece, f"the shell ended in {command!r}: {got.decode()}"
                got += piece
        return got.removesuffix(mark).decode()


@contextmanager
def shell(home: Path) -> Iterator[Shell]:
    """Start a shell whose daemon, if it starts one, lives in `home`; end both."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("PX_")}
    env = keep | {
        "PX_HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile"],
        env=env, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Shell(process, process.stdout)
    finally:
        subprocess.run([BIN / "pxctl", "daemon", "stop"], env=env, capture_output=True, check=False, timeout=60)
        process.kill()
        process.communicate()


def test_the_tour_of_the_readme_is_true(short_tmp: Path, require: Callable[[object, str], None]) -> None:
    require((BIN / "pxctl").exists(), "needs the installed commands")
    tour = steps((ROOT / "README.md").read_text())
    assert len(tour) > 10
    with shell(short_tmp) as bash:
        for step in tour:
            got = bash.run(step.command)
            assert fits(step.expected, got), (
                f"README.md:{step.line}: $ {step.command}\n--- expected\n{step.expected}--- got\n{got}"
            )


def test_the_tour_names_only_commands_that_a_newcomer_has() -> None:
    first = {re.split(r"[ (=]", step.command)[0] for step in steps((ROOT / "README.md").read_text())}
    assert first <= {"pxctl", "echo", "kill", "curl", "[", "before", "tool_pid"}
