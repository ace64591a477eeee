"""Replies, ends of output and deaths in every order; messages that lie; floods; recorders that cannot keep up."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import zmq.asyncio
from structlog.testing import capture_logs

from kernels.kernel_rig import PATIENCE, eventually
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels import kernel_client
from supervisord_py.kernels.backend import ExecuteRequest
from supervisord_py.kernels.kernel_client import KernelClient, Message, NotSentError, session_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from supervisord_py.process.model import ExitRecord


def said(kind: str, parent: str, session: str = "px-k", **content: Any) -> Message:
    header = json.dumps({"msg_type": kind}).encode()
    about = {"msg_id": parent, "session": session}
    return Message(kind, about, [header, json.dumps(about).encode(), b"{}", json.dumps(content).encode()])


def idle(parent: str, session: str = "px-k") -> Message:
    return said("status", parent, session, execution_state="idle")


def cell(folder: Path, cell_id: str = "c") -> ExecuteRequest:
    return ExecuteRequest(cell_id, "code", folder, 100, 10**6)


def never() -> asyncio.Future[ExitRecord | None]:
    return asyncio.get_running_loop().create_future()


# -- the wire ----------------------------------------------------------------------------------------------------------


class FakeKernel:
    """The kernel's ends of the sockets."""

    def __init__(self, connection: place.Connection) -> None:
        context = zmq.asyncio.Context.instance()
        self.sockets: dict[str, zmq.asyncio.Socket] = {}
        for channel in ("shell", "control", "iopub"):
            kind = zmq.XPUB if channel == "iopub" else zmq.ROUTER
            socket = self.sockets[channel] = context.socket(kind)
            socket.linger = 0
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind(connection.endpoint(channel))
        self.session = session_for(connection, "kernel")

    async def requests(self, count: int) -> list[tuple[bytes, dict[str, Any]]]:
        """Return who asked what on shell."""
        found = []
        async with asyncio.timeout(PATIENCE):
            for _ in range(count):
                identity, *frames = await self.sockets["shell"].recv_multipart()
                found.append((identity, self.session.deserialize(self.session.feed_identities(frames)[1])))
        return found

    async def publish(self, kind: str, content: dict[str, Any], parent: dict[str, Any] | None = None) -> None:
        frames = self.session.serialize(self.session.msg(kind, content, parent=parent))
        await self.sockets["iopub"].send_multipart([b"topic", *frames])

    async def reply(self, identity: bytes, kind: str, parent: dict[str, Any]) -> None:
        frames = self.session.serialize(self.session.msg(kind, {"status": "ok"}, parent=parent))
        await self.sockets["shell"].send_multipart([identity, *frames])

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close(0)


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[KernelClient, FakeKernel]]:
    """Open a client of a kernel that only talks."""
    connection = await asyncio.to_thread(place.make, folder, "k", "k.1")
    kernel = FakeKernel(connection)
    client = KernelClient(connection, "k")
    try:
        async with asyncio.timeout(PATIENCE):
            assert (await kernel.sockets["iopub"].recv())[:1] == b"\x01"  # the subscription
        yield client, kernel
    finally:
        await client.close()
        kernel.close()


async def test_a_kernel_without_a_welcome_is_ready_when_an_idle_came_through(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle of the first request was sent before the subscription arrived: it is asked again."""
    monkeypatch.setattr(kernel_client, "UNANSWERED_SECONDS", PATIENCE)  # not because the answer took its time
    async with pair(short_tmp) as (client, kernel):
        ready = asyncio.ensure_future(client.wait_ready())
        ((identity, first),) = await kernel.requests(1)
        assert client.seen == "it does not answer"
        await kernel.reply(identity, "kernel_info_reply", first)
        ((_, second),) = await kernel.requests(1)
        assert not ready.done()
        assert client.seen != "it does not answer"
        await kernel.publish("status", {"execution_state": "idle"}, parent=second)
        async with asyncio.timeout(PATIENCE):
            await ready
        assert identity == b"px-k"


async def test_messages_with_a_wrong_signature_or_no_sense_are_dropped(short_tmp: Path) -> None:
    async with pair(short_tmp) as (client, kernel):
        heard: list[Message] = []

        def breaks(_message: Message) -> None:
            raise RuntimeError("not taken")

        client.expect("breaks", breaks)
        client.expect("good", heard.append)
        with capture_logs() as logs:
            good = kernel.session.serialize(kernel.session.msg("stream", {"text": "x"}))
            await kernel.sockets["iopub"].send_multipart([b"t", good[0], b"0" * 64, *good[2:]])
            await kernel.sockets["iopub"].send_multipart([b"nothing"])
            await kernel.sockets["iopub"].send_multipart([b"<IDS|MSG>"])
            for parent in ("breaks", "good"):
                await kernel.publish("stream", {}, parent={"msg_id": parent, "session": "px-k"})
            await eventually(lambda: len(heard) == 1, "the good one, after one that its hearer could not take")
        events = [it["event"] for it in logs]
        assert events == ["kernel_message_dropped"] * 3 + ["kernel_message_not_taken"]


async def test_a_kernel_that_reads_nothing_refuses_in_the_end(short_tmp: Path) -> None:
    """And nobody is held up by it."""
    async with pair(short_tmp) as (client, _):

        def fill() -> None:
            for number in range(100_000):
                client.send("control", "kernel_info_request", {"fill": "x" * 10_000}, msg_id=str(number))

        def is_full() -> bool:
            """Fill it; the thread that empties it into the kernel's may be behind, and make room once more."""
            with pytest.raises(NotSentError, match="queue is full"):
                fill()
            return client.ask("control", "kernel_info_request").id not in client._under_way

        await eventually(is_full, "a queue that stays full")
        await client.close()
        with pytest.raises(NotSentError, match="closed"):
            client.send("control", "kernel_info_request", {}, msg_id="late")
