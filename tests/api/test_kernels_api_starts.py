"""`POST /api/kernels` as a stream: what is told of a build and a start, how it ends, that it goes on alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import Rig, api_rig, until
from api.kernel_fakes import key_of
from supervisord_py.kernels.cell import KernelStarting, Notice, Queued

PATH = "/api/kernels"
SESSION = key_of("default").id
NDJSON = {"Accept": "application/x-ndjson"}
BUILT = (Notice("building an overlay"), Notice("built it"), Queued(1), KernelStarting(SESSION, "/usr/bin/python3"))


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines() if line]


async def test_a_start_tells_what_is_built_and_ends_with_the_session(rig: Rig) -> None:
    rig.kernels.told = BUILT
    status, body, headers = await rig.ask("POST", PATH, {"name": "default"}, headers=NDJSON)
    *events, last = lines(body)
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert events == [
        {"event": "notice", "text": "building an overlay"},
        {"event": "notice", "text": "built it"},
        {"event": "queued", "position": 1},
        {"event": "starting", "kernel": SESSION, "interpreter": "/usr/bin/python3"},
    ]
    kernel = (await rig.get(f"{PATH}/{SESSION}"))[1]
    assert last == {"event": "done", "result": kernel}
    assert kernel["schema"] == "px.kernel/1"


async def test_a_start_goes_on_without_its_client(rig: Rig) -> None:
    rig.kernels.told, rig.kernels.gate = BUILT, asyncio.Event()
    async with rig.client.post(PATH, json={}, headers=NDJSON) as answer:
        await answer.content.readline()
        answer.close()
    rig.kernels.gate.set()
    await until(lambda: rig.kernels.views)
    assert rig.kernels.cancelled == 0


async def test_when_the_control_plane_is_replaced_a_start_is_left(short_tmp: Path) -> None:
    async with api_rig(short_tmp, drain_seconds=0.05) as rig:
        rig.kernels.told, rig.kernels.gate = BUILT, asyncio.Event()
        received = bytearray()

        async def ask() -> None:
            async with rig.client.post(PATH, json={}, headers=NDJSON) as answer:
                async for piece in answer.content.iter_any():
                    received.extend(piece)

        asking = asyncio.create_task(ask())
        await until(lambda: rig.kernels.asked)
        await rig.runner.cleanup()
        with pytest.raises(aiohttp.ClientPayloadError):
            await asking
        assert lines(received)[-1]["kind"] == "interrupted"
        assert rig.kernels.cancelled == 0
        rig.kernels.gate.set()
