"""What goes in and out as values: times, JSON, media types, queries, bodies, CPU samples; names that people type."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.api.names import nearest_hint, resolve, resolve_one
from supervisord_py.api.schemas import (
    Body,
    CellPageQuery,
    Execute,
    ExecutionsQuery,
    LogsQuery,
    NewTool,
    Query,
    RunQuery,
    StartKernel,
    moment_of,
    read_body,
    read_query,
)
from supervisord_py.api.streams import NDJSON, SSE, choose, json_bytes
from supervisord_py.api.units import cpu_percent
from supervisord_py.errors import AmbiguousNameError, BadRequestError, InvalidInputError, UnknownUnitError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        *((text, NOW - age) for text, age in {
            "90": 90, "90s": 90, "10m": 600, "1h30m": 5400, "2d": 172800, "1w": 604800, "0.5h": 1800,
        }.items()),
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
        ("2026-01-31T14:00:00+02:00", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
    ],
)  # fmt: skip
def test_moments(text: str, moment: float) -> None:
    assert moment_of("since", text, NOW) == moment


@pytest.mark.parametrize(
    "text", ["", "m", "-5", "10 m", "10x", "٣m", "9" * 400, "99999999999d", "1m30", "yesterday", "2026-13-01T00:00:00Z"]
)
def test_what_is_no_moment_says_what_would_be(text: str) -> None:
    with pytest.raises(BadRequestError, match="RFC 3339"):
        moment_of("since", text, NOW)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, NDJSON),
        ("*/*", NDJSON),
        ("text/event-stream", SSE),
        ("text/event-stream, application/x-ndjson;q=0.9, */*;q=0.1", SSE),
        ("image/png", NDJSON),
        ("TEXT/EVENT-STREAM; Q=1", SSE),
        (",;,", NDJSON),
    ],
)
def test_the_wanted_media_type(accept: str | None, chosen: str) -> None:
    headers = {} if accept is None else {"Accept": accept}
    call = cast("Any", SimpleNamespace(request=SimpleNamespace(headers=headers)))
    assert choose(call, NDJSON, SSE) == chosen


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.parametrize(
    ("document", "written"),
    [
        ({"a": [math.nan, math.inf]}, b'{"a":[null,null]}'),
        ("\ud800", rb'"\ud800"'),
        (["\udc00", math.nan, 2**70], rb'["\udc00",null,1180591620717411303424]'),
        ({"ä": "\u2028"}, '{"ä":"\u2028"}'.encode()),
    ],
)
def test_json_is_never_in_the_way_of_what_it_tells(document: Any, written: bytes) -> None:
    assert json_bytes(document) == written


def test_queries_are_read_by_their_shape() -> None:
    pairs = [("follow", "1"), ("lines", "10"), ("stream", "stdout")]
    assert read_query(LogsQuery, pairs) == LogsQuery(follow=True, lines=10, stream="stdout")
    assert read_query(LogsQuery, [("follow", "False")]) == LogsQuery()
    assert [
        each.value for each in read_query(ExecutionsQuery, [("status", "queued"), ("status", "failed")]).status
    ] == ["queued", "failed"]
    assert read_query(RunQuery, [("keep_alive", "-1"), ("timeout", "1.5")]) == RunQuery(keep_alive=-1, timeout=1.5)
    assert read_query(CellPageQuery, [("offset", str(2**63 - 1))]).offset == 2**63 - 1
    assert read_query(Query, [("cache", "off")], lenient=True) == Query()


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    [
        (LogsQuery, "follow", "perhaps", "true or false"),
        (RunQuery, "timeout", "soon", "a number"),
        (RunQuery, "timeout", "nan", "a number"),
        (RunQuery, "timeout", "inf", "a number <= 604800"),
        (RunQuery, "keep_alive", "-2", "a number >= -1"),
        *((LogsQuery, "lines", text, "a whole number") for text in ("1.5", "1e3", "1.0", "0x1")),
        (LogsQuery, "lines", "-1", "a whole number >= 0"),
        (LogsQuery, "lines", "1000001", "a whole number <= 1000000"),
        (LogsQuery, "lines", "9" * 5000, "out of range"),
        (LogsQuery, "lines", "²", "a whole number"),
        (LogsQuery, "stream", "stdin", "one of stdout, stderr"),
        (ExecutionsQuery, "status", "lost", "one of queued, running"),
    ],
)
def test_an_impossible_value_is_refused_by_the_parameters_name(
    kind: type[Query], name: str, value: str, wanted: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_query(kind, [(name, value)])
    assert caught.value.extra["parameter"] == name
    assert wanted in caught.value.detail


@pytest.mark.parametrize(
    ("kind", "pairs", "hint"),
    [
        (LogsQuery, [("folow", "1")], "did you mean 'follow'?"),
        (LogsQuery, [("zzzz", "1")], "known: follow, since, stream, lines, cursor, encoding"),
        (Query, [("zzzz", "1")], "this route takes no query parameters"),
        (LogsQuery, [("follow", "1"), ("follow", "0")], "give it once"),
    ],
)
def test_a_parameter_that_is_not_known_or_given_twice(
    kind: type[Query], pairs: list[tuple[str, str]], hint: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_query(kind, pairs)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("kind", "raw", "pointer", "said"),
    [
        (Execute, b'{"coed": "1"}', "/coed", "unknown key 'coed'"),
        (Execute, b'{"code": 1}', "/code", "must be a string"),
        (Execute, b'{"cells": [{"code": "1"}, {"title": "x"}]}', "/cells/1/code", "is missing"),
        (Execute, b'{"environ": {"A": 1, "B": 2}}', "/environ", "must be a string"),
        (Execute, b'{"cells": ["1"]}', "/cells", "must be an object"),
        (Execute, b'{"language": "perl"}', "/language", "must be one of python, bash"),
        (Execute, b'{"timeout": true}', "/timeout", "must be a number"),
        (Execute, rb'{"code": "\ud800"}', "", "surrogate"),
        (StartKernel, rb'{"arguments": ["a\u0000b"]}', "/arguments", "without NUL"),
        (StartKernel, b'{"timeout": -1}', "/timeout", "must be a number >= 0"),
        (NewTool, b"{}", "/name", "is missing"),
        (Body, b'{"a": 1}', "/a", "unknown key"),
    ],
)
def test_a_mistake_in_a_body_is_told_with_its_pointer(kind: Any, raw: bytes, pointer: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_body(kind, raw)
    [mistake] = caught.value.extra["errors"]
    assert mistake["pointer"] == pointer
    assert said in mistake["message"]


@pytest.mark.parametrize(
    ("kind", "raw", "said"),
    [
        *((kind, b"", "The body is empty") for kind in (NewTool, Execute, dict[str, Any])),
        (Execute, b'{"code": }', "line 1, column 10"),
        (Execute, b'\n{"a": NaN}', "NaN is no JSON value"),
        (Execute, b'{"timeout": 1e999}', "too large"),
        (Execute, b"\xff", "not UTF-8"),
        (Execute, b"[" * 100_000, "nested deeper"),
        (Execute, b"[1]", "must be a JSON object"),
        (dict, b"1", "must be a JSON object"),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_place(kind: Any, raw: bytes, said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_body(kind, raw)
    assert said in caught.value.detail


def test_no_body_is_an_empty_one_and_null_is_absent() -> None:
    assert read_body(StartKernel, b"") == read_body(StartKernel, b'{"name": null, "environ": null}') == StartKernel()


@given(st.binary(max_size=200) | documents.map(json_bytes))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    for kind in (Execute, StartKernel, dict):
        try:
            read = read_body(kind, raw)
        except (BadRequestError, InvalidInputError):
            continue
        assert isinstance(read, dict | msgspec.Struct)


def test_cpu_percent_is_of_one_cpu_between_two_samples() -> None:
    known: dict[str, list[tuple[float, float]]] = {}
    samples = [(1.0, 10.0), (2.0, 12.0), (2.0, 12.01), (6.0, 14.0), (1.0, 16.0)]
    told = [cpu_percent(known, "a", spent, now) for spent, now in samples]
    assert told == [None, 50.0, 49.8, 200.0, 0.0], "two at once share a sample; less than before is no negative load"
    assert cpu_percent(known, "b", 1.0, 10.0) is None
    assert cpu_percent(known, "b", 2.0, 10.0) is None, "a clock that stands still says nothing"


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
