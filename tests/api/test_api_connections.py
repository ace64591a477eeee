"""Connections and hostile clients: what is garbage is answered, and nobody blocks another."""

from __future__ import annotations

import asyncio

import pytest

from api.api_rig import DEADLINE, Rig
from supervisord_py.api.app import routed_path


@pytest.mark.parametrize(
    ("path", "unix", "tcp"),
    [
        ("/api", "/api", "/jupyter/api"),
        ("/api/kernels/a/x?y=1", "/api/kernels/a/x?y=1", "/jupyter/api/kernels/a/x?y=1"),
        ("/api/kernelspecs/python3", "/api/kernelspecs/python3", "/jupyter/api/kernelspecs/python3"),
        ("/api/kernelsx", "/api/kernelsx", "/api/kernelsx"),
        ("/api/status", "/api/status", "/api/status"),
        ("/px/api/kernels?cwd=/a", "/api/kernels?cwd=/a", "/api/kernels?cwd=/a"),
        ("/jupyter/api/kernels", "/jupyter/api/kernels", "/jupyter/api/kernels"),
    ],
)  # fmt: skip
def test_each_listener_has_its_reading(path: str, unix: str, tcp: str) -> None:
    assert (routed_path(path, is_tcp=False), routed_path(path, is_tcp=True)) == (unix, tcp)


@pytest.mark.parametrize(
    "head",
    [b"GET /api/hea", b"POST /api/tools/new HTTP/1.1\r\nHost: px\r\nContent-Length: 100\r\n\r\n{"],
    ids=["half a head", "half a body"],
)
async def test_half_a_request_that_ends_is_closed(rig: Rig, head: bytes) -> None:
    reader, writer = await rig.connect()
    writer.write(head)
    writer.write_eof()
    async with asyncio.timeout(DEADLINE):
        assert b" 200 " not in await reader.read()
    writer.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_body_that_is_not_coded_as_it_says_is_a_bad_request(rig: Rig, coding: str) -> None:
    headers = {"Content-Encoding": coding}
    status, problem, _ = await rig.ask("POST", "/api/tools/new", b'{"name": "x"}', headers)
    assert (status, problem["kind"]) == (400, "bad_request")
