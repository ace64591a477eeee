"""Jupyter's API of the daemon: its documents, its WebSocket, and a real jupyter_server that has us as its gateway."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import uuid
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from e2e.house import until
from jupyter_house import PATIENCE, PYTHON, Front, end, front_end
from lean_module import lean_module
from ports import free_port
from supervisord_py.kernels.wire import V1, Message, execute_content, make, pack, unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@pytest.fixture(scope="module")
def shared_front() -> Iterator[Front]:
    """A daemon that also listens on loopback."""
    with front_end({"PX_API__LISTEN": f"127.0.0.1:{free_port()}"}) as made:
        yield made


def url_of(front: Front) -> str:
    return f"http://{front.house.settings['PX_API__LISTEN']}"


def token_of(front: Front) -> str:
    (file,) = front.house.home.rglob("*token*")
    return file.read_text().strip()


@pytest_asyncio.fixture
async def http(front: Front) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that has the token."""
    async with aiohttp.ClientSession(url_of(front), headers={"Authorization": f"token {token_of(front)}"}) as made:
        yield made


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    async with http.request(method, path, json=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None) if status != 204 else None


async def begin(http: aiohttp.ClientSession, front: Front) -> str:
    """Start a kernel; return its path."""
    body = {"name": "python3", "env": {"KERNEL_WORKING_DIR": str(front.folder)}}
    return f"/api/kernels/{(await ask(http, 'POST', '/api/kernels', body, 201))['id']}"


def run(code: str) -> Message:
    return make("execute_request", execute_content(code), "s")


async def say(ws: aiohttp.ClientWebSocketResponse, message: Message) -> None:
    framed = pack(message, ws.protocol)
    await (ws.send_str(framed) if isinstance(framed, str) else ws.send_bytes(framed))


async def hear(ws: aiohttp.ClientWebSocketResponse, *stops: Callable[[Message], bool]) -> list[Message]:
    """Return what comes, until all that is waited for came: channels are not in step."""
    heard: list[Message] = []
    async with asyncio.timeout(PATIENCE):
        while not all(any(map(stop, heard)) for stop in stops):
            item = await ws.receive()
            assert item.type in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}, (item, heard)
            heard.append(unpack(item.data, ws.protocol))
    return heard


def is_reply(message: Message) -> bool:
    return message.type == "execute_reply"


async def answer_to(ws: aiohttp.ClientWebSocketResponse, asked: Message) -> list[Message]:
    """Send a request; return what comes of it."""
    await say(ws, asked)
    heard = await hear(ws, is_reply, lambda it: it.parent_id == asked.id and it.state == "idle")
    return [it for it in heard if it.parent_id == asked.id]


def printed(heard: list[Message]) -> str:
    """Return the text of all streams, in however many pieces it came."""
    return "".join(it.content["text"] for it in heard if it.type == "stream")


async def test_a_kernel_is_made_shown_interrupted_restarted_and_ended(
    front: Front, http: aiohttp.ClientSession
) -> None:
    path = await begin(http, front)
    model = await ask(http, "GET", path)
    assert set(model) == {"id", "name", "last_activity", "execution_state", "connections"}
    assert (model["name"], model["execution_state"], model["connections"]) == ("python3", "idle", 0)
    assert uuid.UUID(model["id"])
    (kernel,) = front.living().values()
    assert (kernel["owner"], kernel["jupyter_id"]) == ("jupyter_api", model["id"])
    assert kernel["cwd"] == str(front.folder)
    assert [it["id"] for it in await ask(http, "GET", "/api/kernels")] == [model["id"]]
    assert [it["id"] for it in front.house.get("/jupyter/api/kernels")] == [model["id"]], "the other door has both"
    assert (await ask(http, "GET", "/px/api/kernels"))["schema"] == "px.kernels/1"
    await ask(http, "POST", f"{path}/interrupt", status=204)
    assert (await ask(http, "POST", f"{path}/restart"))["id"] == model["id"]
    await ask(http, "DELETE", path, status=204)
    problem = await ask(http, "GET", path, status=404)
    assert problem["message"] == f"Kernel does not exist: {model['id']}"
    with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
        await http.ws_connect(f"{path}/channels")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/kernels", {"Authorization": "token TOKEN"}, 200),
        ("/api/kernels", {"Authorization": "Bearer TOKEN"}, 200),
        ("/api/kernels?token=TOKEN", {}, 200),
        ("/api/kernels", {}, 403),
        ("/api/kernels?token=wrong", {}, 403),
        ("/api/kernels?token=TOKEN", {"Authorization": "token wrong"}, 403),
        ("/api/status?token=TOKEN", {}, 403),
        ("/api/kernels", {"Authorization": "token TOKEN", "Origin": "http://evil.example"}, 403),
        ("/api/kernels", {"Authorization": "token TOKEN", "Host": "evil.example"}, 403),
    ],
)
async def test_the_token_may_come_in_jupyters_ways_and_nothing_goes_without(
    front: Front, path: str, headers: dict[str, str], status: int
) -> None:
    told = {name: text.replace("TOKEN", token_of(front)) for name, text in headers.items()}
    url = url_of(front) + path.replace("TOKEN", token_of(front))
    async with aiohttp.ClientSession() as stranger, stranger.get(url, headers=told) as answer:
        assert answer.status == status


@pytest.mark.parametrize("protocols", [(), (V1,)], ids=["json", "v1"])
async def test_a_cell_runs_through_the_websocket_whatever_else_is_sent(
    front: Front, http: aiohttp.ClientSession, protocols: tuple[str, ...]
) -> None:
    path = await begin(http, front)
    async with http.ws_connect(f"{path}/channels?session_id=abc", protocols=protocols) as ws:
        assert ws.protocol == (protocols[0] if protocols else None)
        no_channel = json.dumps({"header": {"msg_type": "x"}, "channel": "y"})
        for nonsense in ("{", "[]", "null", '{"header": {}}', no_channel):
            await ws.send_str(nonsense)
        await ws.send_bytes(b"\xff" * 40)
        ours = await answer_to(ws, run("import os\nprint(os.getcwd())\n40 + 2"))
        assert {it.type for it in ours} == {"status", "execute_input", "stream", "execute_result", "execute_reply"}
        assert printed(ours) == f"{front.folder}\n"
        assert {it.channel for it in ours} == {"iopub", "shell"}
        assert (await ask(http, "GET", path))["connections"] == 1


async def test_a_restart_is_told_and_the_same_socket_goes_on(front: Front, http: aiohttp.ClientSession) -> None:
    path = await begin(http, front)
    async with http.ws_connect(f"{path}/channels", protocols=(V1,)) as ws:
        await answer_to(ws, run("x = 1"))
        restarting = asyncio.create_task(ask(http, "POST", f"{path}/restart"))
        await hear(ws, lambda it: it.state == "restarting")
        await say(ws, run("x"))  # while it comes again, perhaps
        assert next(filter(is_reply, await hear(ws, is_reply))).content["ename"] == "NameError"
        await restarting


@asynccontextmanager
async def lab(front: Front) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a jupyter_server whose gateway we are; yield a client of it."""
    path = front.jupyter / "lab.sock"
    options = {
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.sock": path,
        "ServerApp.root_dir": front.folder,
        "IdentityProvider.token": "front",
        "GatewayClient.url": url_of(front),
        "GatewayClient.auth_token": token_of(front),
    }
    command = [*lean_module(PYTHON, "jupyter_server"), *(f"--{name}={value}" for name, value in options.items())]
    with (front.jupyter / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, env=front.environ(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        await asyncio.to_thread(until, lambda: _listens(path), "the server listens")
        connector = aiohttp.UnixConnector(str(path), limit=0)
        about = {"Authorization": "token front"}
        async with aiohttp.ClientSession("http://localhost", connector=connector, headers=about) as client:
            yield client
    finally:
        server.terminate()
        await asyncio.to_thread(server.wait, PATIENCE)
        end(server)


def _listens(path: Path) -> bool:
    """Say whether somebody listens there: the file is there a moment before."""
    with closing(socket.socket(socket.AF_UNIX)) as asked:
        return asked.connect_ex(os.fspath(path)) == 0


async def test_a_jupyter_server_with_us_as_its_gateway_runs_cells(front: Front) -> None:
    async with lab(front) as client:
        assert "python3" in (await ask(client, "GET", "/api/kernelspecs"))["kernelspecs"]
        model = await ask(client, "POST", "/api/kernels", {"name": "python3", "path": "nb.ipynb"}, 201)
        path = f"/api/kernels/{model['id']}"
        async with client.ws_connect(f"{path}/channels") as ws:
            assert printed(await answer_to(ws, run("import os\nprint(os.getcwd())"))) == f"{front.folder}\n"
        await ask(client, "POST", f"{path}/interrupt", status=204)
        await ask(client, "POST", f"{path}/restart")
        (kernel,) = front.living().values()
        assert (kernel["jupyter_id"], kernel["owner"]) == (model["id"], "jupyter_api")
        await ask(client, "DELETE", path, status=204)
