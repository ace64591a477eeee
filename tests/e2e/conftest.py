"""What the black-box tests need of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture
def require_root(require: Callable[[object, str], None]) -> None:
    """Only root may mount."""
    require(os.geteuid() == 0, "needs root")


@pytest.fixture
def require_node(require: Callable[[object, str], None]) -> None:
    """The other language."""
    require(shutil.which("node"), "needs node")
