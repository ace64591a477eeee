"""Calls through the API: what clients are told, also who was cut off; Jupyter where front ends
send what they like.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig, api_rig, until
from api.fakes import FakeHandle, Tell, key_of, ok, result
from kernels.cell_folder import Writer
from supervisord_py.api import kernels
from supervisord_py.errors import OverloadedError, TimedOutError
from supervisord_py.kernels.session import BackendName, CallRequest, CallResult, Cell, Owner
from supervisord_py.kernels.wire import Message, make, unpack

PATH = "/api/kernels/default/execute"
QUEUED = {"event": "queued", "position": 1}
CODE = {"code": "1"}
SSE = {"Accept": "text/event-stream"}
NDJSON = {"Accept": "application/x-ndjson"}
SESSION = key_of("default").id


async def test_a_notebook_says_which_kernelspec_it_wants(rig: Rig) -> None:
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": "1 + 1",
    }
    sent: list[tuple[str, dict[str, str]]] = [
        ("python3", {}),
        ("ir", {}),
        ("ir", {"kernelspec": "python3"}),
    ]
    for spec, more in (*sent, ("ir", {"interpreter": "/p"})):
        metadata = {"kernelspec": {"name": spec, "display_name": "x", "language": "R"}}
        notebook = json.dumps(
            {"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": [cell]}
        )
        assert (await rig.ask("POST", PATH, {"notebook": notebook, **more}))[0] == 200
    assert [asked.kernelspec for _, asked in rig.kernels.asked] == [None, "ir", "python3", None]
    assert {asked.cells for _, asked in rig.kernels.asked} == {(Cell("1 + 1"),)}


@pytest.mark.parametrize("about", [NDJSON, SSE])
async def test_a_failure_after_the_beginning_is_the_last_item_and_breaks_off(
    rig: Rig, about: dict[str, str]
) -> None:
    seen, received = asyncio.Event(), b""

    async def script(_: CallRequest, tell: Tell) -> CallResult:
        tell(QUEUED)
        await seen.wait()
        raise TimedOutError("over before the first cell")

    rig.kernels.script = script
    async with rig.client.post(PATH, json=CODE, headers=about) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            async for piece in answer.content.iter_any():
                received += piece
                seen.set()
    items = [
        json.loads(line.removeprefix(b"data: ")) for line in received.splitlines() if b"{" in line
    ]
    assert [item.get("event", item.get("kind")) for item in items] == ["queued", "timed_out"]
    assert about is NDJSON or b"event: problem\n" in received


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_when_the_control_plane_is_replaced_a_call_is_left_and_not_cancelled(
    short_tmp: Path, accept: str
) -> None:
    hold, ended = asyncio.Event(), asyncio.Event()

    async def script(_: CallRequest, tell: Tell) -> CallResult:
        tell(QUEUED)
        await hold.wait()
        ended.set()
        return result()

    async with api_rig(short_tmp, drain_seconds=0.05) as rig:
        rig.kernels.script = script
        asking = asyncio.create_task(rig.ask("POST", PATH, CODE, headers={"Accept": accept}))
        await until(lambda: rig.kernels.asked)
        await rig.runner.cleanup()
        if accept == "application/json":
            status, problem, _ = await asking
            assert (status, problem["kind"]) == (503, "interrupted")
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await asking
        hold.set()
        async with asyncio.timeout(DEADLINE):
            await ended.wait()


# -- clients of server-sent events that were cut off: told the rest, once, and nothing runs again --


async def follow(rig: Rig, seen: str | None, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Ask, and take so many events: their ids and data."""
    found = []
    headers = SSE if seen is None else {**SSE, "Last-Event-ID": seen}
    async with (
        asyncio.timeout(DEADLINE),
        rig.client.post(PATH, json=CODE, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        while len(found) < count:
            frame = (await answer.content.readuntil(b"\n\n")).decode().strip()
            lines = dict(line.split(": ", 1) for line in frame.split("\n"))
            found.append((lines["id"], json.loads(lines["data"])))
            if lines["event"] == "done":
                break
        answer.close()
    return found


def merged(events: list[dict[str, Any]]) -> list[Any]:
    """Return what was told, however the output was cut: bytes of each stream, and all else in
    its order.
    """
    output: dict[tuple[str, str], bytes] = {}
    for event in events:
        if event["event"] == "output":
            data = event["text"].encode() if "text" in event else base64.b64decode(event["base64"])
            output[event["id"], event["stream"]] = (
                output.get((event["id"], event["stream"]), b"") + data
            )
    return [output, *(event for event in events if event["event"] != "output")]


async def test_one_that_was_cut_off_at_every_event_has_it_all_exactly_once(rig: Rig) -> None:
    step, runs = asyncio.Event(), list[CallRequest]()
    folder = rig.kernels.cells_dir / SESSION
    folder.mkdir(mode=0o700)

    async def go_on() -> None:
        for _ in range(2):
            step.set()
            await until(lambda: not step.is_set())

    async def pause() -> None:
        await step.wait()
        step.clear()

    async def story(request: CallRequest, tell: Tell) -> CallResult:
        runs.append(request)
        tell(QUEUED)
        for index, cell in enumerate(("c1", "c2")):
            writer = Writer(str(folder), cell, 1 << 30)
            writer.begin("code")
            tell({"event": "cell_started", "index": index, "id": cell, "kernel": SESSION})
            writer.write("stdout", b"one \xe2")
            tell({"event": "notice", "text": "in the middle"})
            await pause()
            writer.write("stderr", b"\xff")
            writer.display({"text/plain": "first"}, {}, None)
            writer.display({"text/plain": "second"}, {}, None)
            writer.write("stdout", b"\x82\xac two\n")
            writer.end("ok", execution_count=1, duration=0.1)
            writer.close()
            tell({"event": "cell_done", "cell": ok(cell).document()})
        return result(ok("c1"), ok("c2"))

    rig.kernels.script = story
    whole, _ = await asyncio.gather(follow(rig, None, 1000), go_on())
    told, going = list[tuple[str, dict[str, Any]]](), asyncio.ensure_future(go_on())
    while not told or told[-1][1]["event"] != "done":
        told += await follow(rig, told[-1][0] if told else None, 1)
    await going
    expected = merged([event for _, event in whole])
    assert merged([event for _, event in told]) == expected
    assert expected[0] == {
        (cell, stream): said
        for cell in ("c1", "c2")
        for stream, said in (("stdout", "one € two\n".encode()), ("stderr", b"\xff"))
    }
    assert len({identifier for identifier, _ in told}) == len(told)
    status, body, _ = await rig.ask(
        "POST", PATH, CODE, headers={**SSE, "Last-Event-ID": told[-1][0]}
    )
    assert (status, body) == (204, b""), "which tells clients not to come back"
    assert len(runs) == 2


async def test_who_does_not_come_back_cancels_the_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "RESUME_SECONDS", 0.2)
    cancelled = asyncio.Event()

    async def waits(_: CallRequest, tell: Tell) -> CallResult:
        tell(QUEUED)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    rig.kernels.script = waits
    [(identifier, _)] = await follow(rig, None, 1)
    async with asyncio.timeout(DEADLINE):
        await cancelled.wait()
    assert (await rig.ask("POST", PATH, CODE, headers={**SSE, "Last-Event-ID": identifier}))[
        0
    ] == 404


class FakeChannels:
    """Channels that say once that they can be heard, and fail when they are told to."""

    def __init__(self) -> None:
        self.too_much = asyncio.Event()
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[Message]:
        yield make("status", {"execution_state": "idle"}, "kernel", "iopub")
        await self.too_much.wait()
        raise OverloadedError("too much waits")

    async def close(self) -> None:
        self.closed += 1


async def test_a_front_end_may_send_what_it_likes(rig: Rig, short_tmp: Path) -> None:
    book = short_tmp / "book.ipynb"
    book.touch()
    body = {"name": "ir", "path": str(book), "notebook": {"x": 1}, "env": {"KERNEL_X": "1"}}
    for sent in (
        body,
        None,
        *({"path": path} for path in ("relative/book.ipynb", "/nowhere/at/all/book.ipynb", "")),
    ):
        assert (await rig.ask("POST", "/jupyter/api/kernels", sent))[0] == 201
    first, *others = (request for _, request in rig.kernels.asked)
    assert (first.owner, first.kernelspec, first.cwd) == (Owner.JUPYTER_API, "ir", str(short_tmp))
    assert (first.env, first.backend) == ({"KERNEL_X": "1"}, BackendName.DIRECT)
    assert {request.cwd for request in others} == {None}


@pytest.mark.parametrize(
    ("why", "states", "code"),
    [
        ("it reads too slowly", ["idle"], aiohttp.WSCloseCode.TRY_AGAIN_LATER),
        ("the daemon closes", ["idle"], aiohttp.WSCloseCode.GOING_AWAY),
        ("its session is gone", ["idle", "dead"], aiohttp.WSCloseCode.OK),
    ],
)
async def test_a_front_end_is_sent_away_with_the_reason(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, why: str, states: list[str], code: int
) -> None:
    joined: list[FakeChannels] = []

    async def open_channels(_: Path) -> FakeChannels:
        joined.append(FakeChannels())
        return joined[-1]

    monkeypatch.setattr("supervisord_py.kernels.channels.open_channels", open_channels)
    view, told = rig.kernels.put("work"), list[str]()
    handle = rig.kernels.handles[view.id] = FakeHandle()
    async with rig.client.ws_connect(f"/jupyter/api/kernels/{view.key.jupyter_id}/channels") as ws:
        await until(lambda: joined)
        closing = (
            asyncio.ensure_future(rig.runner.cleanup()) if why == "the daemon closes" else None
        )
        if why == "it reads too slowly":
            joined[0].too_much.set()
        elif why == "its session is gone":
            rig.kernels.handles.clear()
            rig.kernels.views.clear()
            handle.died.set_result(None)
        async with asyncio.timeout(DEADLINE):
            while (item := await ws.receive()).type is aiohttp.WSMsgType.TEXT:
                told.append(unpack(item.data, None).content["execution_state"])
        assert (told, ws.close_code) == (states, code)
    if closing is not None:
        await closing
    await until(lambda: joined[0].closed == 1)
