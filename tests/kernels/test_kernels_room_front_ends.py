"""Who starts a session anew and why, and when one that a front end of Jupyter made is forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels import session_register
from supervisord_py.kernels.session import Owner, SessionState, StartRequest
from supervisord_py.ledger.events import Event
from supervisord_py.process.model import Reason


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, stop_seconds=0.5) as made:
        yield made


async def _start(house: RoomHouse, name: str, owner: Owner) -> str:
    return (await house.room.start(StartRequest(name, cwd=str(house.cwd), owner=owner)))[1].id


async def test_a_crashed_kernel_that_came_by_the_rest_api_is_started_anew_by_us(
    house: RoomHouse, backend: FakeBackend
) -> None:
    session = await _start(house, "lab", Owner.JUPYTER_API)
    backend.handle.die(None, 11)
    await eventually(lambda: len(backend.handles) == 2)
    assert house.room.snapshot(session)[0].restarts == 1


@pytest.mark.parametrize("owner", [Owner.JUPYTER, Owner.JUPYTER_API])
async def test_a_session_that_its_front_end_ended_is_shown_for_a_while_and_then_forgotten(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch, owner: Owner
) -> None:
    session = await _start(house, "lab", owner)
    await house.room.stop(session)
    await _start(house, "next", owner)
    assert house.room.snapshot(session)[0].reason is Reason.STOPPED
    monkeypatch.setattr(session_register, "FORGET_SECONDS", -1.0)
    await _start(house, "later", owner)
    with pytest.raises(UnknownUnitError):
        house.room.snapshot(session)
    await house.replace()
    with pytest.raises(UnknownUnitError):
        house.room.snapshot(session)


@pytest.mark.parametrize("how", ["a cell of ours", "a crash", "a session of the user"])
async def test_what_somebody_may_want_to_look_at_is_not_forgotten(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(session_register, "FORGET_SECONDS", -1.0)
    session = await _start(house, "lab", Owner.SESSION if how == "a session of the user" else Owner.JUPYTER)
    if how == "a cell of ours":
        await house.run("ok", session=session)
    if how == "a crash":
        backend.handle.die(None, 11)
    else:
        await house.room.stop(session)
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
    await _start(house, "next", Owner.JUPYTER)
    assert house.room.snapshot(session)[0].state is SessionState.STOPPED
    await house.replace()
    await _start(house, "later", Owner.JUPYTER)
    assert house.room.snapshot(session)[0].state is SessionState.STOPPED


async def _events(house: RoomHouse, unit: str, name: str) -> list[Event]:
    return [row for row in await house.said(unit) if row.event == name]


async def test_a_kernel_that_is_brought_back_was_started_because_the_one_before_died(
    house: RoomHouse, backend: FakeBackend
) -> None:
    await house.run("ok")
    unit = house.room.snapshot()[0].unit
    backend.handle.die(None, 11)
    await eventually(lambda: len(backend.handles) == 2)
    (died,) = await _events(house, unit, "died")
    assert [row.cause for row in await _events(house, unit, "starting")] == [None, died.id]


async def test_an_eviction_is_the_cause_of_the_next_start_and_a_stop_on_request_is_not(house: RoomHouse) -> None:
    session = (await house.run("ok")).session_id
    unit = house.room.snapshot()[0].unit
    await house.room.stop(session, Reason.EVICTED_TTL)
    await house.run("ok", session=session)
    await house.room.stop(session)
    await house.run("ok", session=session)
    evicted, _ = await _events(house, unit, "stopped")
    assert [row.cause for row in await _events(house, unit, "starting")] == [None, evicted.id, None]
