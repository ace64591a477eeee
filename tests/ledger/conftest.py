"""An open ledger for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.ledger.store import Ledger, StoreLimits

OpenLedger = Callable[..., Awaitable[Ledger]]

QUICK = StoreLimits(retry_seconds=0.02, stall_seconds=60.0, close_seconds=30.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pxd.db"


@pytest.fixture
async def open_ledger(path: Path) -> AsyncIterator[OpenLedger]:
    """Return a function that opens the ledger; everything that was opened is closed afterwards."""
    made: list[Ledger] = []

    async def make(limits: StoreLimits = QUICK) -> Ledger:
        made.append(await Ledger.open(path, limits))
        return made[-1]

    yield make
    for ledger in made:
        await ledger.close()


@pytest.fixture
async def ledger(open_ledger: OpenLedger) -> Ledger:
    return await open_ledger()
