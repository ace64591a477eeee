"""Fixtures of the black-box tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from e2e.house import House, house


@pytest.fixture
def home() -> Iterator[House]:
    """A house with no daemon in it yet."""
    with house() as made:
        made.measured = True
        yield made


@pytest.fixture
def running(home: House) -> House:
    """A house whose daemon serves."""
    home.start()
    return home


@pytest.fixture
def require_root(require: Callable[[object, str], None]) -> None:
    """Only root may mount."""
    require(os.geteuid() == 0, "needs root")


@pytest.fixture
def require_node(require: Callable[[object, str], None]) -> None:
    """The other language."""
    require(shutil.which("node"), "needs node")
