"""Keepers for the tests of this room: one on each rung that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keeper.keeper_rig import RUNGS, Rig


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    """Make rigs that are cleaned up, and checked for leaks, at the end."""
    made: list[Rig] = []

    def make(**boot: Any) -> Rig:
        made.append(Rig(**boot))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    """A keeper with the best rung that this machine has, not started."""
    return rigs()


@pytest.fixture(params=RUNGS)
def rung(request: pytest.FixtureRequest, rigs: Callable[..., Rig]) -> Rig:
    """A keeper on each rung, started and greeted; `rig.links[0]` is its channel."""
    return _on(request.param, rigs)


@pytest.fixture(params=["cgroup", "subreaper"])
def linux_rung(request: pytest.FixtureRequest, rigs: Callable[..., Rig]) -> Rig:
    """The same, without the portable rung, which promises less."""
    return _on(request.param, rigs)


def _on(name: str, rigs: Callable[..., Rig]) -> Rig:
    rig = rigs(**RUNGS[name])
    link = rig.up()
    if link.hello["kill_rung"] != name:
        pytest.skip(f"this machine offers {link.hello['kill_rung']}, not {name}")
    return rig
