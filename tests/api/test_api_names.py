"""Names that people type: exact, bare, globs, ambiguity, nearest match."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.api.names import nearest_hint, resolve, resolve_one
from supervisord_py.errors import AmbiguousNameError, BadRequestError, UnknownUnitError

UNITS = ["tool:lorenz", "tool:text-stats", "tool:text-plot", "kernel:lorenz", "pipe:nightly"]
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,8}", fullmatch=True)
units = st.sets(st.builds("{}:{}".format, st.sampled_from(["tool", "kernel", "pipe"]), names), max_size=12)


@pytest.mark.parametrize(
    ("typed", "units", "meant"),
    [
        (["tool:lorenz"], UNITS, ("tool:lorenz",)),
        (["nightly"], UNITS, ("pipe:nightly",)),
        (["text-*", "tool:*", "nightly"], UNITS, ("tool:text-plot", "tool:text-stats", "tool:lorenz", "pipe:nightly")),
        (["lor*"], UNITS, ("kernel:lorenz", "tool:lorenz")),
        (["x[1]", "tool:x[1]"], ["tool:x[1]", "tool:x1"], ("tool:x[1]",)),
    ],
)
def test_what_is_meant_comes_once_and_globs_sorted(typed: list[str], units: list[str], meant: tuple[str, ...]) -> None:
    assert resolve(typed, units) == meant


def test_a_bare_name_of_several_kinds_is_ambiguous_and_lists_them() -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        resolve(["lorenz"], UNITS)
    assert caught.value.extra["candidates"] == ["kernel:lorenz", "tool:lorenz"]
    assert caught.value.exit_code == 2
    assert "kernel:lorenz" in (caught.value.hint or "")


def test_one_unit_is_wanted_where_a_glob_fits_two() -> None:
    with pytest.raises(AmbiguousNameError):
        resolve_one("text-*", UNITS)
    assert resolve_one("nig*", UNITS) == "pipe:nightly"


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("lorens", "did you mean 'lorenz'?"),
        ("tool:lorens", "did you mean 'tool:lorenz'?"),
        ("../x", "see: pxctl status"),
        ("tool:nope", "see: pxctl status"),
        ("tool:", "see: pxctl status"),
        ("tol:lorenz", "did you mean 'tool:lorenz'?"),
        ("kernel:lorens", "did you mean 'kernel:lorenz'?"),
        ("kernel:nightli", "did you mean 'pipe:nightly'?"),
        ("zzz*", "see: pxctl status"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_and_a_shared_kind_is_no_likeness(wanted: str, hint: str) -> None:
    with pytest.raises(UnknownUnitError) as caught:
        resolve([wanted], [*UNITS, "tool:ed"])
    assert caught.value.hint == hint
    assert wanted in caught.value.detail
    assert nearest_hint(wanted, []) == "see: pxctl status"


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(BadRequestError):
        resolve([""], UNITS)


@given(units, st.lists(st.text(max_size=12), max_size=4))
def test_whatever_is_typed_gives_known_units_or_an_error_of_ours(known: set[str], typed: list[str]) -> None:
    found: tuple[str, ...] = ()
    with contextlib.suppress(UnknownUnitError, AmbiguousNameError, BadRequestError):
        found = resolve(typed, known)
    assert set(found) <= known
    assert len(set(found)) == len(found)
