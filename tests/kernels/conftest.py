"""Fixtures that several files of this folder use."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kernels.inside_rig import OLDER_PYTHON


@pytest.fixture(
    scope="module", params=["ipykernel 7", pytest.param("ipykernel 6", marks=pytest.mark.deep)]
)
def python(request: pytest.FixtureRequest, require: Callable[[object, str], None]) -> str:
    if request.param == "ipykernel 7":
        return sys.executable
    require(OLDER_PYTHON.exists(), "needs ipykernel 6.31 in its own environment (.ci/peers)")
    return str(OLDER_PYTHON)
