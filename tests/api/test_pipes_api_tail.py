"""`…/executions/{id}/tail`: the same objects by WebSocket, SSE and NDJSON, from any offset, to the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from api.api_rig import Rig, until
from api.pipe_fakes import execution
from supervisord_py.api.streams import Decoder
from supervisord_py.ledger.pipe_executions import Status
from supervisord_py.pipes.output import FollowNews, FollowOutput, OutputStream

TAIL = "/api/pipes/digest/executions/7/tail"
OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR


def prepare(rig: Rig) -> None:
    rig.pipes.rows[7] = execution()
    rig.pipes.items = [
        FollowNews("status", execution(status=Status.RUNNING)),
        FollowOutput(OUT, 0, "grü".encode()[:3]),
        FollowOutput(ERR, 0, b"\xff"),
        FollowOutput(OUT, 3, "grü".encode()[3:] + b"n"),
        FollowOutput(ERR, 1, "ü".encode()[:1]),
    ]


def check(documents: list[dict[str, Any]]) -> None:
    assert [it["event"] for it in documents] == [
        "start", "status", "output", "output", "output", "output", "done",
    ]  # fmt: skip
    outputs = [it for it in documents if it["event"] == "output"]
    assert "".join(it["text"] for it in outputs if it["stream"] == "stdout") == "grün"
    assert [it.get("base64") for it in outputs if it["stream"] == "stderr"] == ["/w==", "ww=="]
    assert [(it["offset"], it["end"]) for it in outputs if it["stream"] == "stdout"] == [(0, 2), (2, 5)]
    assert (documents[-1]["execution"]["status"], documents[-1]["execution"]["truncated"]) == ("completed", False)


async def test_by_server_sent_events_that_can_be_resumed(rig: Rig) -> None:
    prepare(rig)
    status, body, _ = await rig.get(TAIL, **{"Last-Event-ID": "9"})
    assert status == 200
    assert rig.pipes.asked[-1] == ("follow", 7, (OUT, ERR), 9, 0)
    frames = body.decode().strip().split("\n\n")
    check([json.loads(frame.partition("data: ")[2]) for frame in frames])
    assert frames[4].startswith("id: 5-1\nevent: output\n")
    for bad in ("x", "1-", "1-2-3"):
        assert (await rig.get(TAIL, **{"Last-Event-ID": bad}))[0] == 400


async def test_by_websocket(rig: Rig) -> None:
    prepare(rig)
    async with rig.client.ws_connect(TAIL) as socket:
        documents = [json.loads(message.data) async for message in socket]
    check(documents)


async def test_the_end_of_the_daemon_ends_followers(rig: Rig) -> None:
    prepare(rig)
    rig.pipes.hold = asyncio.Event()
    async with rig.client.ws_connect(TAIL) as socket, rig.client.get(TAIL) as stream:
        await socket.receive_json()
        await stream.content.readline()
        await rig.runner.cleanup()
        await until(lambda: True)
        rest = [message.type async for message in socket]
        assert set(rest) <= {aiohttp.WSMsgType.TEXT}
        await stream.content.read()


@given(st.lists(st.text(max_size=5).map(lambda it: it.encode("utf-8", "surrogatepass")) | st.binary(max_size=4)))
def test_every_byte_is_told_once_and_in_order(pieces: list[bytes]) -> None:
    import base64

    decoder, offset, told = Decoder(), 0, []
    for piece in pieces:
        told += decoder.take(OUT.value, offset, piece)
        offset += len(piece)
    documents = [*told, *decoder.rest()]
    raw = [it["text"].encode() if "text" in it else base64.b64decode(it["base64"]) for it in documents]
    assert b"".join(raw) == b"".join(pieces)
    at = 0
    for document, data in zip(documents, raw, strict=True):
        assert (document["offset"], document["end"]) == (at, at + len(data))
        at += len(data)
