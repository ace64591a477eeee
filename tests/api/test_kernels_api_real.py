"""Calls through the API into real kernels, and back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from api.kernels_api_house import KernelsApi, kernels_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def api(short_tmp: Path) -> AsyncIterator[KernelsApi]:
    """An API with nothing started yet."""
    async with kernels_api(short_tmp) as running:
        yield running


async def stream(api: KernelsApi, code: str, **body: Any) -> list[dict[str, Any]]:
    """Return every event of a streamed call."""
    document = {"code": code, "cwd": api.cwd, "timeout": 60, **body}
    headers = {"Accept": "application/x-ndjson"}
    async with api.unix.post("/api/kernels/default/execute", json=document, headers=headers) as answer:
        return [json.loads(line) async for line in answer.content]


async def test_a_session_keeps_its_variables_and_shows_everywhere(api: KernelsApi) -> None:
    first = await api.run("x = 41")
    second = await api.run("print(x + 1)")
    assert (second["status"], second["variables"], second["cells"][0]["text"]) == ("ok", "kept", "42\n")
    assert (first["cold_start_ms"] is not None, second["cold_start_ms"]) == (True, None)
    kernel = await api.get("/api/kernels/default")
    assert (kernel["id"], kernel["state"], kernel["cwd"]) == (second["kernel"], "idle", api.cwd)
    assert kernel["rss_bytes"] > 0
    assert json.loads(Path(kernel["connection_file"]).read_bytes())["transport"] == "ipc"
    (unit,) = (await api.get("/api/status"))["units"]
    assert (unit["unit"], unit["pid"], unit["state"]) == (kernel["unit"], kernel["pid"], "idle")
    cells = (await api.get("/api/kernels/default/cells"))["cells"]
    assert [(cell["code"], cell["status"]) for cell in cells] == [("x = 41", "ok"), ("print(x + 1)", "ok")]
    notebook = await api.get("/api/kernels/default/notebook")
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == ["x = 41", "print(x + 1)"]


async def test_a_stream_has_output_while_it_comes_and_the_answer_at_the_end(api: KernelsApi) -> None:
    events = await stream(api, "import sys\nprint('a'); print('b', file=sys.stderr); display({'n': 1})\n7")
    names = [event["event"] for event in events]
    assert names[-1] == "done"
    assert {"starting", "cell_started", "output", "result", "cell_done"} <= set(names)
    assert "".join(event["text"] for event in events if event["event"] == "output") == "a\nb\n"
    assert {event["stream"] for event in events if event["event"] == "output"} == {"stdout", "stderr"}
    assert events[-1]["result"]["cells"][0]["status"] == "ok"


async def test_output_is_whole_however_large_it_is(api: KernelsApi) -> None:
    answer = await api.run("print('x' * 3_000_000)")
    (cell,) = answer["cells"]
    assert (cell["truncated"], cell["total_bytes"]) == (True, 3_000_001)
    assert len(cell["text"]) < 100_000
    received = b""
    while True:
        path = f"/api/kernels/{answer['kernel']}/cells/{cell['id']}/output?offset={len(received)}"
        async with api.unix.get(path) as page:
            piece = await page.read()
            received += piece
            if not piece or page.headers["X-Complete"] == "true":
                break
    assert received == b"x" * 3_000_000 + b"\n"
    async with api.unix.get(f"/api/kernels/{answer['kernel']}/artifacts/{cell['artifact']}") as whole:
        assert await whole.read() == received


async def test_a_notebook_comes_back_executed(api: KernelsApi) -> None:
    def code(source: str) -> dict[str, Any]:
        return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}

    notebook = {
        "nbformat": 4,
        "nbformat_minor": 4,
        "metadata": {"kernelspec": {"name": "somebody-elses", "display_name": "x", "language": "python"}},
        "cells": [code("x = 20"), {"cell_type": "markdown", "metadata": {}, "source": "# hi"}, code("x + 22")],
    }
    body = {"notebook": json.dumps(notebook), "cwd": api.cwd, "timeout": 60}
    async with api.unix.post("/api/kernels/default/execute", json=body) as answer:
        document = await answer.json()
    executed = nbformat.reads(document["notebook"], 4)
    assert executed["cells"][2]["outputs"][0]["data"]["text/plain"] == "42"
    assert [cell["cell_type"] for cell in executed["cells"]] == ["code", "markdown", "code"]
    async with api.unix.post("/api/kernels/default/execute", json={"notebook": "{nope"}) as answer:
        assert (answer.status, (await answer.json(content_type=None))["kind"]) == (422, "invalid_input")


async def test_start_explain_restart_interrupt_stop(api: KernelsApi) -> None:
    async with api.unix.post("/api/kernels", json={"name": "w", "cwd": api.cwd, "explain": True}) as answer:
        explanation = await answer.json()
    assert (explanation["schema"], explanation["interpreter"]) == ("px.kernel-explanation/1", sys.executable)
    async with api.unix.post("/api/kernels", json={"name": "w", "cwd": api.cwd}) as answer:
        assert answer.status == 201
        first = await answer.json()
    async with api.unix.post("/api/kernels", json={"name": "w", "cwd": api.cwd}) as answer:
        assert answer.status == 200
    async with api.unix.post("/api/kernels/w/restart") as answer:
        assert (await answer.json())["instance"] != first["instance"]
    async with api.unix.post("/api/kernels/w/interrupt") as answer:
        assert (await answer.json())["running"] is None
    async with api.unix.delete("/api/kernels/w") as answer:
        assert (await answer.json())["survivors"] == []
    kernel = await api.get("/api/kernels/w")
    assert (kernel["state"], kernel["reason"], kernel["pid"]) == ("stopped", "stopped", None)
    assert (await api.get("/api/units/w/why"))["reason"] == "stopped"
