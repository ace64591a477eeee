"""Starts and calls through the API: what the room is asked, what clients are told, and when a call ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import Rig, api_rig, until
from api.kernel_fakes import Tell, result
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
