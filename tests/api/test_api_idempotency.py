"""`Idempotency-Key`: one effect, however often it is sent."""

from __future__ import annotations

import asyncio
import hashlib
from operator import methodcaller
from typing import Any

import pytest
from aiohttp import web

from api.api_rig import Rig, until
from supervisord_py.api import tools
from supervisord_py.api.idempotency import claim
from supervisord_py.errors import OverloadedError, ToolFailedError
from supervisord_py.ledger.schema import AT_OPEN


class Tool:
    """Stands where the proxy is; counts what reaches it."""

    runs = 0
    failure: Exception | None = None

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gate = asyncio.Event()
        self.gate.set()

    async def forward(self, *_: Any, **__: Any) -> web.StreamResponse:
        self.runs += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return web.Response(status=201, content_type="image/png", body=b"png")

    async def run(self, verb: str = "run") -> tuple[int, Any, Any]:
        return await self.rig.ask("POST", f"/api/tools/x/{verb}", {}, {"Idempotency-Key": "k-1"})


@pytest.fixture
def tool(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Tool:
    rig.add_tool("x")
    stand_in = Tool(rig)
    monkeypatch.setattr(tools, "forward", stand_in.forward)
    return stand_in


async def test_after_a_crash_in_between_the_outcome_is_not_known(tool: Tool) -> None:
    """What a start finds unfinished was cut off."""
    ledger = tool.rig.context.ledger
    await claim(ledger, "k-1", "POST /api/tools/x/run", hashlib.sha256(b"\0{}").hexdigest())
    for statement in AT_OPEN:
        ledger.post(methodcaller("execute", statement))
    status, problem, _ = await tool.run()
    assert (status, problem["kind"], tool.runs) == (409, "interrupted_outcome_unknown", 0)


async def test_what_began_nothing_may_be_tried_again_and_a_failed_run_is_replayed_as_failed(tool: Tool) -> None:
    tool.failure = OverloadedError("The pool is full.", retry_after_seconds=3)
    assert (await tool.run())[0] == 429
    tool.failure = ToolFailedError("It exited.", unit="tool:x", code=3)
    await tool.run()
    tool.failure = None
    status, problem, headers = await tool.run()
    assert (status, problem["kind"], problem["code"], tool.runs) == (502, "tool_failed", 3, 2)
    assert headers["Idempotent-Replayed"] == "true"


async def test_an_answer_is_replayed_as_it_was_to_the_same_request_alone(tool: Tool) -> None:
    for _ in range(2):
        status, body, headers = await tool.run()
        assert (status, body, headers["Content-Type"], tool.runs) == (201, b"png", "image/png", 1)
    key = {"Idempotency-Key": "k-1"}
    assert (await tool.rig.ask("POST", "/api/tools/x/run", {"another": 1}, key))[0] == 422


async def test_a_stream_is_not_replayed(tool: Tool) -> None:
    assert (await tool.run("stream"))[0] == 201
    status, problem, _ = await tool.run("stream")
    assert (status, "not kept" in problem["detail"], tool.runs) == (409, True, 1)


async def test_a_run_whose_client_went_away_is_told_as_cancelled(tool: Tool) -> None:
    tool.gate.clear()
    first = asyncio.create_task(tool.run())
    await until(lambda: tool.runs)
    first.cancel()
    async with asyncio.timeout(30):
        while (kind := (await tool.run())[1]["kind"]) != "cancelled":
            assert kind == "conflict"
    assert tool.runs == 1
