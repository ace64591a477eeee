"""Fixtures of the client's tests: a stand-in daemon, and `pxctl` pointed at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.fake_daemon import FakeDaemon
from cli.px import House, Px


@pytest.fixture
def px(short_tmp: Path) -> Px:
    """`pxctl` in an environment of its own, its socket not yet listened at."""
    return Px(short_tmp, str(short_tmp / "s"))


@pytest.fixture
def daemon(px: Px) -> Iterator[FakeDaemon]:
    """A daemon that answers what the test says."""
    fake = FakeDaemon(px.socket).start()
    yield fake
    fake.stop()


@pytest.fixture
def house(px: Px) -> Iterator[House]:
    """An installation whose `pxd` is a stand-in; it is stopped afterwards."""
    built = House(px)
    yield built
    if os.path.exists(px.socket):
        built("daemon", "stop")
