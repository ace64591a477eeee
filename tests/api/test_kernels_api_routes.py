"""`/api/kernels…` over kernels that do as they are told: shapes, names, status codes."""

from __future__ import annotations

import json
from typing import Any

from api.api_rig import Rig
from api.kernel_fakes import key_of
from supervisord_py.kernels.cell import KernelStarting, Notice, Queued
from supervisord_py.kernels.session import BackendName, StartRequest


async def test_a_start_is_201_and_the_second_time_200(rig: Rig) -> None:
    body = {
        "name": "work",
        "cwd": "/work",
        "interpreter": "/p",
        "backend": "gateway-local",
        "timeout": 5,
        "env": {"A": "1"},
    }
    status, document, _ = await rig.ask("POST", "/api/kernels", body)
    assert (status, document["schema"], document["name"]) == (201, "px.kernel/1", "work")
    assert document["connection_file"] == "/run/k/connection.json"
    assert rig.kernels.asked == [
        (
            "start",
            StartRequest(
                name="work",
                cwd="/work",
                interpreter="/p",
                backend=BackendName.GATEWAY_LOCAL,
                env={"A": "1"},
                timeout_seconds=5.0,
            ),
        )
    ]
    assert (await rig.ask("POST", "/api/kernels", body))[0] == 200


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
