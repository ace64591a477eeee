"""Launchers for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tools.tool_house import ToolHouse


@pytest.fixture
async def houses() -> AsyncIterator[Callable[..., Awaitable[ToolHouse]]]:
    """Make launchers that are closed, and checked for leaks, at the end."""
    made: list[ToolHouse] = []

    async def make(**pool: Any) -> ToolHouse:
        made.append(ToolHouse(**pool))
        return await made[-1].open()

    yield make
    for house in made:
        await house.close()


@pytest.fixture
async def house(houses: Callable[..., Awaitable[ToolHouse]]) -> ToolHouse:
    """A launcher with the settings that come with it."""
    return await houses()
