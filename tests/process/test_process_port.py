"""The placement on this machine has every method of the port, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from supervisord_py.process.local import LocalPlacement
from supervisord_py.process.placement import Placement

MEMBERS = [name for name in vars(Placement) if not name.startswith("_")]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_local_placement_has_every_method_of_the_port(name: str) -> None:
    wanted, found = getattr(Placement, name), getattr(LocalPlacement, name)
    if isinstance(wanted, property):
        assert isinstance(found, property)
        return
    assert inspect.iscoroutinefunction(found) is inspect.iscoroutinefunction(wanted)
    assert inspect.signature(found) == inspect.signature(wanted)
