"""What goes in and out: values, bodies, names that people type; logs and events, for readers of
any speed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from api.api_rig import DEADLINE, Rig, api_rig, output
from supervisord_py.api.routes import handler_of
from supervisord_py.api.schemas import Execute, New, StartKernel, moment_of, read_body, read_query
from supervisord_py.api.streams import json_bytes
from supervisord_py.api.units import resolve, resolve_one
from supervisord_py.errors import (
    AmbiguousNameError,
    BadRequestError,
    InvalidInputError,
    UnknownUnitError,
)
from supervisord_py.keeper.protocol import STDERR, STDOUT

NOW = 1_800_000_000.0


def test_moments_are_times_or_ages() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    known = {"90": NOW - 90, "0.5h": NOW - 1800, "1h30m": NOW - 5400, "2026-01-31T12:00:00": noon}
    known["2026-01-31T14:00:00+02:00"] = noon
    assert {text: moment_of("since", text, NOW) for text in known} == known
    for wrong in ("", "-5", "10 m", "10x", "٣m", "1h30", "yesterday", "2026-13-01T00:00:00Z"):
        with pytest.raises(BadRequestError, match="RFC 3339"):
            moment_of("since", wrong, NOW)


def test_json_is_never_in_the_way_of_what_it_tells() -> None:
    assert json_bytes(["\udc00", math.inf, 2**70]) == rb'["\udc00",null,1180591620717411303424]'
    assert json_bytes({"ä": "\u2028"}) == '{"ä":"\u2028"}'.encode()


LOGS, RUN = "logs.unit_logs", "tools.run"


@pytest.mark.parametrize(
    ("handler", "name", "values", "said"),
    [
        (LOGS, "follow", ["perhaps"], "true or false"),
        (RUN, "timeout", ["inf"], "a number <= 604800"),
        (LOGS, "lines", ["9" * 5000], "out of range"),
        (LOGS, "folow", ["1"], "did you mean 'follow'?"),
        (LOGS, "follow", ["1", "0"], "not an array"),
    ],
)
def test_an_impossible_parameter_is_refused_by_its_name(
    handler: str, name: str, values: list[str], said: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_query(handler_of(handler).query, MultiDict([(name, value) for value in values]))
    assert caught.value.extra["parameter"] == name
    assert said in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("kind", "raw", "pointer", "said"),
    [
        (Execute, b'{"coed": "1"}', "/coed", "unknown key 'coed'"),
        (Execute, b'{"cells": [{"code": "1"}, {"title": "x"}]}', "/cells/1/code", "missing"),
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
    with pytest.raises(
        BadRequestError if pointer is None else InvalidInputError, match=said
    ) as caught:
        read_body(kind, raw)
    assert [it["pointer"] for it in caught.value.extra.get("errors", ())] == (
        [pointer] if pointer else []
    )


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.text(), st.none() | st.integers() | st.text()).map(json_bytes)
)
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    with contextlib.suppress(BadRequestError, InvalidInputError):
        assert isinstance(read_body(Execute, raw), Execute)


UNITS = "tool:lorenz tool:text-stats tool:text-plot kernel:lorenz pipe:nightly kernel:a-1 kernel:b-2".split()  # noqa: SIM905
SECOND = {"kernel:a-1": "same", "kernel:b-2": "same", "kernel:lorenz": "mine"}


def test_names_and_globs_mean_units_each_once_or_are_unknown_or_ambiguous() -> None:
    for typed, meant in {
        "nightly": "pipe:nightly",
        "mine kernel:mine": "kernel:lorenz",
        "text-* tool:* nightly": "tool:text-plot tool:text-stats tool:lorenz pipe:nightly",
    }.items():
        assert resolve(typed.split(), UNITS, SECOND) == tuple(meant.split())
    assert resolve(["tool:x[1]"], ["tool:x[1]", "tool:x1"]) == ("tool:x[1]",), (
        "exact names win over globs"
    )
    several = {"lorenz": ["kernel:lorenz", "tool:lorenz"], "same": ["kernel:a-1", "kernel:b-2"]}
    for name, candidates in {**several, "text-*": UNITS[2:0:-1]}.items():
        with pytest.raises(AmbiguousNameError) as ambiguous:
            resolve_one(name, UNITS, SECOND)
        assert (ambiguous.value.extra["candidates"], ambiguous.value.exit_code) == (candidates, 2)
    # The hint names the nearest; a kind that is shared is no likeness.
    for name, near in {
        "text-stat": "tool:text-stats",
        "tool:nope": None,
        "kernel:nightli": "pipe:nightly",
    }.items():
        with pytest.raises(UnknownUnitError, match=name) as unknown:
            resolve([name], [*UNITS, "tool:ed"])
        assert unknown.value.hint == (f"did you mean {near!r}?" if near else "see: pxctl status")


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


async def test_a_silent_sse_stream_gives_signs_of_life(short_tmp: Path) -> None:
    async with api_rig(short_tmp, stream_heartbeat_seconds=0.05) as rig:
        rig.add_tool("x")
        for path in ("/api/units/x/logs?follow=1", "/api/events?follow=1"):
            async with rig.client.get(path, headers={"Accept": "text/event-stream"}) as answer:
                async with asyncio.timeout(DEADLINE):
                    assert await answer.content.readexactly(14) == b": still here\n\n"


async def test_every_byte_is_told_as_text_or_base64_with_its_place_and_what_is_lost(
    rig: Rig,
) -> None:
    rig.add_tool("x")
    euro = "€".encode()
    pieces = [euro[:2], b"!", euro[2:] + b"ab", euro]
    with output(rig, "tool:x") as written:
        for piece in pieces:
            written.append(1.0, STDERR if piece == b"!" else STDOUT, 1, piece)
        written.gap(1.0, 5)
    *items, gap = lines((await rig.get("/api/units/x/logs", Accept="application/x-ndjson"))[1])
    told = [it["text"].encode() if "text" in it else base64.b64decode(it["base64"]) for it in items]
    assert (told, [it["next_position"] for it in items]) == (pieces, [2, 3, 6, 9])
    assert [it["stream"] for it in items] == ["stdout", "stderr", "stdout", "stdout"]
    assert (gap["gap_bytes"], gap["position"]) == (5, 9)


async def test_what_has_a_log_is_read_by_its_full_name_though_it_is_no_unit(rig: Rig) -> None:
    with output(rig, "kernel:gateway") as written:
        written.append(1.0, STDOUT, 1, b"serving\n")
    assert (await rig.get("/api/units/kernel:gateway/logs"))[:2] == (200, b"serving\n")
    for wrong in ("gateway", "kernel:", "kernel:other", "kernel:..%2f..%2fstate", "kernel:.."):
        status, problem, _ = await rig.get(f"/api/units/{wrong}/logs")
        assert (status, problem["kind"]) == (404, "unknown_unit"), wrong
    path, accept = (
        "/api/units/kernel:gateway/logs?follow=1&lines=0",
        {"Accept": "application/x-ndjson"},
    )
    async with rig.client.get(path, headers=accept) as answer:
        assert (await next_line(answer))["next_position"] == 8, (
            "who follows from the end on learns where that is"
        )


async def next_line(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE):
        parsed: dict[str, Any] = json.loads(await answer.content.readline())
        return parsed


async def test_what_was_told_is_there_again_although_it_is_not_written_yet(rig: Rig) -> None:
    written = rig.context.events.publish("written")
    await rig.context.ledger.flush()
    go_on = threading.Event()
    rig.context.ledger.post(lambda _: go_on.wait(DEADLINE))
    try:
        async with rig.client.get("/api/events?follow=1") as answer:
            told = [rig.context.events.publish("told") for _ in range(3)]
            assert [(await next_line(answer))["id"] for _ in told] == told
        for path, expected in (
            ("?after=0", [written, *told]),
            (f"?after={told[0]}&limit=1", told[1:2]),
        ):
            assert [
                event["id"] for event in lines((await rig.get(f"/api/events{path}"))[1])
            ] == expected
        resumed = await rig.get("/api/events", **{"Last-Event-ID": str(told[0])})
        assert [event["id"] for event in lines(resumed[1])] == told[1:]
    finally:
        go_on.set()
