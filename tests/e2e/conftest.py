"""What the black-box tests need of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture
def require_root(require: Callable[[object, str], None]) -> None:
    """Only root may mount."""
    require(os.geteuid() == 0, "needs root")
