"""What the README shows is true: its tour and its commands are run, its files are read.

Each `$ command` of its console blocks is played, in order, in one shell. The lines under it are its expected output,
stdout and stderr as they come on a terminal. An `…` stands for any text; a line that is only `…` for any number of
lines, none included.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from e2e.house import BIN, House, until
from e2e.pipe_house import pipes_house
from jupyter_house import LAUNCHED, Front, front_end

README = (Path(__file__).parents[2] / "README.md").read_text()
SECONDS = 110.0
MARK = "--- done ---"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Return the commands of all console blocks, each with its expected output."""
    found = [step.partition("\n") for block in blocks("console") for step in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(command, expected) for command, _, expected in found]


def fits(expected: str, got: str) -> bool:
    lines = (".*".join(map(re.escape, line.split("…"))) + r"\n" for line in expected.splitlines())
    return re.fullmatch("".join(r"(?:.*\n)*" if line == r".*\n" else line for line in lines), got) is not None


@pytest.mark.deep
def test_the_tour_is_true(home: House) -> None:
    tour = steps()
    assert len(tour) > 10
    # The exit code is kept over the mark, so that `echo $?` works as the next command.
    script = "".join(f"{command}\n__code=$?; echo '{MARK}'; (exit $__code)\n" for command, _ in tour)
    (home.home / "tour").write_text(script)
    env = {**home.environ, "COLUMNS": "160", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    with (home.home / "said").open("w+b") as said:  # no pipe: the daemon that the tour starts would hold it open
        subprocess.run(
            ["bash", "--norc", "--noprofile", home.home / "tour"],
            env=env, cwd=home.home, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=SECONDS, check=False,
        )  # fmt: skip
    parts = (home.home / "said").read_text().split(f"{MARK}\n")
    assert len(parts) == len(tour) + 1, f"it ended in: {parts[-1]}"
    for (command, expected), part in zip(tour, parts, strict=False):
        got = part if part.endswith("\n") or not part else f"{part}\n"  # answers of tools come as they are
        assert fits(expected, got), f"$ {command}\n--- expected\n{expected}--- got\n{got}"


def test_every_command_that_is_named_has_the_options_that_are_named_with_it(home: House) -> None:
    named = set(re.findall(r"`(pxctl [a-z][^`]*)`", README))
    assert len(named) > 10
    for words in map(str.split, named):
        command = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
        told = home.pxctl(*command, "--help")
        assert told.returncode == 0, words
        assert all(re.search(rf"(^|[ ,]){option}\b", told.stdout, re.M) for option in words if option[0] == "-"), words


def test_the_pipe_is_one_that_runs() -> None:
    (text,) = blocks("markdown")
    _, front, body = text.split("---\n")
    with pipes_house(PATH=f"{BIN}:{os.environ['PATH']}") as home:
        (home.home / "presets.toml").write_text('[presets.fast]\nprovider = "custom"\nmodel = "m"\nurl = "http://x/"\n')
        home.write("digest", front, body)
        until(lambda: "digest" in home.names(), "it is seen")
        told = home.pipe("digest")
        assert (told["config_error"], bool(told["next_run"]), told["schedule"]) == (None, True, "weekday at 6:30pm")


@pytest.fixture
def front() -> Iterator[Front]:
    with front_end() as made:
        yield made


@pytest.mark.deep
def test_programs_of_jupyter_take_our_kernelspec_and_any_that_four_lines_make_ours(front: Front) -> None:
    console, papermill = next(block for block in blocks("sh") if "papermill" in block).splitlines()
    (lines,) = blocks("json")
    front.spec("python3", ["python", *LAUNCHED], **json.loads(f"{{{lines}}}"))
    codes = ("alpha = 0", "import os\nprint(alpha, os.environ['PX_UNIT'])")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in codes])
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "pxd", "display_name": "pxd", "language": "python"}
    nbformat.write(book, front.folder / "in.ipynb")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}

    def shown(command: str) -> str:
        typed = "import os\nprint('in', os.environ['PX_UNIT'])\nquit()\n"
        how: dict[str, Any] = {"input": typed, "stdout": -1, "stderr": -2, "text": True}
        return str(subprocess.run(["bash", "-c", command], cwd=front.folder, env=env, check=False, **how).stdout)

    for kernel in ("pxd", "python3"):
        # Without a heartbeat for a second a console waits for nothing, and leaves at the end of its input.
        command = console.replace("pxd", f"{kernel} --simple-prompt")
        until(lambda command=command: "in kernel:jupyter-" in shown(command), "it shows what is printed")
        told = shown(papermill.replace("pxd", kernel))
        assert (front.folder / "out.ipynb").exists(), told
        made = nbformat.read(front.folder / "out.ipynb", as_version=4)
        assert made.cells[-1].outputs[0]["text"].startswith("0.6 kernel:jupyter-"), told
        (front.folder / "out.ipynb").unlink()
    until(lambda: front.living() == {}, "their kernels end as they were told to")
