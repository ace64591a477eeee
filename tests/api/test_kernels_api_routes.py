"""`/api/kernels…` over kernels that do as they are told: shapes, names, status codes."""

from __future__ import annotations

import json
from typing import Any

from api.api_rig import Rig
from api.kernel_fakes import key_of
from supervisord_py.kernels.session import StartRequest

PATH = "/api/kernels"
SESSION = key_of("default").id
NDJSON = {"Accept": "application/x-ndjson"}
BUILT: Any = (
    {"event": "notice", "text": "building an overlay"},
    {"event": "queued", "position": 1},
    {"event": "starting", "kernel": SESSION, "interpreter": "/usr/bin/python3"},
)


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines() if line]


async def test_a_start_tells_what_is_built_and_ends_with_the_session(rig: Rig) -> None:
    rig.kernels.told = BUILT
    body = {"name": "default", "cwd": "/work", "interpreter": "/p", "timeout": 5, "env": {"A": "1"}}
    status, content, headers = await rig.ask("POST", PATH, body, headers=NDJSON)
    *events, last = lines(content)
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert events == list(BUILT)
    kernel = (await rig.get(f"{PATH}/{SESSION}"))[1]
    assert last == {"event": "done", "result": kernel}
    assert (kernel["schema"], kernel["connection_file"]) == ("px.kernel/1", "/run/k/connection.json")
    [(_, asked)] = rig.kernels.asked
    assert asked == StartRequest("default", "/work", "/p", env={"A": "1"}, timeout_seconds=5.0)
    assert (await rig.ask("POST", PATH, body))[0] == 200, "it runs already; else 201"
