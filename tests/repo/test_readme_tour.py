"""The README's tour is executed: each `$ command` of its console blocks, in order, in one shell.

The lines under a command are its expected output, stdout and stderr as they come on a terminal. An `…` stands for any
text; a line that is only `…` stands for any number of lines, none included.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.house import BIN

README = Path(__file__).parents[2] / "README.md"
SECONDS = 110.0
MARK = "--- done ---"


def steps(text: str) -> list[tuple[str, str]]:
    """Return the commands of all console blocks, each with its expected output."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            found.append((command, expected))
    return found


def fits(expected: str, got: str) -> bool:
    """Say whether an output is the expected one, `…` being a wildcard."""
    pattern = ""
    for line in expected.splitlines():
        pattern += r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, got) is not None


@pytest.mark.deep
def test_the_tour_of_the_readme_is_true(short_tmp: Path, require: Callable[[object, str], None]) -> None:
    require((BIN / "pxctl").exists(), "needs the installed commands")
    tour = steps(README.read_text())
    assert len(tour) > 10
    # The exit code is kept over the mark, so that `echo $?` works as the next command.
    script = "".join(f"{command}\n__code=$?; echo '{MARK}'; (exit $__code)\n" for command, _ in tour)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PX_")} | {
        "PX_HOME": str(short_tmp), "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "160", "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    (short_tmp / "tour").write_text(script)
    try:
        with (short_tmp / "said").open("w+b") as said:  # no pipe: the daemon that the tour starts would hold it open
            argv = ["bash", "--norc", "--noprofile", short_tmp / "tour"]
            subprocess.run(
                argv,
                env=env,
                cwd=short_tmp,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=SECONDS,
                check=False,
            )
            said.seek(0)
            parts = said.read().decode().split(f"{MARK}\n")
    finally:
        subprocess.run([BIN / "pxctl", "daemon", "stop"], env=env, capture_output=True, check=False, timeout=60)
    assert len(parts) == len(tour) + 1, f"it ended in: {parts[-1]}"
    for (command, expected), part in zip(tour, parts, strict=False):
        got = part if part.endswith("\n") or not part else f"{part}\n"  # answers of tools come as they are
        assert fits(expected, got), f"$ {command}\n--- expected\n{expected}--- got\n{got}"


def test_the_tour_names_only_commands_that_a_newcomer_has() -> None:
    first = {re.split(r"[ (=]", command)[0] for command, _ in steps(README.read_text())}
    assert first <= {"pxctl", "echo", "kill", "curl", "[", "before", "tool_pid"}
