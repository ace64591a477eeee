"""Servers that refuse, break off, fall silent or are something else: what is known is said,
nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kernels.gateway_house import House
from kernels.kernel_rig import PATIENCE, eventually, kernel_house
from supervisord_py.errors import ConfigError, PxError, StartFailedError, UnknownUnitError
from supervisord_py.kernels import gateway_kernel, messaging, wire
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.gateway import init_code
from supervisord_py.kernels.gateway_kernel import GatewayClient
from supervisord_py.kernels.gateway_local import listens
from supervisord_py.kernels.session import CellStatus
from supervisord_py.kernels.wire import Message

SECRET = "s3cr3t-t0ken"  # noqa: S105 - of nothing
WARNING = "IOPub data rate exceeded.\nThe Jupyter server will temporarily stop sending output\n"


@dataclass(slots=True)
class FakeServer:
    """A server of kernels that does what a test tells it to, and notes what it was asked."""

    # `METHOD /path` to status and body, first of all
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # `METHOD /path` of each request
    headers: dict[str, str] = field(default_factory=dict)  # of the last one
    state: str | None = "idle"  # `execution_state` of its kernel; None: it has no such kernel
    is_mute: bool = False  # it lets websockets wait for ever
    on_execute: Callable[[FakeServer, Message], Awaitable[None]] | None = None
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)  # codes of the execute_requests that came
    url: str = ""
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        key = f"{request.method} {request.path}"
        self.asked.append(key)
        self.headers = dict(request.headers)
        if key in self.answers:
            return web.Response(status=self.answers[key][0], text=self.answers[key][1])
        if request.path.endswith("/channels") and self.state is not None:
            return await self._channels(request)
        match key:
            case "GET /api":
                return web.json_response({"version": "1"})
            case "GET /api/kernelspecs":
                return web.json_response(
                    {"kernelspecs": {"python3": {"spec": {"language": "python"}}}}
                )
            case "POST /api/kernels":
                return web.json_response({"id": (await request.json())["kernel_id"]}, status=201)
        if self.state is None:
            return web.json_response({"message": "Kernel does not exist"}, status=404)
        if request.method == "DELETE":
            self.state = None
        if request.method == "GET":
            return web.json_response({"execution_state": self.state})
        return web.Response(status=204)

    async def _channels(self, request: web.Request) -> web.StreamResponse:
        if self.is_mute:
            await asyncio.Event().wait()
        channel = web.WebSocketResponse(max_msg_size=0)
        await channel.prepare(request)
        self.sockets.append(channel)
        async for frame in channel:
            await self._hear(wire.unpack(frame.data, None))
        return channel

    async def _hear(self, message: Message) -> None:
        if message.type == "kernel_info_request":
            await self.say(
                "kernel_info_reply",
                {"language_info": {"name": "python"}},
                to=message,
                channel="shell",
            )
            await self.say("status", {"execution_state": "idle"}, to=message)
        elif message.content.get("silent"):
            await self.say(
                "execute_reply",
                {"status": "ok", "user_expressions": {}},
                to=message,
                channel="shell",
            )
        else:
            self.executed.append(str(message.content["code"]))
            if self.on_execute is not None:
                self.running.add(asyncio.create_task(self.on_execute(self, message)))

    async def say(
        self,
        kind: str,
        content: dict[str, Any],
        *,
        to: Message | None = None,
        channel: str = "iopub",
    ) -> None:
        frame = wire.pack(
            wire.make(kind, content, "server", channel, parent=to.header if to else {}), None
        )
        for each in self.sockets:
            await each.send_str(str(frame))

    async def cut(self) -> None:
        sockets, self.sockets[:] = list(self.sockets), []
        for each in sockets:
            if each._req is not None and each._req.transport is not None:
                each._req.transport.abort()
        await asyncio.sleep(0)  # a turn of the loop, in which the transports close


@asynccontextmanager
async def fake_server(**how: Any) -> AsyncIterator[FakeServer]:
    server, app = FakeServer(**how), web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        for task in server.running:
            task.cancel()
        await asyncio.gather(*server.running, return_exceptions=True)
        await server.cut()
        await runner.cleanup()


@asynccontextmanager
async def talking(folder: Path, **how: Any) -> AsyncIterator[tuple[House, FakeServer]]:
    async with kernel_house(folder) as rig, fake_server(**how) as server:
        house = House(rig, "external", url=server.url, gateway_token=None, trace=True)
        house.backend = await house.make()
        try:
            yield house, server
        finally:
            await house.close()


def output(text: str) -> dict[str, str]:
    return {"name": "stdout", "text": text}


async def test_a_cell_goes_on_after_a_break_and_is_lossy(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its output and its reply come over the second connection; what came between is
    not known.
    """
    monkeypatch.setattr(messaging, "REPLY_SECONDS", PATIENCE)

    async def break_in_the_middle(server: FakeServer, message: Message) -> None:
        await server.say("stream", output("first "), to=message)
        await server.cut()
        await eventually(lambda: server.sockets, "the second connection")
        await server.say("stream", output("second"), to=message)
        await server.say(
            "execute_reply", {"status": "ok", "execution_count": 1}, to=message, channel="shell"
        )
        await server.say("status", {"execution_state": "idle"}, to=message)

    async with talking(short_tmp, on_execute=break_in_the_middle) as (house, server):
        await house.open()
        ran = await house.run("1")
        assert (ran.reply.status, ran.out, ran.reply.lossy) == (
            CellStatus.OK,
            b"first second",
            True,
        )
        assert "connection to the gateway broke" in str(ran.reply.notice)
        assert server.executed == ["1"], "it is never sent again"


LOST = {
    "autorestarting": "auto",
    "dead": "'dead'",
    "starting": "'starting'",
    404: "not know it any more",
}
LOST |= {401: "requires a token", 503: "status 503"}


@pytest.mark.parametrize("how", LOST)
async def test_d4_a_kernel_that_is_restarted_or_cannot_be_reached_again_ends_its_cell(
    how: str | int, short_tmp: Path
) -> None:
    async with talking(short_tmp) as (house, server):
        await house.open()
        request, task = house.begin("1")
        await eventually(lambda: server.executed, "the cell")
        if isinstance(how, str):
            await server.say("status", {"execution_state": how})
        else:
            path = f"GET /api/kernels/{house.handle.held.kernel}"
            server.answers = {path: (how, ""), f"{path}/channels": (how, "")}
            await server.cut()
        with pytest.raises(KernelGoneError, match=LOST[how]):
            await task
        assert [each["kind"] for each in house.rig.records(request)] == ["begin"], (
            "who judges it writes its end"
        )
        assert await house.handle.shutdown(1.0, "exit") == ()
        assert server.state is None, "the new process under the old id is deleted"


async def test_a_servers_warning_is_no_output_but_says_that_some_is_missing(
    short_tmp: Path,
) -> None:
    """What a cell prints, or what quotes the words, is its output."""
    said = [("stderr", WARNING), ("stdout", WARNING), ("stderr", "it says: " + WARNING)]

    async def answer(server: FakeServer, message: Message) -> None:
        for name, text in said:
            await server.say("stream", {"name": name, "text": text}, to=message)
        await server.say("execute_reply", {"status": "ok"}, to=message, channel="shell")
        await server.say("status", {"execution_state": "idle"}, to=message)

    async with talking(short_tmp, on_execute=answer) as (house, _):
        await house.open()
        for is_lossy in (True, True, False):
            if not is_lossy:
                del said[0]
            ran = await house.run("1")
            assert (ran.reply.status, ran.reply.lossy) == (CellStatus.OK, is_lossy)
            assert ran.out.decode() == WARNING + "it says: " + WARNING
            assert ("IOPub data rate exceeded" in str(ran.reply.notice)) is is_lossy


async def test_a_delete_that_fails_leaves_it_to_a_later_sweep(short_tmp: Path) -> None:
    """Its note stays until it is known to be gone. An interrupt that fails is told, too."""
    async with talking(short_tmp) as (house, server):
        await house.open()
        path = f"/api/kernels/{house.handle.held.kernel}"
        server.answers = {f"DELETE {path}": (500, ""), f"POST {path}/interrupt": (500, "")}
        assert (await house.handle.interrupt(), house.handle.died.done()) == (
            "interrupt_failed",
            False,
        )
        assert await house.handle.kill() == "delete"
        with pytest.raises(KernelGoneError, match="status 500"):
            await house.run("1")
        await house.handle.shutdown(0.0, "stopped")
        assert (server.asked.count(f"DELETE {path}"), len(await house.backend.held())) == (1, 1)
        server.answers = {}
        assert (await house.backend.sweep(), await house.backend.held()) == (1, ())


async def test_a_kernel_that_its_server_has_culled_is_noticed_at_an_interrupt_and_before_the_next_cell(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_kernel, "LEFT_ALONE_SECONDS", 0.0)
    async with talking(short_tmp) as (house, server):
        await house.open()
        other = await house.open("other-000000")
        server.state = None
        with pytest.raises(KernelGoneError, match="does not know it any more"):
            await house.run("1")
        assert server.executed == []
        assert (await other.interrupt(), other.died.done()) == ("gone", True)


@pytest.mark.parametrize("state", ["dead", "idle"])
async def test_a_kernel_that_does_not_come_up_fails_the_start_and_is_deleted(
    state: str, short_tmp: Path
) -> None:
    """Its websocket never opens: the server is asked whether it died, else the start ends at its
    deadline.
    """
    words, seconds = (
        ("before it was ready", PATIENCE) if state == "dead" else ("not reachable", 2.0)
    )
    async with talking(short_tmp, is_mute=True, state=state) as (house, server):
        with pytest.raises(StartFailedError, match=words):
            await house.backend.start(
                house.rig.launch(), None, deadline=asyncio.get_running_loop().time() + seconds
            )
        await eventually(lambda: server.state is None, "its end")
        await eventually(lambda: not house.backend._notes, "the end of its note")


NAMES = st.from_regex(r"(PI_|LC_|LANG|TZ|TERM|KERNEL_|PX_|HOME)?[A-Z_]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_nothing_that_looks_like_a_secret_leaves_this_machine(env: dict[str, str]) -> None:
    names = re.findall(r"'([A-Z_]+)': ", init_code("/w", env, "d.1", "kernel:s"))
    for name in names:
        assert not any(
            word in name.upper()
            for word in ("TOKEN", "SECRET", "PASSW", "KEY", "COOKIE", "CREDENTIAL")
        )
    assert set(names) - {"PX_INSTANCE", "PX_UNIT"} <= {
        each for each in env if not each.startswith(("HOME", "KERNEL"))
    }


# -- what a server's answer means ------------------------------------------------------------------


async def refusal(url: str, token: str | None = SECRET, seconds: float = 60.0) -> PxError:
    client = GatewayClient(url, token, "kernels.gateway_token")
    with pytest.raises(PxError) as caught:
        await client.preflight(seconds)
    await client.close()
    assert SECRET not in str(caught.value.problem())
    return caught.value


@pytest.mark.parametrize(("query", "token"), [("", SECRET), (f"/?token={SECRET}", None)])
async def test_the_token_travels_in_a_header_and_in_no_address(
    query: str, token: str | None
) -> None:
    """Also one in the address, as Jupyter prints it."""
    async with fake_server() as server:
        client = GatewayClient(server.url + query, token, "kernels.gateway_token")
        assert client.shown == server.url
        await client.preflight()
        assert server.headers["Authorization"] == f"token {SECRET}"
        await (await client.connect("k-1", "sess", 60)).close()
        assert server.headers["Authorization"] == f"token {SECRET}"
        assert not any(SECRET in each for each in server.asked)
        await client.close()


async def test_nobody_there_is_told_with_the_address_and_what_to_try() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        error = await refusal(f"{url}/?token={SECRET}", None)
        probe.listen()
        silent = await refusal(url, seconds=0.05)
    assert "(no answer within 0.05 s)" in silent.detail
    assert isinstance(error, StartFailedError)
    assert f"The gateway at {url} is not reachable" in error.detail
    assert f"curl {url}/api" in str(error.hint)


async def test_what_is_no_jupyter_server_is_told_so() -> None:
    async with fake_server(answers={"GET /api/kernelspecs": (200, "[]")}) as server:
        assert "no Jupyter server" in (await refusal(server.url)).detail


@pytest.mark.parametrize(
    "url", ["localhost:8888", "ftp://h", "http://", "not an address", "http://h:port"]
)
def test_an_address_that_is_none_is_an_error_of_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"kernels\.gateway_url"):
        GatewayClient(url, None, "kernels.gateway_token")


URL = "http://h:1/base/?token=hidden#x"
PLACE = GatewayClient(URL, None, "kernels.gateway_token")


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (
            403,
            '{"reason": "Forbidden", "message": "Resource Limit"}',
            ConfigError,
            "status 403: Resource Limit",
        ),
        (404, "", UnknownUnitError, "status 404"),
        (
            500,
            '{"message": "broken"}',
            StartFailedError,
            "failed to start a kernel: it returned status 500: broken",
        ),
        (
            400,
            '{"message": "broken"}',
            StartFailedError,
            "refused to start a kernel: it returned status 400: broken",
        ),
        (302, "/login?next=", ConfigError, "does not accept the token"),
    ],
)
def test_every_status_is_told_without_a_secret(
    status: int, body: str, kind: type[PxError], words: str
) -> None:
    error = PLACE.refused(status, body, "start a kernel")
    assert isinstance(error, kind)
    assert words in error.detail
    assert "hidden" not in json.dumps(error.problem())


def test_a_listener_is_known_by_its_process() -> None:
    """D9: the token goes to nobody but the gateway's own process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not listens(os.getpid(), port), "bound is not listening"
        listener.listen()
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)
