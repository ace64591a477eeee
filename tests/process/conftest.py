"""A fake keeper for each test that asks for one, and waits that end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from process.fake_keeper import DAEMON, FakeKeeper
from supervisord_py.process.keeper_client import KeeperClient

Connect = Callable[..., Awaitable[KeeperClient]]


@pytest.fixture
def keeper() -> Iterator[FakeKeeper]:
    """Return a fake keeper; both ends are closed afterwards."""
    fake = FakeKeeper()
    yield fake
    with suppress(OSError):
        fake.hang_up()
    fake.control.close()


@pytest.fixture
async def connect(keeper: FakeKeeper) -> AsyncIterator[Connect]:
    """Return a function that greets the fake keeper; the placements are closed afterwards."""
    made: list[KeeperClient] = []

    async def make() -> KeeperClient:
        placement = await KeeperClient.connect(keeper.control, daemon_id=DAEMON, log_dir="/logs")
        made.append(placement)
        return placement

    yield make
    for placement in made:
        placement.close()
