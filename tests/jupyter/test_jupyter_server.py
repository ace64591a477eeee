"""A real jupyter_server whose kernels are the daemon's: as JupyterLab uses it, over REST and a WebSocket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from e2e.house import alive, until
from jupyter_house import PATIENCE, PYTHON, end, gone
from lean_module import lean_module

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jupyter_house import Front

pytestmark = pytest.mark.deep

TOKEN = "of-one-test"  # noqa: S105 - of a server that lives for one test


@dataclass
class Server:
    """A jupyter_server on loopback."""

    process: subprocess.Popen[bytes]
    http: aiohttp.ClientSession

    async def settled(self, kernel: str) -> None:
        """Wait until it has restarted a kernel, after which it can interrupt it.

        A page is served before. A server that is told to end in between never ends: it asks a future that is not done
        for its exception, and gives its stop up.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                async with self.http.post(f"/api/kernels/{kernel}/interrupt") as answer:
                    if answer.ok:
                        return

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self.http.request(method, path, json=body) as answer:
            assert answer.ok, (answer.status, await answer.text())
            return await answer.json() if answer.status != 204 else None

    @asynccontextmanager
    async def channels(self, kernel: str) -> AsyncIterator[Channels]:
        async with self.http.ws_connect(f"/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}") as page:
            yield Channels(page)


@dataclass
class Channels:
    """What a notebook page holds: one WebSocket."""

    page: aiohttp.ClientWebSocketResponse

    async def send(self, kind: str, content: dict[str, Any], channel: str = "shell") -> str:
        made = uuid.uuid4().hex
        header = {"msg_id": made, "msg_type": kind, "session": "page", "username": "", "version": "5.3", "date": ""}
        parts = {"parent_header": {}, "metadata": {}, "buffers": []}
        await self.page.send_json({"header": header, "content": content, "channel": channel, **parts})
        return made

    async def until(self, kind: str, parent: str | None = None, **content: Any) -> dict[str, Any]:
        """Return the content of the next message of a kind, to a request, with that content."""
        async with asyncio.timeout(PATIENCE):
            async for message in self.page:
                heard = json.loads(message.data)
                fits = parent is None or heard["parent_header"].get("msg_id") == parent
                if heard["msg_type"] == kind and fits and content.items() <= heard["content"].items():
                    found: dict[str, Any] = heard["content"]
                    return found
        raise AssertionError(f"the server closed the channels before {kind}")

    async def begin(self, code: str) -> str:
        return await self.send("execute_request", {"code": code, "silent": False, "allow_stdin": False})

    async def run(self, code: str) -> dict[str, Any]:
        """Run a cell; one that came too early after a failed one is sent again, as a user would."""
        while (reply := await self.until("execute_reply", await self.begin(code)))["status"] == "aborted":
            pass
        return reply

    async def printed(self, expression: str) -> str:
        sent = await self.begin(f"print({expression})")
        return str((await self.until("stream", sent))["text"]).strip()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest_asyncio.fixture
async def server(front: Front) -> AsyncIterator[Server]:
    options = {
        "ServerApp.root_dir": front.folder,
        "IdentityProvider.token": TOKEN,
        "ServerApp.port": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
    }
    log = front.jupyter / f"server-{uuid.uuid4().hex}.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*lean_module(PYTHON, "jupyter_server"), *(f"--{name}={value}" for name, value in options.items())],
            cwd=front.folder,
            env=front.environ(),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    told = front.jupyter / "run" / f"jpserver-{process.pid}.json"
    try:
        until(lambda: told.exists() and told.read_text().endswith("}"), "the server listens")
        url = json.loads(told.read_text())["url"]
        until(lambda: _listens(urlsplit(url).port or 0), "the server takes connections")
        headers = {"Authorization": f"token {TOKEN}"}
        async with aiohttp.ClientSession(url, headers=headers) as http:
            yield Server(process, http)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server does not end:\n{log.read_text()}")
        finally:
            end(process)


async def test_a_kernel_of_the_server_is_the_daemons_from_its_start_to_its_end(front: Front, server: Server) -> None:
    (front.folder / "sub").mkdir(exist_ok=True)
    assert "pxd" in (await server.ask("GET", "/api/kernelspecs"))["kernelspecs"]
    kernel = await server.ask("POST", "/api/kernels", {"name": "pxd", "path": "sub/a.ipynb"})
    ((_, session),) = front.living().items()
    assert session["name"] == f"jupyter-{kernel['id'][:8]}"
    assert session["cwd"] == str(front.folder / "sub")
    async with server.channels(kernel["id"]) as page:
        assert await page.printed("6 * 7") == "42"
        sent = await page.begin("print('begun')\nwhile True: pass")
        await page.until("stream", sent)
        await server.ask("POST", f"/api/kernels/{kernel['id']}/interrupt")
        assert (await page.until("execute_reply", sent))["ename"] == "KeyboardInterrupt"
        await server.ask("POST", f"/api/kernels/{kernel['id']}/restart")
        assert (await page.run("sent"))["ename"] == "NameError"
        ((_, after),) = front.living().items()
        assert (after["id"], after["pid"] != session["pid"]) == (session["id"], True)
    await server.ask("DELETE", f"/api/kernels/{kernel['id']}")
    assert not alive(session["pid"])
    assert front.living() == {}


async def test_a_crash_is_told_to_the_page_which_goes_on_with_the_next_kernel(front: Front, server: Server) -> None:
    kernel = await server.ask("POST", "/api/kernels", {"name": "pxd"})
    async with server.channels(kernel["id"]) as page:
        assert (await page.run("x = 1"))["status"] == "ok"
        ((_, session),) = front.living().items()
        os.kill(session["pid"], signal.SIGKILL)
        gone(session["pid"])
        told = await page.until("status", execution_state="restarting")
        assert told["execution_state"] == "restarting"
        assert (await page.run("x"))["ename"] == "NameError"
    assert len(front.living()) == 1
    await server.settled(kernel["id"])


async def test_a_kernel_that_cannot_be_started_is_told_with_the_daemons_words(front: Front, server: Server) -> None:
    front.spec("dead", ["/nowhere/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    async with server.http.post("/api/kernels", json={"name": "dead"}) as answer:
        assert answer.status == 422
        assert "/nowhere/python" in (await answer.json())["message"]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_kernels_outlive_a_server_that_is_killed_and_end_with_one_that_ends_in_order(
    front: Front, server: Server, *, is_killed: bool
) -> None:
    await server.ask("POST", "/api/kernels", {"name": "pxd"})
    ((_, session),) = front.living().items()
    server.process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
    server.process.wait(PATIENCE)
    if is_killed:
        assert alive(session["pid"])
        assert front.living()[session["id"]]["instance"] == session["instance"]
    else:
        gone(session["pid"])
        until(lambda: front.living() == {}, "the daemon has it down")
