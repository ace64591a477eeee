"""A real daemon for the tests of a file that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.house import House, house, server


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    """Its tool `echo` has run."""
    with house(start=True, measured=True) as made:
        made.tool("echo", server("return {'echo': body}"))
        assert made.run("echo").status == 200
        yield made
