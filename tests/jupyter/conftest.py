"""Fixtures of the tests with Jupyter's own programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_house import Front, front_end


@pytest.fixture(scope="module")
def shared_front() -> Iterator[Front]:
    """A daemon for the tests of one module."""
    with front_end() as made:
        yield made


@pytest.fixture
def front(shared_front: Front) -> Iterator[Front]:
    """The module's daemon, with no kernel before and none after."""
    yield shared_front
    shared_front.stop_kernels()


@pytest.fixture
def own_front() -> Iterator[Front]:
    """A daemon of this test alone, not yet started."""
    with front_end(started=False) as made:
        yield made
