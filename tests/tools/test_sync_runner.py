"""Build steps as children of a real keeper: every line arrives, and nothing of a step that was cut off is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.process.child_environment import Environment
from supervisord_py.tools.making.sync import MAX_LINE, BuildCommand, StepEnd, placement_runner
from tools.tool_house import alive, eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


def step(*argv: str) -> BuildCommand:
    return BuildCommand(argv, Path("/"), Environment({"PATH": os.environ["PATH"]}))


def script(text: str) -> BuildCommand:
    return step(sys.executable, "-I", "-u", "-c", text)


async def test_every_line_arrives_and_then_the_end(house: ToolHouse) -> None:
    text = "import sys; print('one\\rtwo\\n\\nthree'); sys.stderr.write('grü\\n'); print('x' * 5000); "
    text += "[print(index) for index in range(3000)]; print('last', end=''); sys.exit(3)"
    got = [item async for item in placement_runner(house.placement, "x")(script(text))]
    assert got[-1] == StepEnd(3, "exited 3")
    lines = [item for item in got if isinstance(item, str)]
    assert {"one", "two", "three", "grü"} <= set(lines)
    assert [line for line in lines if line.isdigit()] == [str(index) for index in range(3000)]
    assert max(len(line) for line in lines) == MAX_LINE
    assert lines[-1] == "last"
    assert list(await house.placement.list("sync:")) == []


async def test_steps_of_one_tool_follow_each_other(house: ToolHouse) -> None:
    runner = placement_runner(house.placement, "x")
    first = [item async for item in runner(script("print('first')"))]
    second = [item async for item in runner(script("print('second')"))]
    assert first == ["first", StepEnd(0, "exited 0")]
    assert second == ["second", StepEnd(0, "exited 0")]


async def test_a_signal_is_told_in_words(house: ToolHouse) -> None:
    runner = placement_runner(house.placement, "x")
    got = [item async for item in runner(script("import os; os.kill(os.getpid(), 9)"))]
    assert got == [StepEnd(None, "was killed by signal 9")]


async def test_a_step_that_is_cut_off_is_gone_with_its_children(house: ToolHouse) -> None:
    text = "import subprocess, os, time; child = subprocess.Popen(['sleep', '1000']); print(os.getpid(), child.pid); "
    text += "time.sleep(1000)"
    output = placement_runner(house.placement, "x")(script(text))
    line = await anext(output)
    assert isinstance(line, str)
    await output.aclose()
    for pid in line.split():
        await eventually(lambda pid=pid: not alive(int(pid)), f"the end of {pid}")  # type: ignore[misc]
    assert list(await house.placement.list("sync:")) == []


async def test_a_builder_that_is_not_there_is_an_error_of_its_own(house: ToolHouse) -> None:
    with pytest.raises(StartFailedError):
        await anext(placement_runner(house.placement, "x")(step("/nowhere/uv")))
