"""Jupyter's API: its documents, its WebSocket, and a real jupyter_server that has us as its gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from api.api_rig import DEADLINE, FakeControl, FakeLauncher, until
from api.pipe_fakes import FakePipes
from kernels.room_house import RoomHouse, room_house
from lean_module import lean_module
from supervisord_py.api.app import build_app, build_runner
from supervisord_py.api.context import ApiConfig, ApiContext, TcpAccess
from supervisord_py.kernels.wire import V1, Message, execute_content, make, pack, unpack
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig

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


@pytest.fixture
async def api(short_tmp: Path) -> AsyncIterator[KernelsApi]:
    """An API with nothing started yet."""
    async with kernels_api(short_tmp) as running:
        yield running


def run(code: str) -> Message:
    return make("execute_request", execute_content(code), "s")


async def say(ws: aiohttp.ClientWebSocketResponse, message: Message) -> None:
    framed = pack(message, ws.protocol)
    await (ws.send_str(framed) if isinstance(framed, str) else ws.send_bytes(framed))


async def hear(ws: aiohttp.ClientWebSocketResponse, stop: Callable[[Message], bool]) -> list[Message]:
    """Return what comes, up to the message that is waited for; [] at the end when the socket closes before."""
    heard: list[Message] = []
    async with asyncio.timeout(DEADLINE):
        while not heard or not stop(heard[-1]):
            item = await ws.receive()
            assert item.type in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}, (item, heard)
            heard.append(unpack(item.data, ws.protocol))
    return heard


async def hear_all(ws: aiohttp.ClientWebSocketResponse, asked: Message) -> list[Message]:
    """Return what comes until a request was answered and its output is over: channels are not in step."""
    answered, is_over = is_kind("execute_reply"), is_state("idle")
    heard: list[Message] = []
    while not (any(map(answered, heard)) and any(is_over(one) and belongs(one, asked) for one in heard)):
        heard += await hear(ws, lambda one: answered(one) or is_over(one))
    return heard


def belongs(heard: Message, asked: Message) -> bool:
    """Say whether a message came of a request."""
    return bool(heard.parent_id == asked.header["msg_id"])


def is_kind(kind: str) -> Callable[[Message], bool]:
    return lambda message: message.type == kind


def said(heard: list[Message]) -> str:
    """Return the text of all streams, in however many pieces it came."""
    return "".join(one.content["text"] for one in heard if is_kind("stream")(one))


def is_state(state: str) -> Callable[[Message], bool]:
    return lambda message: message.content.get("execution_state") == state


async def begin(api: KernelsApi, **body: Any) -> dict[str, Any]:
    env = {"KERNEL_WORKING_DIR": api.cwd}
    async with api.tcp.post("/api/kernels", json={"name": "python3", "env": env, **body}) as answer:
        assert answer.status == 201, await answer.text()
        model: dict[str, Any] = await answer.json()
        assert answer.headers["Location"].endswith(f"/api/kernels/{model['id']}")
        return model


async def test_a_kernel_is_made_shown_interrupted_restarted_and_ended(api: KernelsApi) -> None:
    model = await begin(api)
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert (model["name"], model["execution_state"], model["connections"]) == ("python3", "idle", 0)
    assert uuid.UUID(model["id"])
    (kernel,) = (await api.get("/api/kernels"))["kernels"]
    assert (kernel["owner"], kernel["jupyter_id"], kernel["cwd"]) == ("jupyter_api", model["id"], api.cwd)
    assert kernel["name"].startswith("jupyter-")
    path = f"/api/kernels/{model['id']}"
    async with api.tcp.get(path) as answer:
        assert (await answer.json())["id"] == model["id"]
    async with api.tcp.get("/api/kernels") as answer:
        assert [one["id"] for one in await answer.json()] == [model["id"]]
    async with api.tcp.post(f"{path}/interrupt") as answer:
        assert answer.status == 204
    async with api.tcp.post(f"{path}/restart") as answer:
        assert (answer.status, (await answer.json())["id"]) == (200, model["id"])
    async with api.tcp.delete(path) as answer:
        assert answer.status == 204
    for method in ("GET", "DELETE"):
        async with api.tcp.request(method, path) as answer:
            problem = await answer.json(content_type=None)
            assert (answer.status, problem["message"]) == (404, f"Kernel does not exist: {model['id']}")


async def test_each_door_has_its_own_api_and_both_have_both_by_prefix(api: KernelsApi) -> None:
    async with api.tcp.get("/px/api/kernels") as answer:
        assert (await answer.json())["schema"] == "px.kernels/1"
    async with api.unix.get("/jupyter/api/kernels") as answer:
        assert await answer.json() == []
    async with api.tcp.get("/api/status") as answer:
        assert (await answer.json())["schema"] == "px.status/1"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/kernels", {"Authorization": f"token {TOKEN}"}, 200),
        ("/api/kernels", {"Authorization": f"Bearer {TOKEN}"}, 200),
        (f"/api/kernels?token={TOKEN}", {}, 200),
        (f"/jupyter/api/kernels?token={TOKEN}", {}, 200),
        ("/api/kernels", {}, 403),
        ("/api/kernels?token=wrong", {}, 403),
        (f"/api/kernels?token={TOKEN}", {"Authorization": "token wrong"}, 403),
        (f"/api/status?token={TOKEN}", {}, 403),
        ("/api/kernels", {"Authorization": f"token {TOKEN}", "Origin": "http://evil.example"}, 403),
        ("/api/kernels", {"Authorization": f"token {TOKEN}", "Host": "evil.example"}, 403),
    ],
)
async def test_the_token_may_come_in_jupyters_ways_and_nothing_goes_without(
    api: KernelsApi, path: str, headers: dict[str, str], status: int
) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{api.port}") as stranger,
        stranger.get(path, headers=headers) as answer,
    ):
        assert answer.status == status


@pytest.mark.parametrize("protocols", [(), (V1,)], ids=["json", "v1"])
async def test_a_cell_runs_through_the_websocket(api: KernelsApi, protocols: tuple[str, ...]) -> None:
    model = await begin(api)
    path = f"/api/kernels/{model['id']}/channels?session_id=abc&token={TOKEN}"
    async with api.tcp.ws_connect(path, protocols=protocols) as ws:
        assert ws.protocol == (protocols[0] if protocols else None)
        message = run("import os\nprint(os.getcwd())\n40 + 2")
        await say(ws, message)
        ours = [one for one in await hear_all(ws, message) if belongs(one, message)]
        kinds = [one.type for one in ours]
        assert {"status", "execute_input", "stream", "execute_result", "execute_reply"} == set(kinds)
        assert said(ours) == f"{api.cwd}\n"
        assert {one.channel for one in ours} == {"iopub", "shell"}
        async with api.tcp.get(f"/api/kernels/{model['id']}") as answer:
            assert (await answer.json())["connections"] == 1
    await until(lambda: sum(count for count in _open_sockets(api)) == 0)


def _open_sockets(api: KernelsApi) -> list[int]:
    from supervisord_py.api.app import LIVE

    return list(api.runner.app[LIVE].channels.values())


async def test_a_restart_is_told_and_the_same_socket_goes_on(api: KernelsApi) -> None:
    model = await begin(api)
    async with api.tcp.ws_connect(f"/api/kernels/{model['id']}/channels", protocols=(V1,)) as ws:
        await say(ws, run("x = 1"))
        await hear(ws, is_kind("execute_reply"))
        restarting = asyncio.create_task(_post(api, f"/api/kernels/{model['id']}/restart"))
        await hear(ws, is_state("restarting"))
        await say(ws, run("x"))  # while it comes again, perhaps
        reply = (await hear(ws, is_kind("execute_reply")))[-1]
        assert reply.content["ename"] == "NameError"
        assert await restarting == 200


async def _post(api: KernelsApi, path: str) -> int:
    async with api.tcp.post(path) as answer:
        return answer.status


async def test_what_is_no_message_harms_nobody(api: KernelsApi) -> None:
    model = await begin(api)
    async with api.tcp.ws_connect(f"/api/kernels/{model['id']}/channels") as ws:
        for nonsense in (
            "{",
            "[]",
            "null",
            '{"header": {}}',
            json.dumps({"header": {"msg_type": "x"}, "channel": "y"}),
        ):
            await ws.send_str(nonsense)
        await ws.send_bytes(b"\xff" * 40)
        await say(ws, run("1"))
        await hear(ws, is_kind("execute_reply"))


async def test_a_socket_to_a_kernel_that_is_not_there_is_refused(api: KernelsApi) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await api.tcp.ws_connect(f"/api/kernels/{uuid.uuid4()}/channels")
    assert caught.value.status == 404


def listens(path: Path) -> bool:
    """Say whether somebody listens there: the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as asked:
        return asked.connect_ex(str(path)) == 0


@asynccontextmanager
async def front_end(api: KernelsApi, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a jupyter_server whose gateway we are; yield a client of it."""
    places = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("RUNTIME", "CONFIG", "DATA")}
    path = folder / "front.sock"
    command = [
        *lean_module(sys.executable, "jupyter_server"), "--no-browser", "--allow-root", f"--ServerApp.sock={path}",
        "--IdentityProvider.token=front", f"--gateway-url=http://127.0.0.1:{api.port}",
        f"--GatewayClient.auth_token={TOKEN}", f"--ServerApp.root_dir={api.cwd}",
    ]  # fmt: skip
    log = await asyncio.to_thread(open, folder / "front.log", "wb")
    server = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **places, "HOME": str(folder)}, stdout=log, stderr=log
    )
    log.close()
    try:
        await until(lambda: listens(path), 60)
        connector = aiohttp.UnixConnector(str(path), limit=0)
        async with aiohttp.ClientSession(
            "http://localhost", connector=connector, headers={"Authorization": "token front"}
        ) as client:
            yield client
    finally:
        server.send_signal(signal.SIGTERM)
        await asyncio.wait_for(server.wait(), 60)


async def test_a_jupyter_server_with_us_as_its_gateway_runs_cells(api: KernelsApi, short_tmp: Path) -> None:
    async with front_end(api, short_tmp) as front:
        async with front.get("/api/kernelspecs") as answer:
            assert "python3" in (await answer.json())["kernelspecs"]
        async with front.post("/api/kernels", json={"name": "python3", "path": "nb.ipynb"}) as answer:
            assert answer.status == 201, await answer.text()
            model = await answer.json()
        async with front.ws_connect(f"/api/kernels/{model['id']}/channels") as ws:
            message = run("import os\nprint(os.getcwd())")
            await say(ws, message)
            assert said(await hear_all(ws, message)) == f"{api.cwd}\n"
        async with front.post(f"/api/kernels/{model['id']}/interrupt") as answer:
            assert answer.status == 204
        async with front.post(f"/api/kernels/{model['id']}/restart") as answer:
            assert answer.status == 200
        (kernel,) = (await api.get("/api/kernels"))["kernels"]
        assert (kernel["jupyter_id"], kernel["owner"]) == (model["id"], "jupyter_api")
        async with front.delete(f"/api/kernels/{model['id']}") as answer:
            assert answer.status == 204
