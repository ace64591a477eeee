"""Starts that are cut short, and starts that look again at what they are made from."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.errors import CancelledRunError, StartFailedError
from supervisord_py.kernels import resolver
from supervisord_py.kernels.cell import CallEvent, KernelStarting, Notice
from supervisord_py.kernels.choice import Choice
from supervisord_py.kernels.session import SessionState, StartRequest
from supervisord_py.process.model import Reason


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[RoomHouse]:
    """A room with real kernels."""
    async with room_house(short_tmp) as made:
        yield made


async def _at_start(house: RoomHouse) -> tuple[asyncio.Task[object], str, str]:
    """Begin a call whose kernel has a process and is not ready; return it, the session, and the instance."""
    call: asyncio.Task[object] = asyncio.ensure_future(house.run("1"))
    await eventually(lambda: any(it.pid for it in house.room.snapshot()))
    view = house.room.snapshot()[0]
    assert view.state is SessionState.STARTING
    return call, view.id, str(view.instance)


async def test_a_stop_of_a_kernel_that_starts_is_written_down_as_a_stop(house: RoomHouse) -> None:
    call, session, instance = await _at_start(house)
    assert await house.room.stop(session) == ()
    with pytest.raises(CancelledRunError):
        await call
    assert house.room.snapshot(session)[0].reason is Reason.STOPPED
    assert (await house.ended_row(instance)).reason == "stopped"


async def test_an_interrupt_of_a_kernel_that_starts_says_that_it_ended_the_start(house: RoomHouse) -> None:
    call, session, instance = await _at_start(house)
    report = await house.room.interrupt(session)
    assert (report.running, [step.action for step in report.steps]) == (None, ["end_start"])
    with pytest.raises(CancelledRunError):
        await call
    assert (await house.ended_row(instance)).reason == "cancelled"


async def test_a_kernelspec_that_was_changed_is_read_again_at_the_next_start(
    house: RoomHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    folder = tmp_path / "kernels" / "own"
    folder.mkdir(parents=True)

    def spec(words: str) -> None:
        argv = [sys.executable, "-c", f"import sys; sys.exit('{words}')", "{connection_file}"]
        (folder / "kernel.json").write_text(json.dumps({"argv": argv, "language": "python", "display_name": "own"}))

    for words, session in (("first", "a"), ("second", "a"), ("third", "b")):
        spec(words)
        with pytest.raises(StartFailedError, match=words):
            await house.run("1", session=session, kernelspec="own")
    session = house.room.find("a").id
    spec("fourth")
    with pytest.raises(StartFailedError, match="fourth"):
        await house.room.restart(session)


async def test_a_start_tells_what_is_built_for_it_and_that_it_begins(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a call does: it is the same choosing, and the same wait."""
    resolve = resolver.InterpreterResolver.resolve

    async def building(self: Any, *asked: Any, progress: Callable[[str], None], **more: Any) -> Choice:
        progress("building an overlay")
        monkeypatch.undo()
        return await resolve(self, *asked, progress=progress, **more)

    monkeypatch.setattr(resolver.InterpreterResolver, "resolve", building)
    told: list[CallEvent] = []
    request = StartRequest("default", cwd=str(house.cwd))
    _, view = await house.room.start(request, told.append)
    assert told == [Notice("building an overlay"), KernelStarting(view.id, view.key.interpreter)]
    told.clear()
    assert (await house.room.start(request, told.append))[1].instance == view.instance
    assert told == []
