"""A throw-away home for a real daemon, as the end-to-end tests have it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.house import House, house, server


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


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """A house whose daemon serves all tests of a file that leave it as it was; its tool `echo` has run."""
    with house() as made:
        made.measured = True
        made.tool("echo", server("return {'echo': body}"))
        made.start()
        assert made.run("echo").status == 200
        yield made
