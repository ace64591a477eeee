"""Fixtures that several files of this folder use."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kernels.inside_rig import OLDER_PYTHON
from kernels.kernel_rig import kernel_house
from kernels.resolver_house import ResolverHouse


@pytest.fixture(scope="module", params=["ipykernel 7", pytest.param("ipykernel 6", marks=pytest.mark.deep)])
def python(request: pytest.FixtureRequest, require: Callable[[object, str], None]) -> str:
    if request.param == "ipykernel 7":
        return sys.executable
    require(OLDER_PYTHON.exists(), "needs ipykernel 6.31 in its own environment (.ci/peers)")
    return str(OLDER_PYTHON)


@pytest.fixture
async def house(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ResolverHouse]:
    async with kernel_house(short_tmp) as rig:
        made = ResolverHouse(rig, monkeypatch)
        yield made
        await made.close()
