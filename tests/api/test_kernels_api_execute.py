"""Calls through the API: what the room is asked, what clients are told, and when a call ends."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig, api_rig, until
from api.kernel_fakes import Tell, key_of, result
from kernels.cell_folder import Writer
from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.cell import (
    CallRequest,
    CallResult,
    Cell,
    Queued,
)
from supervisord_py.kernels.session import BackendName

PATH = "/api/kernels/default/execute"
SESSION = key_of("default").id
PYTHON = "/usr/bin/python3"
NDJSON = {"Accept": "application/x-ndjson"}


def writer(rig: Rig, cell_id: str) -> Writer:
    folder = rig.kernels.cells_dir / SESSION
    folder.mkdir(mode=0o700, exist_ok=True)
    return Writer(str(folder), cell_id, 1 << 30)


def request_of(rig: Rig) -> CallRequest:
    found: CallRequest = next(value for what, value in rig.kernels.asked if what == "execute")
    return found


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines() if line]


async def test_a_call_says_all_that_the_body_said(rig: Rig) -> None:
    body = {
        "cells": [{"code": "a = 1", "title": "set"}, {"code": "a"}],
        "cwd": "/work",
        "timeout": 5,
        "reset": True,
        "per_call": True,
        "interpreter": "/p",
        "kernelspec": "python3",
        "backend": "gateway-external",
        "language": "python",
        "environ": {"VIRTUAL_ENV": "/v"},
    }

    async def started_cold(_: CallRequest, __: Tell) -> CallResult:
        return result(cold_start_ms=250)

    rig.kernels.script = started_cold
    before, path = asyncio.get_running_loop().time(), "/api/kernels/kernel:work/execute"
    status, _, headers = await rig.ask("POST", path, body, headers={"X-Px-Instance": "me"})
    asked = request_of(rig)
    assert (status, headers["X-Px-Cold-Start"]) == (200, "250")
    assert before <= asked.arrived_at <= asyncio.get_running_loop().time()
    assert (asked.session, asked.cells) == ("work", (Cell("a = 1", "set"), Cell("a")))
    assert (asked.cwd, asked.timeout_seconds, asked.reset, asked.per_call) == ("/work", 5.0, True, True)
    assert (asked.interpreter, asked.kernelspec, asked.backend) == ("/p", "python3", BackendName.GATEWAY_EXTERNAL)
    assert (asked.language, asked.environ, asked.caller()) == ("python", {"VIRTUAL_ENV": "/v"}, "me")


async def test_the_callers_instance_is_read_from_its_process(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer of this test is this test: its environment, as the kernel saw it at exec, bears no mark."""
    await rig.ask("POST", PATH, {"code": "1"})
    assert request_of(rig).caller() is None
    rig.kernels.asked.clear()
    monkeypatch.setattr("psutil.Process.environ", lambda _: {"PX_INSTANCE": "00000000.X"})
    await rig.ask("POST", PATH, {"code": "1"})
    assert request_of(rig).caller() == "00000000.X"
    for pid in (os.getpid(), os.getppid()):
        rig.kernels.asked.clear()
        rig.kernels.put("ahead", pid=pid, instance="00000000.Y")
        await rig.ask("POST", PATH, {"code": "1"})
        assert request_of(rig).caller() == "00000000.Y", "a kernel that was started ahead bears another mark"


def notebook(*sources: str, spec: str | None = None, language: str = "python") -> str:
    kernelspec = {"name": spec, "display_name": "x", "language": language} if spec else None
    cells = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
        for source in sources
    ]
    metadata = {"kernelspec": kernelspec} if kernelspec else {}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": cells})


@pytest.mark.parametrize(
    ("spec", "language", "more", "taken"),
    [
        (None, "python", {}, None),
        ("python3", "python", {}, None),
        ("an-environment-elsewhere", "python", {}, None),
        ("ir", "R", {}, "ir"),
        ("julia-9", "julia", {}, "julia-9"),
        ("ir", "R", {"kernelspec": "python3"}, "python3"),
        ("ir", "R", {"interpreter": "/p"}, None),
    ],
)
async def test_a_notebook_says_which_kernelspec_it_wants(
    rig: Rig, spec: str | None, language: str, more: dict[str, str], taken: str | None
) -> None:
    body = {"notebook": notebook("1 + 1", spec=spec, language=language), **more}
    status, document, _ = await rig.ask("POST", PATH, body)
    assert (status, request_of(rig).cells, request_of(rig).kernelspec) == (200, (Cell("1 + 1"),), taken)
    assert json.loads(document["notebook"])["cells"][0]["execution_count"] is None
    assert document["notices"] == (
        [f"The notebook names the kernelspec {spec!r}, which is not installed here: its cells ran in {PYTHON} instead."]
        if spec == "an-environment-elsewhere"
        else []
    )


async def test_a_failure_after_the_beginning_is_the_last_line_and_breaks_off(rig: Rig) -> None:
    seen = asyncio.Event()

    async def script(_: CallRequest, tell: Tell) -> CallResult:
        tell(Queued(1))
        await seen.wait()
        raise TimedOutError("over before the first cell")

    rig.kernels.script = script
    received = bytearray()

    async def ask() -> None:
        async with rig.client.post(PATH, json={"code": "1"}, headers=NDJSON) as answer:
            async for piece in answer.content.iter_any():
                received.extend(piece)
                seen.set()

    with pytest.raises(aiohttp.ClientPayloadError):
        await ask()
    assert [line.get("event", line.get("kind")) for line in lines(received)] == ["queued", "timed_out"]


async def test_a_client_that_leaves_a_stream_cancels_its_call(rig: Rig) -> None:
    hanging = asyncio.Event()

    async def script(_: CallRequest, tell: Tell) -> CallResult:
        tell(Queued(1))
        try:
            await asyncio.Event().wait()
        finally:
            hanging.set()
        raise AssertionError

    rig.kernels.script = script
    async with rig.client.post(PATH, json={"code": "1"}, headers=NDJSON) as answer:
        await answer.content.readline()
        answer.close()
    await asyncio.wait_for(hanging.wait(), DEADLINE)


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_when_the_control_plane_is_replaced_a_call_is_left_and_not_cancelled(
    short_tmp: Path, accept: str
) -> None:
    ended: list[str] = []
    hold = asyncio.Event()

    async with api_rig(short_tmp, drain_seconds=0.05) as rig:

        async def script(_: CallRequest, tell: Tell) -> CallResult:
            tell(Queued(1))
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
