"""Programs run for the choosing of interpreters: every line arrives, none mix, and nothing is left behind."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from kernels.choosing_house import ChoosingHouse, eventually
from supervisord_py.errors import ShuttingDownError, StartFailedError
from supervisord_py.kernels.choosing.steps import MAX_LINE, Answer, Program, Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[ChoosingHouse]:
    made = await ChoosingHouse(short_tmp).open()
    yield made
    await made.close()


def steps(house: ChoosingHouse) -> Steps:
    return Steps(house.placement)  # type: ignore[arg-type]


def python(text: str) -> Program:
    return Program((sys.executable, "-I", "-S", "-u", "-c", text), "/", {"PATH": "/usr/bin:/bin"})


async def test_an_answer_has_both_streams_and_the_end(house: ChoosingHouse) -> None:
    answer = await steps(house).ask(python("import sys; print('out'); sys.stderr.write('err\\n\\n'); sys.exit(3)"))
    assert answer == Answer(3, None, "out\n", "err\n\n")
    assert answer.words == "exits with 3"
    assert answer.last_line == "err"
    assert Answer(None, 9).words == "was killed by signal 9"
    assert Answer(0, None, "one\ntwo\n \n").last_line == "two"
    assert Answer(0, None).last_line == ""


async def test_every_line_of_a_build_is_told(house: ChoosingHouse) -> None:
    lines: list[str] = []
    text = "import sys; print('one\\rtwo\\r\\n\\n  \\nthree'); sys.stderr.write('grü\\n'); print('x' * 5000); "
    text += "[print(index) for index in range(2000)]; print('last', end=''); sys.exit(1)"
    answer = await steps(house).follow("build", python(text), lines.append)
    assert answer == Answer(1, None)
    assert {"one", "two", "three", "grü"} <= set(lines)
    assert [line for line in lines if line.isdigit()] == [str(index) for index in range(2000)]
    assert max(len(line) for line in lines) == MAX_LINE
    assert lines[-1] == "last"


async def test_a_program_that_is_not_there_is_refused_and_nothing_is_held(house: ChoosingHouse) -> None:
    with pytest.raises(StartFailedError):
        await steps(house).ask(Program(("/nowhere/x",), "/", {}))
    assert list(await house.placement.list("")) == []


@pytest.mark.parametrize("way", ["ask", "follow"])
async def test_who_stops_waiting_stops_the_whole_tree(house: ChoosingHouse, way: str) -> None:
    runner = steps(house)
    text = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'])"
    program = python(text)
    work = runner.ask(program) if way == "ask" else runner.follow("build", program, print)
    task = asyncio.create_task(work)
    await eventually(lambda: house.placement.spawned)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(await house.placement.list("")) == []


async def test_questions_end_with_the_control_plane(house: ChoosingHouse) -> None:
    program = house.proj / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    call = asyncio.create_task(house.choose())
    await eventually(lambda: house.placement.spawned)
    await house.choosing.close()
    with pytest.raises(ShuttingDownError, match=r"asking .* was not finished"):
        await call
    assert list(await house.placement.list("")) == []
