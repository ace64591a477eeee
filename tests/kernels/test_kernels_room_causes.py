"""The causal chain of a session: a start that follows an unwanted end has that end as its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import eventually, room_house
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.room_house import RoomHouse
    from supervisord_py.ledger.events import Event


@pytest.fixture
async def backend() -> FakeBackend:
    """Kernels that behave as told."""
    return FakeBackend()


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, stop_seconds=0.5) as made:
        yield made


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
