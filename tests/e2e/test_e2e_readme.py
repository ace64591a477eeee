"""What the README shows is true: its tour and its commands are run, its files are read.

Each `$ command` of its console blocks is played, in order, in one shell. The lines under it are its
expected output, stdout and stderr as they come on a terminal. An `…` stands for any text; a line
that is only `…` for any number of lines, none included.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.house import BIN, House, until
from e2e.pipe_house import pipes_house
from jupyter_house import LAUNCHED, front_end

README = (Path(__file__).parents[2] / "README.md").read_text()
SECONDS = 110.0
MARK = "--- done ---"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Return the commands of all console blocks, each with its expected output."""
    found = [
        step.partition("\n")
        for block in blocks("console")
        for step in re.split(r"^\$ ", block, flags=re.M)[1:]
    ]
    return [(command, expected) for command, _, expected in found]


def fits(expected: str, got: str) -> bool:
    lines = (".*".join(map(re.escape, line.split("…"))) + r"\n" for line in expected.splitlines())
    return (
        re.fullmatch("".join(r"(?:.*\n)*" if line == r".*\n" else line for line in lines), got)
        is not None
    )


@pytest.mark.deep
def test_the_tour_is_true(home: House) -> None:
    tour = steps()
    assert len(tour) > 10
    # The exit code is kept over the mark, so that `echo $?` works as the next command.
    script = "".join(
        f"{command}\n__code=$?; echo '{MARK}'; (exit $__code)\n" for command, _ in tour
    )
    (home.home / "tour").write_text(script)
    env = {**home.environ, "COLUMNS": "160", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    # no pipe: the daemon that the tour starts would hold it open
    with (home.home / "said").open("w+b") as said:
        subprocess.run(
            ["bash", "--norc", "--noprofile", home.home / "tour"],
            env=env, cwd=home.home, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    *parts, last = (home.home / "said").read_text().split(f"{MARK}\n")
    for (command, expected), part in zip(tour, parts, strict=True):
        # answers of tools come as they are
        got = part if part.endswith("\n") or not part else f"{part}\n"
        assert fits(expected, got), f"$ {command}\n--- expected\n{expected}--- got\n{got}"
    assert last == ""


def test_every_command_that_is_named_has_the_options_that_are_named_with_it(home: House) -> None:
    named = set(re.findall(r"`(pxctl [a-z][^`]*)`", README))
    assert len(named) > 10
    for words in map(str.split, named):
        command = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
        told = home.pxctl(*command, "--help")
        assert told.returncode == 0, words
        assert all(
            re.search(rf"(^|[ ,]){option}\b", told.stdout, re.M)
            for option in words
            if option[0] == "-"
        ), words


def test_the_pipe_is_one_that_runs() -> None:
    (text,) = blocks("markdown")
    _, front, body = text.split("---\n")
    with pipes_house(PATH=f"{BIN}:{os.environ['PATH']}") as home:
        (home.home / "presets.toml").write_text(
            '[presets.fast]\nprovider = "custom"\nmodel = "m"\nurl = "http://x/"\n'
        )
        home.write("digest", front, body)
        until(lambda: "digest" in home.names(), "it is seen")
        told = home.pipe("digest")
        assert (told["config_error"], bool(told["next_run"]), told["schedule"]) == (
            None,
            True,
            "weekday at 6:30pm",
        )


@pytest.mark.deep
def test_programs_of_jupyter_take_our_kernelspec_and_any_that_four_lines_make_ours() -> None:
    """Here the console; papermill and others: tests/jupyter."""
    command = next(
        line
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("jupyter console")
    )
    (lines,) = blocks("json")
    typed = "import os\nprint('in', os.environ['PX_UNIT'])\nquit()\n"
    with front_end() as front:
        front.spec("python3", ["python", *LAUNCHED], **json.loads(f"{{{lines}}}"))
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}

        def shown(kernel: str) -> str:
            words = [*command.replace("pxd", kernel).split(), "--simple-prompt"]
            how: dict[str, Any] = {"input": typed, "capture_output": True, "text": True}
            return str(subprocess.run(words, cwd=front.folder, env=env, check=False, **how).stdout)

        for kernel in ("pxd", "python3"):
            # Without a heartbeat for a second a console waits for nothing, and leaves at the end of
            # its input.
            until(
                lambda kernel=kernel: "in kernel:jupyter-" in shown(kernel),
                "it shows what is printed",
            )
        until(lambda: front.living() == {}, "their kernels end as they were told to")
