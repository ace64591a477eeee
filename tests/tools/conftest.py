"""A launcher for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tools.tool_house import ToolHouse


@pytest.fixture
async def house(request: pytest.FixtureRequest) -> AsyncIterator[ToolHouse]:
    """One with the settings that come with it, but for a parameter; it is closed, and checked
    for leaks, at the end.
    """
    made = ToolHouse(**getattr(request, "param", {}))
    yield await made.open()
    await made.close()
