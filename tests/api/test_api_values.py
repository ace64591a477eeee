"""What goes in and out as values: times, JSON, media types, queries, bodies, CPU samples; names that people type."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from supervisord_py.api.routes import handler_of
from supervisord_py.api.schemas import Execute, New, StartKernel, moment_of, read_body, read_query
from supervisord_py.api.streams import json_bytes
from supervisord_py.api.units import resolve, resolve_one
from supervisord_py.errors import AmbiguousNameError, BadRequestError, InvalidInputError, UnknownUnitError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90", NOW - 90),
        ("2h", NOW - 7200),
        ("0.5h", NOW - 1800),
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
        ("2026-01-31T14:00:00+02:00", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
    ],
)
def test_moments_are_times_or_ages(text: str, moment: float) -> None:
    assert moment_of("since", text, NOW) == moment
    for wrong in ("", "-5", "10 m", "10x", "٣m", "1h30m", "yesterday", "2026-13-01T00:00:00Z"):
        with pytest.raises(BadRequestError, match="RFC 3339"):
            moment_of("since", wrong, NOW)


@pytest.mark.parametrize(
    ("document", "written"),
    [
        ({"a": [math.nan, math.inf]}, b'{"a":[null,null]}'),
        (["\udc00", math.nan, 2**70], rb'["\udc00",null,1180591620717411303424]'),
        ({"ä": "\u2028"}, '{"ä":"\u2028"}'.encode()),
    ],
)
def test_json_is_never_in_the_way_of_what_it_tells(document: Any, written: bytes) -> None:
    assert json_bytes(document) == written


LOGS, RUN = "logs.unit_logs", "tools.run"


@pytest.mark.parametrize(
    ("handler", "name", "values", "said"),
    [
        (LOGS, "follow", ["perhaps"], "true or false"),
        (RUN, "timeout", ["inf"], "a number <= 604800"),
        (LOGS, "lines", ["9" * 5000], "out of range"),
        (LOGS, "stream", ["stdin"], "one of stdout, stderr"),
        (LOGS, "folow", ["1"], "did you mean 'follow'?"),
        (LOGS, "follow", ["1", "0"], "not an array"),
    ],
)
def test_an_impossible_parameter_is_refused_by_its_name(handler: str, name: str, values: list[str], said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_query(handler_of(handler).query, MultiDict([(name, value) for value in values]))
    assert caught.value.extra["parameter"] == name
    assert said in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("kind", "raw", "pointer", "said"),
    [
        (Execute, b'{"coed": "1"}', "/coed", "unknown key 'coed'"),
        (Execute, b'{"cells": [{"code": "1"}, {"title": "x"}]}', "/cells/1/code", "missing"),
        (Execute, b'{"language": "perl"}', "/language", "must be one of python, bash"),
        (StartKernel, rb'{"arguments": ["a\u0000b"]}', "/arguments/0", "regex"),
        (New, b"", "/name", "the key 'name' is missing"),
        (Execute, b'{"code": }', None, "line 1, column 10"),
        (Execute, b'\n{"a": NaN}', None, "line 2, column 7"),
        (Execute, b"\xff", None, "not UTF-8"),
        (Execute, rb'{"code": "\ud800"}', None, "is no JSON"),
        (Execute, b"[" * 100_000, None, "nested too deep"),
        (dict, b"1", None, "must be a JSON object"),
    ],
)
def test_a_mistake_in_a_body_is_told_with_its_pointer_or_place(
    kind: Any, raw: bytes, pointer: str | None, said: str
) -> None:
    with pytest.raises(BadRequestError if pointer is None else InvalidInputError, match=said) as caught:
        read_body(kind, raw)
    assert [it["pointer"] for it in caught.value.extra.get("errors", ())] == ([pointer] if pointer else [])


@given(st.binary(max_size=200) | st.dictionaries(st.text(), st.none() | st.integers() | st.text()).map(json_bytes))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    with contextlib.suppress(BadRequestError, InvalidInputError):
        assert isinstance(read_body(Execute, raw), Execute)


UNITS = "tool:lorenz tool:text-stats tool:text-plot kernel:lorenz pipe:nightly kernel:a-1 kernel:b-2".split()  # noqa: SIM905
SECOND = {"kernel:a-1": "same", "kernel:b-2": "same", "kernel:lorenz": "mine"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["nightly"], ("pipe:nightly",)),
        (["mine", "kernel:mine"], ("kernel:lorenz",)),
        (["text-*", "tool:*", "nightly"], ("tool:text-plot", "tool:text-stats", "tool:lorenz", "pipe:nightly")),
    ],
)
def test_what_is_meant_comes_once_and_globs_sorted(typed: list[str], meant: tuple[str, ...]) -> None:
    assert resolve(typed, UNITS, SECOND) == meant
    assert resolve(["tool:x[1]"], ["tool:x[1]", "tool:x1"]) == ("tool:x[1]",), "exact names win over globs"


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [("lorenz", ["kernel:lorenz", "tool:lorenz"]), ("same", ["kernel:a-1", "kernel:b-2"]), ("text-*", UNITS[2:0:-1])],
)
def test_an_ambiguous_name_lists_the_candidates(typed: str, candidates: list[str]) -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        resolve_one(typed, UNITS, SECOND)
    assert (caught.value.extra["candidates"], caught.value.exit_code) == (candidates, 2)


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("text-stat", "tool:text-stats"),
        ("tool:nope", None),
        ("tol:lorenz", "tool:lorenz"),
        ("kernel:nightli", "pipe:nightly"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_and_a_shared_kind_is_no_likeness(wanted: str, near: str | None) -> None:
    with pytest.raises(UnknownUnitError, match=wanted) as caught:
        resolve([wanted], [*UNITS, "tool:ed"])
    assert caught.value.hint == (f"did you mean {near!r}?" if near else "see: pxctl status")
