"""An API on a real Unix socket: catalog, ledger, events and output are real, the launcher is made of plain lists."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from api.kernel_fakes import FakeKernels
from api.pipe_fakes import FakePipes
from supervisord_py.api.app import serve
from supervisord_py.api.context import ApiConfig, ApiContext, DaemonFacts
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import PxError
from supervisord_py.keeper.protocol import INDEX_RECORD
from supervisord_py.ledger.events import EventJournal
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.model import Caps, Reason, StopReport, TreeStat
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig

DEADLINE = 60.0
STDOUT, STDERR, GAP = 1, 2, 3


STATE: dict[str, Any] = {
    **dict.fromkeys(("reason", "pid", "last_used", "config_error", "instance", "cold_start_ms", "failure")),
    **dict.fromkeys(("in_flight", "restarts", "waiting"), 0),
    "state": "ready", "port": 4711, "started_at": 1_800_000_000.0, "pinned": False, "start_method": "spawn",
    "warnings": (), "survivors": (),
}  # fmt: skip


@dataclass
class FakeLauncher:
    """Does what it is told, remembers what it was told, and fails as told."""

    catalog: Catalog
    config: ToolsConfig
    states: dict[str, SimpleNamespace] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    failure: PxError | None = None
    gate: asyncio.Event | None = None
    cancelled: int = 0

    def import_seconds(self) -> tuple[()]:
        return ()

    def put(self, name: str, **facts: Any) -> None:
        known = vars(self.states[name]) if name in self.states else {**STATE, "unit": f"tool:{name}", "name": name}
        self.states[name] = SimpleNamespace(**{**known, **facts})

    def snapshot(self, name: str | None = None) -> tuple[SimpleNamespace, ...]:
        for entry in self.catalog.entries():
            if entry.name not in self.states:
                self.put(entry.name, state="cold", port=None, started_at=None, start_method=None)
        return tuple(state for state in self.states.values() if name in {None, state.name})

    async def _did(self, *call: str) -> None:
        self.calls.append(call)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure is not None:
            raise self.failure

    async def warm(self, name: str, *, timeout_seconds: float | None = None) -> None:
        await self._did("warm", name, str(timeout_seconds))
        self.put(name, state="ready", pid=os.getpid(), instance="00000000.A")

    async def stop(self, name: str, reason: Reason = Reason.STOPPED) -> StopReport:
        await self._did("stop", name, str(reason))
        self.put(name, state="cold", pid=None, reason=str(reason), instance=None)
        return StopReport(name)

    async def pin(self, name: str, *, forever: bool) -> None:
        await self._did("pin", name, str(forever))

    async def refresh(self) -> None:
        self.calls.append(("refresh",))

    async def unpin(self, name: str) -> None:
        await self._did("unpin", name)


@dataclass
class FakePlacement:
    """A placement that measures what it is told."""

    log_dir: str
    caps: Caps = field(default_factory=lambda: Caps(os.getpid(), 1_800_000_000.0, "boot", "subreaper", "sampled", 2))
    stats: dict[str, TreeStat] = field(default_factory=dict)

    async def stat(self, keys: Sequence[str], *, shared_once: bool = False) -> dict[str, TreeStat]:
        return {key: self.stats[key] for key in keys if key in self.stats}


@dataclass
class FakeControl:
    """The composition root, as far as the API sees it."""

    socket: str
    stopping: bool = False

    def __post_init__(self) -> None:
        self.facts = DaemonFacts("1.2.3", "0a1b2c3d", self.socket, os.getpid(), 1_800_000_000.0)

    def settings(self) -> Sequence[dict[str, Any]]:
        return ({"key": "tools.warm_keep_max", "value": 5, "origin": "default"},)

    def degradations(self) -> Sequence[dict[str, str]]:
        return ()

    async def reload(self) -> dict[str, Any]:
        return {"changed": ["tools.warm_keep_max"], "needs_restart": [], "warnings": []}

    async def restart(self, *, everything: bool) -> None:
        raise AssertionError("no test asks for it")

    def stop(self) -> None:
        """Nothing: the test has no daemon."""


@dataclass
class Rig:
    """A running API and everything behind it."""

    context: ApiContext
    launcher: FakeLauncher
    kernels: FakeKernels
    pipes: FakePipes
    placement: FakePlacement
    control: FakeControl
    client: aiohttp.ClientSession
    socket: Path
    tools_dir: Path
    runner: web.AppRunner

    async def get(self, path: str, **headers: str) -> tuple[int, Any, CIMultiDict[str]]:
        return await self.ask("GET", path, headers=headers)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, CIMultiDict[str]]:
        """Return status, body (parsed where it is JSON) and headers."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self.client.request(method, path, data=raw, headers=headers) as answer:
            content = await answer.read()
            parsed = (
                json.loads(content)
                if "json" in answer.content_type and "ndjson" not in answer.content_type
                else content
            )
            return answer.status, parsed, answer.headers.copy()

    def add_tool(self, name: str, **manifest: Any) -> Path:
        """Write a plain tool into the tools directory."""
        folder = self.tools_dir / name
        folder.mkdir()
        document = {"name": name, "version": "1", "description": f"{name} for tests", "input": {}, "output": {}}
        (folder / "tool.json").write_text(json.dumps({**document, **manifest}))
        (folder / "main.py").write_text("")
        return folder

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a bare connection."""
        return await asyncio.open_unix_connection(str(self.socket))


@contextlib.asynccontextmanager
async def api_rig(root: Path, **config: Any) -> AsyncIterator[Rig]:
    """Serve an API under `root` until the end of the block."""
    folders = {name: root / name for name in ("run", "state", "logs", "cells", "tools")}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    path = folders["run"] / "pxd.sock"
    ledger = await Ledger.open(folders["state"] / "pxd.db")
    events = await EventStream.open(EventJournal(ledger))
    config = {**{f"{name}_dir": folders[name] for name in ("state", "run", "cells", "tools")}, **config}
    settings = ToolsSettings(max_body_bytes=config.get("max_body_bytes", 16 * 1024 * 1024))
    tools = ToolsConfig(root, folders["run"], settings)
    launcher = FakeLauncher(Catalog([folders["tools"]]), tools)
    kernels = FakeKernels(folders["cells"])
    pipes = FakePipes()
    placement = FakePlacement(str(folders["logs"]))
    control = FakeControl(str(path))
    context = ApiContext(
        launcher=launcher,  # type: ignore[arg-type] # the fake has what the API uses
        kernels=kernels,  # type: ignore[arg-type] # same
        pipes=pipes,  # type: ignore[arg-type] # same
        ledger=ledger,
        events=events,
        placement=placement,  # type: ignore[arg-type] # same
        control=control,
        config=ApiConfig(**config),
    )
    try:
        async with serving(context, path) as (runner, client):
            yield Rig(context, launcher, kernels, pipes, placement, control, client, path, folders["tools"], runner)
    finally:
        events.close()
        await ledger.close()


@contextlib.asynccontextmanager
async def serving(context: ApiContext, path: Path) -> AsyncIterator[tuple[web.AppRunner, aiohttp.ClientSession]]:
    """Serve a context on a Unix socket, with a client that knows where."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    runner = await serve(context, listener)
    client = aiohttp.ClientSession("http://px", connector=aiohttp.UnixConnector(str(path), limit=0))
    try:
        yield runner, client
    finally:
        await client.close()
        await runner.cleanup()


class Output:
    """Writes a unit's segments as the keeper does (format: keeper/protocol.py)."""

    def __init__(self, root: Path, unit: str) -> None:
        kind, _, name = unit.partition(":")
        self.folder = root / kind / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.position = 0
        self.begin = 0

    def write(self, data: bytes, stream: int = STDOUT, *, moment: float | None = None, instance: int = 1) -> None:
        stem = f"{self.folder}/{self.begin:020d}"
        with open(f"{stem}.log", "ab") as log:
            log.write(data)
        self._index(len(data), stream, moment, instance)
        self.position += len(data)

    def gap(self, lost: int) -> None:
        self._index(lost, GAP, None, 1)

    def _index(self, length: int, stream: int, moment: float | None, instance: int) -> None:
        stem = f"{self.folder}/{self.begin:020d}"
        when = time.time() if moment is None else moment
        open(f"{stem}.log", "ab").close()
        with open(f"{stem}.idx", "ab") as index:
            index.write(struct.pack(INDEX_RECORD, self.position, when, length, instance, stream, 0))


async def until(condition: Any, seconds: float = DEADLINE) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.01)
