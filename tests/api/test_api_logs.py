"""Logs and events: every byte and event, in each medium, from any place, for readers of any speed."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import DEADLINE, STDERR, STDOUT, Output, Rig, api_rig
from supervisord_py.process.events import RECENT_MAX


@pytest.fixture
def output(rig: Rig) -> Output:
    rig.add_tool("x")
    return Output(Path(rig.placement.log_dir), "tool:x")


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


async def test_a_silent_sse_stream_gives_signs_of_life(short_tmp: Path) -> None:
    async with api_rig(short_tmp, stream_heartbeat_seconds=0.05) as rig:
        rig.add_tool("x")
        for path in ("/api/units/x/logs?follow=1", "/api/events?follow=1"):
            async with rig.client.get(path, headers={"Accept": "text/event-stream"}) as answer:
                async with asyncio.timeout(DEADLINE):
                    assert await answer.content.readexactly(14) == b": still here\n\n"


async def test_every_byte_is_told_as_text_or_base64_with_its_place_and_what_is_lost(rig: Rig, output: Output) -> None:
    euro = "€".encode()
    pieces = [euro[:2], b"!", euro[2:] + b"ab", euro]
    for piece in pieces:
        output.write(piece, STDERR if piece == b"!" else STDOUT)
    output.gap(5)
    *items, gap = lines((await rig.get("/api/units/x/logs", Accept="application/x-ndjson"))[1])
    told = [it["text"].encode() if "text" in it else base64.b64decode(it["base64"]) for it in items]
    assert (told, [it["next_position"] for it in items]) == (pieces, [2, 3, 6, 9])
    assert [it["stream"] for it in items] == ["stdout", "stderr", "stdout", "stdout"]
    assert (gap["gap_bytes"], gap["position"]) == (5, 9)


async def test_what_has_a_log_is_read_by_its_full_name_though_it_is_no_unit(rig: Rig) -> None:
    Output(Path(rig.placement.log_dir), "kernel:gateway").write(b"serving\n")
    assert (await rig.get("/api/units/kernel:gateway/logs"))[:2] == (200, b"serving\n")
    for wrong in ("gateway", "kernel:", "kernel:other", "kernel:..%2f..%2fstate", "kernel:.."):
        status, problem, _ = await rig.get(f"/api/units/{wrong}/logs")
        assert (status, problem["kind"]) == (404, "unknown_unit"), wrong


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
        for path, expected in (("?after=0", [written, *told]), (f"?after={told[0]}&limit=1", told[1:2])):
            assert [event["id"] for event in lines((await rig.get(f"/api/events{path}"))[1])] == expected
        resumed = await rig.get("/api/events", **{"Last-Event-ID": str(told[0])})
        assert [event["id"] for event in lines(resumed[1])] == told[1:]
    finally:
        go_on.set()


async def test_a_slow_reader_slows_nobody(rig: Rig) -> None:
    """One reads nothing during a flood: the quick one gets all, he the rest from the journal, or how many he missed."""
    reader, writer = await rig.connect()
    writer.write(b"GET /api/events?follow=1 HTTP/1.1\r\nHost: px\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket transport
    filler, total, known = "x" * 4000, 4 * RECENT_MAX, 0
    async with rig.client.get("/api/events?follow=1", read_bufsize=2**20) as quick:
        for number in range(total):
            rig.context.events.publish("flood", number=number, filler=filler)
            if number % 50 == 49:
                assert [(await next_line(quick))["number"] for _ in range(50)][-1] == number
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(DEADLINE * 2):
        while known < total:
            line = await reader.readline()
            if line.startswith(b"{"):
                known += json.loads(line).get("missed", 1)
    assert known == total
    writer.close()
    await writer.wait_closed()
