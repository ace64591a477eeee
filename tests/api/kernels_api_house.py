"""An API over a real room of kernels with a real keeper, on a Unix socket and on a loopback port with a token."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from api.api_rig import DEADLINE, FakeControl, FakeLauncher
from api.pipe_fakes import FakePipes
from kernels.room_house import RoomHouse, room_house
from supervisord_py.api.app import build_app, build_runner
from supervisord_py.api.context import ApiConfig, ApiContext, TcpAccess
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.config import ToolsConfig

TOKEN = "token-of-the-loopback-listener"  # noqa: S105  # one of a test


@dataclass
class KernelsApi:
    """A running API: `unix` and `tcp` are its clients, the latter with the token."""

    house: RoomHouse
    unix: aiohttp.ClientSession
    tcp: aiohttp.ClientSession
    port: int
    runner: web.AppRunner

    @property
    def cwd(self) -> str:
        return str(self.house.cwd)

    async def run(self, code: str, session: str = "default", **body: Any) -> dict[str, Any]:
        """Run a cell over the Unix socket."""
        path = f"/api/kernels/{session}/execute"
        document = {"code": code, "cwd": self.cwd, "timeout": 60, **body}
        async with self.unix.post(path, json=document) as answer:
            found: dict[str, Any] = await answer.json(content_type=None)
            return found

    async def get(self, path: str) -> Any:
        """Return the JSON of a path over the Unix socket."""
        async with self.unix.get(path) as answer:
            return await answer.json(content_type=None)


def _context(house: RoomHouse, tools: Path, tcp: TcpAccess) -> ApiContext:
    placement, config = house.rig.placement, house.config
    launcher = FakeLauncher(Catalog([tools]), ToolsConfig(tools, config.run_dir))
    return ApiContext(
        launcher=launcher,  # type: ignore[arg-type] # no tool is asked for here
        kernels=house.room,
        pipes=FakePipes(),  # type: ignore[arg-type] # same
        catalog=launcher.catalog,
        tools=launcher.config,
        ledger=house.ledger,
        events=house.events,
        placement=placement,
        control=FakeControl(str(tools.parent / "api.sock")),
        config=ApiConfig(
            state_dir=house.rig.folder / "state",
            run_dir=config.run_dir,
            cells_dir=config.cells_dir,
            tools_dir=tools,
            examples_dir=tools,
            tcp=tcp,
        ),
    )


@asynccontextmanager
async def kernels_api(folder: Path, **changes: Any) -> AsyncIterator[KernelsApi]:
    """Serve both doors until the end of the block."""
    async with room_house(folder, **changes) as house:
        tools = folder / "tools"
        tools.mkdir()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        runner = build_runner(build_app(_context(house, tools, TcpAccess(TOKEN, port))), shutdown_seconds=DEADLINE)
        await runner.setup()
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(folder / "api.sock"))
        await web.SockSite(runner, unix).start()
        await web.SockSite(runner, listener).start()
        connector = aiohttp.UnixConnector(str(folder / "api.sock"), limit=0)
        bearer = {"Authorization": f"token {TOKEN}"}
        try:
            async with (
                aiohttp.ClientSession("http://px", connector=connector) as ours,
                aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=bearer) as theirs,
            ):
                yield KernelsApi(house, ours, theirs, port, runner)
        finally:
            await runner.cleanup()
