"""The way to one instance: pooled HTTP connections that are never older than the tool keeps them.

Law: a request is sent once. One whose connection broke before an answer may have been worked on: a tool that dies of a
request would otherwise get the same one again, from the backlog, in its next life. So a pooled connection is given up
long before a server's own keep-alive ends (uvicorn, hypercorn and node: 5 s, gunicorn: 2 s), which costs a connect on
the loopback, a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any

import aiohttp

from supervisord_py.tools.schema import differences

if TYPE_CHECKING:
    from collections.abc import Mapping


IDLE_SECONDS = 1.0
_CANCEL_SECONDS = 1.0
_LARGE_BYTES = 256 * 1024
NOT_OFFERED = frozenset({404, 405, 501})


class Upstream:
    """HTTP to one instance on 127.0.0.1:port. Made where a loop runs; `close` it with the instance."""

    def __init__(self, port: int) -> None:
        self._session = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}",
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type"),
        )

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | aiohttp.Payload | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request and return the answer with its head read; close it, or read it to its end.

        Raises aiohttp.ClientError, OSError: no answer, or one that is not HTTP.
        """
        data: Any = body
        if self._session.closed:  # aiohttp's own word for it is a RuntimeError
            raise aiohttp.ClientConnectionError("the instance has ended")
        if isinstance(body, bytes) and len(body) > _LARGE_BYTES:
            data = io.BytesIO(body)  # goes out in pieces, not at one stroke that holds up the loop
        return await self._session.request(method, path, data=data, headers=headers, allow_redirects=False)

    @property
    def is_closed(self) -> bool:
        return self._session.closed

    async def cancel(self, run_id: str) -> bool:
        """Ask the tool to give up a run. False when it does not offer that, or does not answer within a second."""
        if self.is_closed:
            return False
        call = self._session.post(
            "/cancel", params={"run_id": run_id}, timeout=aiohttp.ClientTimeout(total=_CANCEL_SECONDS)
        )
        try:
            async with call as answer:
                return answer.status not in NOT_OFFERED
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        await self._session.close()


async def read_up_to(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """Read at most `limit` bytes and a little; say whether that was all."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            return b"".join(parts), False
    return b"".join(parts), True


SHOWN = 20
_SECONDS = 10.0
_MAX_BYTES = 4 * 1024 * 1024


async def schema_drift(upstream: Upstream, manifest: Any) -> tuple[str, ...]:
    """Ask a ready tool for `/schema` and return where it differs from its manifest; empty when it agrees.

    A tool that does not answer, or not with JSON, differs as a whole; a tool without `/schema` (404) has nothing to
    compare, and neither has one that could not be asked.
    """
    try:
        async with asyncio.timeout(_SECONDS), await upstream.send("GET", "/schema") as answer:
            if answer.status == 404:
                return ()
            if answer.status != 200:
                return (f"/: GET /schema answered {answer.status}",)
            raw, _ = await read_up_to(answer, _MAX_BYTES)
        served = json.loads(raw)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) or upstream.is_closed:
            return ()  # the question was never put: nothing is known
        return (f"/: GET /schema gave no JSON ({type(error).__name__})",)
    found = differences(manifest, served)
    return tuple(found[:SHOWN] + ([f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))
