"""Small programs in a real keeper: both streams come back, and what was printed is in no log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from process.real_keeper import RealKeeper
from supervisord_py.errors import StartFailedError
from supervisord_py.pipes.agents.programs import MAX_ANSWER, Answer, Program, Programs
from supervisord_py.process.local import LocalPlacement
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENV = {"PATH": "/usr/bin:/bin"}
PATIENCE = 60.0


@pytest.fixture
async def placement(short_tmp: Path) -> AsyncIterator[LocalPlacement]:
    keeper = await asyncio.to_thread(RealKeeper, short_tmp)
    channel = await asyncio.to_thread(keeper.channel)
    made = await LocalPlacement.connect(channel, daemon_id=keeper.daemon_id, log_dir=keeper.log_dir)
    yield made
    made.close()
    await asyncio.to_thread(keeper.close)


def shell(script: str, *words: str) -> Program:
    return Program(("/bin/sh", "-c", script, *words), "/", ENV)


async def test_both_streams_and_the_end_come_back_and_nothing_is_stored(placement: LocalPlacement) -> None:
    programs = Programs(placement)
    ask = programs.ask
    answer = await ask(shell("echo sk-secret; echo bad >&2; exit 3"), seconds=PATIENCE)
    assert answer == Answer(3, None, "sk-secret\n", "bad\n")
    assert (answer.words, answer.last_line, Answer(0).last_line) == ("exits with 3", "bad", "")
    assert (await ask(shell("kill -9 $$"), seconds=PATIENCE)).signal == 9
    words = ("'; exit 9 #", "$HOME", "a b")
    assert (await ask(shell('printf "%s|" "$@"', "x", *words), seconds=PATIENCE)).stdout == "'; exit 9 #|$HOME|a b|"
    big = f"import sys; sys.stdout.write('x' * {MAX_ANSWER} + 'end')"
    long = await ask(Program((sys.executable, "-I", "-S", "-c", big), "/", ENV), seconds=PATIENCE)
    assert (len(long.stdout), long.stdout[-4:]) == (MAX_ANSWER, "xend")
    assert list(await placement.list("")) == []
    logged = [path.read_bytes() for path in Path(placement.log_dir).rglob("*") if path.is_file()]
    assert not any(b"sk-secret" in content for content in logged)


async def test_who_stops_waiting_stops_the_whole_tree(placement: LocalPlacement) -> None:
    with pytest.raises(TimeoutError):
        await Programs(placement).ask(shell("sleep 600 & sleep 600"), seconds=0.05)
    assert list(await placement.list("")) == []
    with pytest.raises(StartFailedError):
        await Programs(placement).ask(Program(("/bin/true",), "/nowhere", ENV), seconds=PATIENCE)
    assert list(await placement.list("")) == []


async def test_what_an_earlier_control_plane_left_is_stopped(placement: LocalPlacement) -> None:
    await placement.spawn(placement.new_key(), ChildSpec("pipe-probe:ask", ("/bin/sleep", "600"), "/", ENV))
    await Programs(placement).open()
    assert list(await placement.list("")) == []
