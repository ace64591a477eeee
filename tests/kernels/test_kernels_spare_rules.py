"""Which spare there is, for whom, and for how long: the rules, without any process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.spare_rules import Bounds, Make, Recipe, Retire, Shelf, acts_at_start, recipe_of
from supervisord_py.process.model import ResourceLimit

ENV = {"HOME": "/home/u", "PATH": "/venv/bin:/bin", "LANG": "C.UTF-8", "PI_MODE": "x", "PYTHONHASHSEED": "7"}
LAUNCH = Launch("s-000000", "key", "/venv/bin/python", "/work", ENV, Path("/cells"), tag="t")
RECIPES = tuple(Recipe(f"/{name}/bin/python", None, (), None, 0.0, ()) for name in "abc")


def recipe(**changes: object) -> Recipe:
    made = recipe_of(replace(LAUNCH, **changes))  # type: ignore[arg-type]  # the tests name its fields
    assert made is not None
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "t-000000", "instance": "other", "cwd": "/elsewhere", "cells_dir": Path("/c2"), "tag": "u"},
        {"modules": ("/m",), "prelude": False},
        {"env": ENV | {"PATH": "/venv/bin:/sbin", "PI_MODE": "y", "XDG_DATA_HOME": "/d", "VIRTUAL_ENV": "/venv"}},
    ],
)
def test_what_an_order_can_bring_needs_no_other_spare(changes: dict[str, object]) -> None:
    assert recipe(**changes) == recipe()


@pytest.mark.parametrize(
    "changes",
    [
        {"interpreter": "/other/bin/python"},
        {"overlay": "/overlay"},
        {"limits": (ResourceLimit("nofile", 64, 64),)},
        {"max_rss_bytes": 1 << 30},
        *({"env": ENV | {name: "other"}} for name in ("PYTHONHASHSEED", "HOME", "LC_ALL", "LD_PRELOAD", "OMP_DYNAMIC")),
        {"env": {name: value for name, value in ENV.items() if name != "LANG"}},
    ],
)
def test_what_acts_before_the_order_needs_one_of_its_own(changes: dict[str, object]) -> None:
    assert recipe(**changes) != recipe()


@pytest.mark.parametrize(
    "changes",
    [
        {"interpreter": None},
        {"interpreter": "python3"},
        *({"env": ENV | {"PYTHONPATH": path}} for path in ("src", "/a:src", "/a::/b", ":/a")),
    ],
)
def test_where_no_spare_can_be_right_there_is_none(changes: dict[str, object]) -> None:
    assert recipe_of(replace(LAUNCH, **changes)) is None  # type: ignore[arg-type]  # as above


def test_a_spare_is_spawned_with_what_acts_at_the_start_and_nothing_else() -> None:
    assert recipe().environment() == {name: ENV[name] for name in ("HOME", "LANG", "PATH", "PYTHONHASHSEED")}
    assert "/home/u" not in repr(recipe())
    assert replace(recipe(), path="").environment().keys() == {"HOME", "LANG", "PYTHONHASHSEED"}


@given(st.sampled_from(["PYTHON", "LC_", "LD_", "OMP_", "JUPYTER_"]), st.text("ABC_", max_size=4))
def test_families_of_names_act_at_the_start(prefix: str, rest: str) -> None:
    assert acts_at_start(prefix + rest)
    assert not acts_at_start("MY_" + prefix + rest)


class Shelves(RuleBasedStateMachine):
    """A shelf, its clock, and the spares that an obedient shell would have."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = Bounds(count=2, idle_seconds=60.0)
        self.shelf = Shelf(self.bounds)
        self.now = 0.0
        self.quiet_since: float | None = 0.0
        self.kept: dict[int, Recipe] = {}
        self.warm: dict[int, float] = {}
        self.serials: set[int] = set()
        self.used: list[Recipe] = []

    @rule(recipe=st.sampled_from(RECIPES))
    def start(self, recipe: Recipe) -> None:
        """Somebody starts a kernel: with a spare if a fitting one is warm, and only then."""
        fitting = [serial for serial in self.warm if self.kept[serial] == recipe]
        serial = self.shelf.take(recipe)
        assert (serial is not None) == bool(fitting)
        if serial is not None:
            assert self.kept.pop(serial) == recipe
            del self.warm[serial]
        self.shelf.used(recipe, self.now)
        self.used = [*(it for it in self.used if it != recipe), recipe]
        self.forget()

    def forget(self) -> None:
        """Only so many uses count as there may be spares; later settings bring none of the others back."""
        del self.used[: max(0, len(self.used) - self.bounds.count)]

    @rule(is_busy=st.booleans())
    def work(self, *, is_busy: bool) -> None:
        self.quiet_since = None if is_busy else self.now

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def news(self, data: st.DataObject) -> None:
        serial = data.draw(st.sampled_from(sorted(self.kept)))
        if serial not in self.warm and data.draw(st.booleans()):
            self.shelf.warm(serial, self.now)
            self.warm[serial] = self.now
        else:
            self.shelf.lost(serial)
            del self.kept[serial]
            self.warm.pop(serial, None)

    @rule(count=st.integers(0, 3))
    def bound(self, count: int) -> None:
        self.bounds = replace(self.bounds, count=count)
        self.shelf.bound(self.bounds)
        self.forget()
        self.obey()

    @rule(seconds=st.floats(0.0, 70.0))
    def wait(self, seconds: float) -> None:
        """Time passes; the shell wakes when it was told to, and nothing is missed by that."""
        until = self.now + seconds
        for _ in range(50):
            self.obey()
            at = self.shelf.wake_at(self.quiet_since)
            assert at is None or at > self.now - 1e-6
            if at is None or at >= until:
                break
            self.now = max(at, self.now + 1e-6)
        self.now = until
        self.obey()

    def obey(self) -> None:
        for step in self.shelf.steps(self.now, self.quiet_since):
            match step:
                case Make(serial, recipe):
                    assert serial not in self.serials
                    assert recipe in self.used
                    assert recipe not in self.kept.values()
                    self.serials.add(serial)
                    self.kept[serial] = recipe
                case Retire(serial):
                    recipe, since = self.kept.pop(serial), self.warm.pop(serial, self.now)
                    assert recipe not in self.used or self.now - since >= self.bounds.idle_seconds
                    if recipe in self.used:
                        self.used.remove(recipe)
        assert len(self.kept) <= self.bounds.count
        assert all(self.now - since < self.bounds.idle_seconds for since in self.warm.values())

    @invariant()
    def one_at_a_time_and_one_of_each(self) -> None:
        assert len(self.kept) - len(self.warm) <= 1
        assert len(set(self.kept.values())) == len(self.kept)
        assert self.shelf.ready == set(self.warm)


TestShelves = Shelves.TestCase


def test_a_spare_is_made_when_no_cell_has_run_for_a_moment_or_nobody_can_wait_longer() -> None:
    shelf = Shelf(Bounds(count=1, idle_seconds=600.0))
    shelf.used(RECIPES[0], 100.0)
    assert shelf.steps(100.1, 100.0) == ()
    assert shelf.steps(101.0, None) == (), "a cell runs"
    assert shelf.wake_at(None) == 110.0
    assert shelf.wake_at(103.0) == 103.5
    assert shelf.steps(103.4, 103.0) == ()
    assert shelf.steps(103.5, 103.0) == (Make(1, RECIPES[0]),)
    assert shelf.steps(104.0, 103.0) == ()
    assert shelf.wake_at(103.0) is None


def test_beside_a_cell_that_never_ends_one_is_made_after_a_while() -> None:
    shelf = Shelf(Bounds(count=1, idle_seconds=600.0))
    shelf.used(RECIPES[0], 100.0)
    assert shelf.steps(110.0, None) == (Make(1, RECIPES[0]),)


def test_the_newest_use_displaces_the_oldest_spare() -> None:
    shelf = Shelf(Bounds(count=1, idle_seconds=600.0))
    shelf.used(RECIPES[0], 0.0)
    shelf.steps(10.0, 0.0)
    shelf.warm(1, 11.0)
    shelf.used(RECIPES[1], 20.0)
    assert shelf.steps(20.0, 0.0) == (Retire(1),)
    assert shelf.steps(30.0, 0.0) == (Make(2, RECIPES[1]),)
    assert shelf.take(RECIPES[0]) is None


def test_what_was_lost_meanwhile_is_not_warm_any_more() -> None:
    shelf = Shelf(Bounds(count=1, idle_seconds=600.0))
    shelf.warm(7, 1.0)
    assert shelf.ready == frozenset()
