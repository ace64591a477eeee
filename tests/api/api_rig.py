"""An API on a real Unix socket: catalog, ledger, events and output are real, the launcher is
made of plain lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from api.fakes import STARTED, FakeKernels, FakeLauncher, FakePipes
from supervisord_py.api.app import serve
from supervisord_py.api.context import ApiConfig, ApiContext
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.keeper.logs import Segments
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.model import Caps, TreeStat
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig
from tool_folders import write_tool
from waiting import eventually as until

__all__ = ["until"]
DEADLINE = 60.0


@dataclass
class Rig:
    """A running API and everything behind it."""

    context: ApiContext
    client: aiohttp.ClientSession
    socket: Path
    runner: web.AppRunner

    def __getattr__(self, name: str) -> Any:
        """Return what its routes are given: `launcher`, `kernels`, `pipes`, `placement`,
        `control`.
        """
        return getattr(self.context, name)

    async def get(self, path: str, **headers: str) -> tuple[int, Any, CIMultiDict[str]]:
        return await self.ask("GET", path, headers=headers)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, CIMultiDict[str]]:
        """Return status, body (parsed where it is JSON) and headers."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self.client.request(method, path, data=raw, headers=headers) as answer:
            content = await answer.read()
            is_json = answer.content_type in {"application/json", "application/problem+json"}
            return answer.status, json.loads(content) if is_json else content, answer.headers.copy()

    def add_tool(self, name: str) -> Path:
        """Write a plain tool into the tools directory."""
        return write_tool(self.config.tools_dir, name)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a bare connection."""
        return await asyncio.open_unix_connection(str(self.socket))


@contextlib.asynccontextmanager
async def api_rig(root: Path, **config: Any) -> AsyncIterator[Rig]:
    """Serve an API under `root` until the end of the block."""
    state, logs, cells, tools = folders = [
        root / name for name in ("state", "logs", "cells", "tools")
    ]
    for folder in folders:
        folder.mkdir(mode=0o700)
    path = root / "pxd.sock"
    ledger = await Ledger.open(state / "pxd.db")
    events = await EventStream.open(ledger)
    known = {
        "daemon_id": "0a1b2c3d",
        "started_at": STARTED,
        "socket": str(path),
        "tools_dir": tools,
    }
    api = ApiConfig(**{**known, **config})
    of_tools = ToolsConfig(root, root, ToolsSettings(max_body_bytes=api.max_body_bytes))
    stats: dict[str, TreeStat] = {}

    async def stat(keys: Sequence[str]) -> dict[str, TreeStat]:
        return {key: stats[key] for key in keys if key in stats}

    caps = Caps(os.getpid(), STARTED, "boot", "subreaper", "sampled", 2)
    rooms: dict[str, Any] = {
        "launcher": FakeLauncher(Catalog([tools]), of_tools),
        "kernels": FakeKernels(cells),
        "pipes": FakePipes(),
        "placement": SimpleNamespace(
            log_dir=str(logs), caps=caps, stats=stats, stat=stat, is_silent=False
        ),
        "control": SimpleNamespace(stopping=False, degraded={}, stop=lambda: None),
    }
    context = ApiContext(ledger=ledger, events=events, config=api, **rooms)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        runner = await serve(context, listener)
        client = aiohttp.ClientSession(
            "http://px", connector=aiohttp.UnixConnector(str(path), limit=0)
        )
        try:
            yield Rig(context, client, path, runner)
        finally:
            await client.close()
            await runner.cleanup()
            events.close()
            await ledger.close()


@contextlib.contextmanager
def output(rig: Rig, unit: str) -> Iterator[Segments]:
    """Write a unit's output as the keeper does."""
    segments = Segments(f"{rig.placement.log_dir}/{unit.replace(':', '/')}", 1 << 20, 1 << 30)
    segments.open()
    yield segments
    segments.close()
