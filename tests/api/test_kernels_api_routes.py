"""`/api/kernels…` over kernels that do as they are told: shapes, names, status codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api.api_rig import Rig
from api.kernel_fakes import key_of
from supervisord_py.kernels.cell import KernelStarting, Notice, Queued
from supervisord_py.kernels.session import BackendName, StartRequest

MEMBERS = set(
    """
    id name cwd interpreter backend state pid queued last_used started_at rss_bytes reason unit running instance
    restarts failure owner language kernelspec jupyter_id connection_file notices start_method cold_start_ms
    """.split()  # noqa: SIM905  # a page of names reads better so
)


def write_cell(folder: Path, cell_id: str, out: bytes, *records: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{cell_id}.out").write_bytes(out)
    (folder / f"{cell_id}.jsonl").write_text("".join(f"{record}\n" for record in records))


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


async def test_artifacts_come_with_their_type_and_no_other_file_does(rig: Rig) -> None:
    view = rig.kernels.put("work")
    folder = rig.kernels.cells_dir / view.id
    write_cell(folder, "c1", b"all of it", '{"kind":"begin","at":0,"t":1,"code":"x","pid":1}')
    (folder / "c1.20.png").write_bytes(b"\x89PNG")
    status, body, headers = await rig.get("/api/kernels/work/artifacts/c1.20.png")
    assert (status, body, headers["Content-Type"]) == (200, b"\x89PNG", "image/png")
    assert (await rig.get("/api/kernels/work/artifacts/c1"))[1] == b"all of it"
    assert (await rig.get("/api/kernels/work/artifacts/c1", Range="bytes=4-5"))[:2] == (206, b"of")
    for wrong in ("c1.jsonl", "..%2fpxd.db", "nope.1.png"):
        assert (await rig.get(f"/api/kernels/work/artifacts/{wrong}"))[0] == 404


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
