"""`GET /api/events`: past and present without a hole, in both media, for readers of any speed."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


async def next_line(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE):
        parsed: dict[str, Any] = json.loads(await answer.content.readline())
        return parsed


async def test_after_and_limit_page_through_the_past(rig: Rig) -> None:
    ids = [rig.context.events.publish("tick", n=n) for n in range(10)]
    await rig.context.ledger.flush()
    _, content, _ = await rig.get(f"/api/events?after={ids[3]}&limit=3")
    assert [event["id"] for event in lines(content)] == ids[4:7]
    _, content, _ = await rig.get("/api/events?limit=2")
    assert [event["id"] for event in lines(content)] == ids[8:]
    _, content, _ = await rig.get("/api/events?after=0")
    assert [event["id"] for event in lines(content)] == ids


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


async def test_following_with_a_limit_begins_with_the_newest(rig: Rig) -> None:
    ids = [rig.context.events.publish("tick") for _ in range(5)]
    async with rig.client.get("/api/events?follow=1&limit=2") as answer:
        ids.append(rig.context.events.publish("live"))
        assert [(await next_line(answer))["id"] for _ in range(3)] == ids[3:]


@pytest.mark.parametrize("wrong", ["abc", "-1", "1.5", "9" * 40])
async def test_a_last_event_id_that_is_none_is_refused(rig: Rig, wrong: str) -> None:
    status, problem, _ = await rig.get("/api/events", **{"Last-Event-ID": wrong})
    assert (status, problem["parameter"]) == (400, "Last-Event-ID")


async def test_a_slow_reader_gets_a_gap_and_slows_nobody(rig: Rig) -> None:
    """The slow one reads nothing during a flood: the quick one gets all, the slow one learns how many it missed."""
    reader, writer = await rig.connect()
    writer.write(b"GET /api/events?follow=1 HTTP/1.1\r\nHost: px\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket transport
    filler, total = "x" * 4000, 4 * rig.context.events.queue_max
    async with rig.client.get("/api/events?follow=1", read_bufsize=2**20) as quick:
        for number in range(total):
            rig.context.events.publish("flood", number=number, filler=filler)
            if number % 50 == 49:
                seen = [(await next_line(quick))["number"] for _ in range(50)]
                assert seen[-1] == number
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    missed = got = 0
    async with asyncio.timeout(DEADLINE * 2):
        while missed + got < total:
            line = await reader.readline()
            if not line.startswith(b"{"):
                continue
            event = json.loads(line)
            missed += event["missed"] if event["event"] == "gap" else 0
            got += event["event"] == "flood"
    assert missed > 0
    assert missed + got == total
    writer.close()
    await writer.wait_closed()
