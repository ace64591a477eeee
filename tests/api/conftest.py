"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.api_rig import Rig, api_rig


@pytest.fixture
async def rig(short_tmp: Path) -> AsyncIterator[Rig]:
    """An API with the plain limits."""
    async with api_rig(short_tmp) as running:
        yield running
