"""Does a running tool declare what its `tool.json` declares? A warning at most, and never on the path of a request."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp

from supervisord_py.tools.declaring.difference import differences
from supervisord_py.tools.serving.answers import read_up_to
from supervisord_py.tools.serving.upstream import Call

if TYPE_CHECKING:
    from supervisord_py.tools.serving.upstream import Upstream

SHOWN = 20
_SECONDS = 10.0
_MAX_BYTES = 4 * 1024 * 1024
_OK = 200
_MISSING = 404
_QUESTION = Call("GET", "/schema", headers={"Accept": "application/json"})


async def schema_drift(upstream: Upstream, manifest: Any) -> tuple[str, ...]:
    """Ask a ready tool for `/schema` and return where it differs from its manifest; empty when it agrees.

    A tool that does not answer, or not with JSON, differs as a whole; a tool without `/schema` (404) has nothing to
    compare, and neither has one that could not be asked.
    """
    try:
        async with asyncio.timeout(_SECONDS), await upstream.send(_QUESTION) as answer:
            if answer.status == _MISSING:
                return ()
            if answer.status != _OK:
                return (f"/: GET /schema answered {answer.status}",)
            raw, _ = await read_up_to(answer, _MAX_BYTES)
        served = json.loads(raw)
    except aiohttp.ClientConnectorError:
        return ()  # the question was never put: nothing is known
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return (f"/: GET /schema gave no JSON ({type(error).__name__})",)
    found = differences(manifest, served)
    return tuple(found[:SHOWN] + ([f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))
