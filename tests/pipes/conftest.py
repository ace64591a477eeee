"""One room of pipes for all tests of a file: a room of its own is for those that end it or turn
its clocks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from pipe_rig import TELL, PipeRig, pipe_house
from supervisord_py.pipes import executions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(short_tmp_of_module: Path) -> AsyncIterator[PipeRig]:
    """Return a room that runs, with many slots and the agent `tell`; whoever uses it has
    `@in_one_room`.
    """
    (short_tmp_of_module / "agents.toml").write_text(TELL)
    async with pipe_house(short_tmp_of_module) as house:
        house.config = replace(house.config, slots_manual=32, slots_event=8, stop_seconds=0.1)
        house.room.reconfigure(house.config)
        yield house


@pytest_asyncio.fixture
async def own_rig(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PipeRig]:
    """Return a room for one test alone, which looks at its runs without a pause."""
    monkeypatch.setattr(executions, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp) as house:
        yield house
