"""Calls through the API: what the room is asked, what clients are told, also who was cut off, and when one ends."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig, api_rig, until
from api.kernel_fakes import Tell, key_of, ok, result
from kernels.cell_folder import Writer
from supervisord_py.api import kernels
from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.session import CallRequest, CallResult, Cell

PATH = "/api/kernels/default/execute"
NDJSON = {"Accept": "application/x-ndjson"}
QUEUED = {"event": "queued", "position": 1}


@pytest.mark.parametrize(
    ("spec", "more", "taken"),
    [
        (None, {}, None),
        ("python3", {}, None),
        ("ir", {}, "ir"),
        ("ir", {"kernelspec": "python3"}, "python3"),
        ("ir", {"interpreter": "/p"}, None),
    ],
)
async def test_a_notebook_says_which_kernelspec_it_wants(
    rig: Rig, spec: str | None, more: dict[str, str], taken: str | None
) -> None:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": "1 + 1"}
    metadata = {"kernelspec": {"name": spec, "display_name": "x", "language": "R"}} if spec else {}
    notebook = json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": [cell]})
    status, document, _ = await rig.ask("POST", PATH, {"notebook": notebook, **more})
    [(_, asked)] = rig.kernels.asked
    assert (status, asked.cells, asked.kernelspec) == (200, (Cell("1 + 1"),), taken)
    assert json.loads(document["notebook"])["cells"][0]["execution_count"] is None


async def test_a_failure_after_the_beginning_is_the_last_line_and_breaks_off(rig: Rig) -> None:
    seen, received = asyncio.Event(), bytearray()

    async def script(_: CallRequest, tell: Tell) -> CallResult:
        tell(QUEUED)
        await seen.wait()
        raise TimedOutError("over before the first cell")

    rig.kernels.script = script

    async def ask() -> None:
        async with rig.client.post(PATH, json={"code": "1"}, headers=NDJSON) as answer:
            async for piece in answer.content.iter_any():
                received.extend(piece)
                seen.set()

    with pytest.raises(aiohttp.ClientPayloadError):
        await ask()
    lines: list[dict[str, Any]] = [json.loads(line) for line in received.splitlines() if line]
    assert [line.get("event", line.get("kind")) for line in lines] == ["queued", "timed_out"]


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_when_the_control_plane_is_replaced_a_call_is_left_and_not_cancelled(
    short_tmp: Path, accept: str
) -> None:
    ended: list[str] = []
    hold = asyncio.Event()

    async with api_rig(short_tmp, drain_seconds=0.05) as rig:

        async def script(_: CallRequest, tell: Tell) -> CallResult:
            tell(QUEUED)
            try:
                await hold.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            ended.append("by itself")
            return result()

        rig.kernels.script = script
        asking = asyncio.create_task(rig.ask("POST", PATH, {"code": "1"}, headers={"Accept": accept}))
        await until(lambda: rig.kernels.asked)
        await rig.runner.cleanup()
        if accept == "application/json":
            status, problem, _ = await asking
            assert (status, problem["kind"]) == (503, "interrupted")
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await asking
        assert ended == []
        hold.set()
        await until(lambda: ended == ["by itself"])


# -- clients of server-sent events that were cut off: told the rest, once, and nothing runs again ----------------------

SESSION = key_of("default").id
SSE = {"Accept": "text/event-stream"}
Event = tuple[str, str, dict[str, Any]]
"""Its id, its name, its data."""


def event_of(frame: str) -> Event:
    lines = dict(line.split(": ", 1) for line in frame.split("\n"))
    return lines["id"], lines["event"], json.loads(lines["data"])


def events_of(body: bytes) -> list[Event]:
    return [event_of(frame) for frame in body.decode().split("\n\n") if frame and not frame.startswith(":")]


class Story:
    """A call in steps: each waits until it is let go on."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.step = asyncio.Event()
        self.runs = 0

    def writer(self, cell: str) -> Writer:
        folder = self.rig.kernels.cells_dir / SESSION
        folder.mkdir(mode=0o700, exist_ok=True)
        return Writer(str(folder), cell, 1 << 30)

    async def pause(self) -> None:
        await self.step.wait()
        self.step.clear()

    async def tell(self, _: CallRequest, tell: Tell) -> CallResult:
        self.runs += 1
        tell(QUEUED)
        first = self.writer("c1")
        first.begin("code")
        tell({"event": "cell_started", "index": 0, "id": "c1", "kernel": SESSION})
        euro, heart = "€".encode(), "♥".encode()
        first.write("stdout", b"one " + euro[:1])
        await self.pause()
        first.write("stderr", heart[:2])
        first.display({"text/plain": "first"}, {}, None)
        first.display({"text/plain": "second"}, {}, None)
        tell({"event": "notice", "text": "in the middle"})
        await self.pause()
        first.write("stderr", heart[2:])
        first.write("stdout", euro[1:] + b" two\n")
        first.write("stdout", euro[:2])  # whose end never comes
        first.end("ok", execution_count=1, duration=0.1)
        first.close()
        done = ok("c1")
        tell({"event": "cell_done", "cell": done.document()})
        await self.pause()
        second = self.writer("c2")
        second.begin("code")
        tell({"event": "cell_started", "index": 1, "id": "c2", "kernel": SESSION})
        second.write("stdout", b"three\n")
        second.end("ok", execution_count=2, duration=0.1)
        second.close()
        last = ok("c2")
        tell({"event": "cell_done", "cell": last.document()})
        return result(done, last)

    async def told(self, seen: str | None, count: int | None = None) -> list[Event]:
        """Ask, and take so many events or all."""
        headers = SSE if seen is None else {**SSE, "Last-Event-ID": seen}
        found: list[Event] = []
        async with asyncio.timeout(DEADLINE), self.rig.client.post(PATH, json={"code": "1"}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            if count is None:
                return events_of(await answer.content.read())
            while len(found) < count:
                frame = await answer.content.readuntil(b"\n\n")
                found.append(event_of(frame.decode().strip()))
            answer.close()
        return found


@pytest.fixture
def story(rig: Rig) -> Story:
    made = Story(rig)
    rig.kernels.script = made.tell
    return made


def without_ids(events: list[Event]) -> list[dict[str, Any]]:
    return [data for _, _, data in events]


def merged(events: list[dict[str, Any]]) -> list[Any]:
    """Return what was told, however the output was cut: bytes of each stream, and all else in its order."""
    output: dict[tuple[str, str], bytes] = {}
    rest: list[Any] = []
    for event in events:
        if event["event"] != "output":
            rest.append(event)
            continue
        data = event["text"].encode() if "text" in event else base64.b64decode(event["base64"])
        key = (event["id"], event["stream"])
        output[key] = output.get(key, b"") + data
    return [output, *rest]


async def everything(story: Story) -> list[Event]:
    """Tell the whole story to one that stays."""
    telling = asyncio.ensure_future(story.told(None))
    for _ in range(3):
        story.step.set()
        await until(lambda: not story.step.is_set())
    return await telling


async def test_one_that_was_cut_off_at_every_event_has_it_all_exactly_once(story: Story) -> None:
    whole = merged(without_ids(await everything(story)))
    told: list[Event] = []
    seen: str | None = None

    async def go_on() -> None:
        for _ in range(3):
            story.step.set()
            await until(lambda: not story.step.is_set())

    going = asyncio.ensure_future(go_on())
    while not told or told[-1][1] != "done":
        (event,) = await story.told(seen, 1)
        told.append(event)
        seen = event[0]
    await going
    assert merged(without_ids(told)) == whole
    assert whole[0] == {
        ("c1", "stdout"): "one € two\n".encode() + "€".encode()[:2],
        ("c1", "stderr"): "♥".encode(),
        ("c2", "stdout"): b"three\n",
    }
    assert len({identifier for identifier, _, _ in told}) == len(told)
    status, body, _ = await story.rig.ask("POST", PATH, {"code": "1"}, headers={**SSE, "Last-Event-ID": str(seen)})
    assert (status, body) == (204, b""), "which tells clients not to come back"
    assert story.runs == 2


async def test_who_does_not_come_back_cancels_the_call(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "RESUME_SECONDS", 0.2)
    async with api_rig(short_tmp) as rig:
        cancelled = asyncio.Event()

        async def waits(_: CallRequest, tell: Tell) -> CallResult:
            tell(QUEUED)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

        rig.kernels.script = waits
        async with rig.client.post(PATH, json={"code": "1"}, headers=SSE) as answer:
            identifier, _, _ = event_of((await answer.content.readuntil(b"\n\n")).decode().strip())
            answer.close()
        await asyncio.wait_for(cancelled.wait(), DEADLINE)
        status, _, _ = await rig.ask("POST", PATH, {"code": "1"}, headers={**SSE, "Last-Event-ID": identifier})
        assert status == 404
