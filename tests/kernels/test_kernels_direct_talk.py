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
from supervisord_py.kernels.backend import ExecuteRequest
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.direct import cell_end, message, place, wire
from supervisord_py.kernels.direct.conversation import Conversation
from supervisord_py.kernels.direct.line import Line, NotSentError, Readiness
from supervisord_py.kernels.direct.recording import Recording
from supervisord_py.kernels.inside.cell_writer import CellWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from supervisord_py.kernels.direct.message import Message
    from supervisord_py.process.spec import ExitRecord

OK = {"status": "ok", "execution_count": 1}


def said(kind: str, parent: str, session: str = "px-k", **content: Any) -> Message:
    header = json.dumps({"msg_type": kind}).encode()
    parent_header = json.dumps({"msg_id": parent, "session": session}).encode()
    found = message.read([header, parent_header, b"{}", json.dumps(content).encode()])
    assert found is not None
    return found


def idle(parent: str, session: str = "px-k") -> Message:
    return said("status", parent, session, execution_state="idle")


def request(folder: Path, cell_id: str = "c") -> ExecuteRequest:
    return ExecuteRequest(cell_id, "code", folder, 100, 10**6)


def never() -> asyncio.Future[ExitRecord | None]:
    return asyncio.get_running_loop().create_future()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all patience be short."""
    for name in ("IDLE_SECONDS", "REPLY_SECONDS", "LAST_WORDS_SECONDS", "POLL_SECONDS", "PROBE_SECONDS"):
        monkeypatch.setattr(cell_end, name, 0.02)


# -- conversations --------------------------------------------------------------------------------------------------


async def test_a_request_is_over_when_reply_and_idle_came_in_either_order() -> None:
    for order in ("reply first", "idle first"):
        talk, heard = Conversation("px-k"), list[str]()
        exchange = talk.open("c", "shell", lambda it, heard=heard: heard.append(it.type))
        news = [("shell", said("execute_reply", "c", **OK)), ("iopub", idle("c"))]
        talk.hear("iopub", said("stream", "c", text="x"))
        talk.hear("control", said("execute_reply", "c", status="error"))  # not where it was asked
        for channel, it in news if order == "reply first" else reversed(news):
            assert not exchange.over
            talk.hear(channel, it)
        assert exchange.over
        assert exchange.reply.result()["status"] == "ok"
        assert heard == ["stream", "status"]
        late: list[str] = []
        talk.late = lambda it, late=late: late.append(it.type)
        talk.hear("iopub", said("stream", "c", text="late"))
        talk.hear("shell", said("execute_reply", "c", **OK))
        assert late == ["stream"]


async def test_what_others_do_is_told_apart_from_what_is_ours() -> None:
    talk = Conversation("px-k")
    talk.hear("iopub", said("status", "ours-of-before", execution_state="busy"))
    assert not talk.foreign.busy
    talk.hear("iopub", said("stream", "f", "front", text="x"))
    assert talk.foreign.used_at is None
    talk.hear("iopub", said("status", "f", "front", execution_state="busy"))
    assert talk.foreign.busy
    talk.open("control", "control")
    talk.hear("iopub", idle("control"))
    assert talk.foreign.busy
    talk.open("c", "shell")
    talk.hear("iopub", idle("c"))
    assert not talk.foreign.busy  # its idle was lost; ours came later
    assert not talk.welcome.done()
    talk.hear("iopub", said("iopub_welcome", "", ""))
    assert talk.welcome.done()


@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("replied", [True, False])
async def test_who_lets_go_of_a_kernel_waits_for_no_end_of_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, replied: bool, has_files: bool
) -> None:
    """It cannot come any more; and it is not taken for one that came."""
    for patience in ("IDLE_SECONDS", "UNHEARD_SECONDS"):
        monkeypatch.setattr(cell_end, patience, PATIENCE)
    talk, died = Conversation("px-k"), never()
    exchange = talk.open("c", "shell")
    waiting = asyncio.ensure_future(cell_end.wait_for_end(exchange, died, has_files=has_files))
    if replied:
        talk.hear("shell", said("execute_reply", "c", **OK))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    talk.give_up()
    for _ in range(5):
        await asyncio.sleep(0)
    assert waiting.done()
    if replied:
        reply = await cell_end.conclude(exchange, died, request(tmp_path), "kernel:k")
        assert (reply.status, reply.iopub_lost) == (CellStatus.OK, True)


# -- ends of cells --------------------------------------------------------------------------------------------------


async def test_an_end_of_output_is_waited_for_while_output_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood that a slow machine still reads is not lossy: its end comes behind it, however long that takes."""
    talk, patience = Conversation("px-k"), list[float | None]()
    exchange, died, wait = talk.open("c", "shell"), never(), asyncio.wait

    async def late_news(signs: set[asyncio.Future[Any]], *, return_when: str, timeout: float | None = None) -> Any:
        if exchange.reply.done():
            patience.append(timeout)
            talk.hear("iopub", said("stream", "c", text="more") if len(patience) < 9 else idle("c"))
        return await wait(signs, timeout=0, return_when=return_when)

    talk.hear("shell", said("execute_reply", "c", **OK))
    monkeypatch.setattr(asyncio, "wait", late_news)
    await cell_end.wait_for_end(exchange, died)
    assert exchange.idle.done()
    assert sum(filter(None, patience)) > cell_end.IDLE_SECONDS
    monkeypatch.undo()
    monkeypatch.setattr(cell_end, "BACKLOG_SECONDS", 0.0)
    exchange = talk.open("d", "shell")
    talk.hear("shell", said("execute_reply", "d", **OK))
    await cell_end.wait_for_end(exchange, died)  # somebody who prints for ever is not waited for
    assert not exchange.idle.done()


async def test_the_files_speak_for_a_kernel_that_did_not_answer(tmp_path: Path, hurried: None) -> None:
    """Idle without reply, and death right after the end: in both the `end` is on disk."""
    CellWriter(str(tmp_path), "c", 100).end("ok", execution_count=4, duration=1.0, ask_exit=True)
    talk, died = Conversation("px-k"), never()
    exchange = talk.open("c", "shell")
    died.set_result(None)
    await cell_end.wait_for_end(exchange, died)
    reply = await cell_end.conclude(exchange, died, request(tmp_path), "kernel:k")
    assert (reply.status, reply.execution_count, reply.asked_exit) == (CellStatus.OK, 4, True)


async def test_a_reply_that_came_right_before_the_death_counts(tmp_path: Path, hurried: None) -> None:
    talk, died = Conversation("px-k"), never()
    exchange = talk.open("c", "shell")
    died.set_result(None)
    talk.hear("shell", said("execute_reply", "c", **OK))
    await cell_end.wait_for_end(exchange, died)
    reply = await cell_end.conclude(exchange, died, request(tmp_path), "kernel:k")
    assert (reply.status, reply.iopub_lost) == (CellStatus.OK, False)


async def test_a_followed_cell_that_began_and_never_ended_is_not_claimed(tmp_path: Path, hurried: None) -> None:
    CellWriter(str(tmp_path), "c", 100).begin("code")
    talk, died = Conversation("px-k"), never()
    exchange, probe = talk.open("c", "shell"), talk.open("probe", "shell")
    talk.hear("shell", said("kernel_info_reply", "probe"))
    reply = await cell_end.follow(exchange, probe, died, request(tmp_path), "kernel:k")
    assert reply.error is not None
    assert reply.error.name == "NoReply"


# -- recordings -----------------------------------------------------------------------------------------------------


async def test_what_waits_for_the_disk_is_bounded_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    recording, woken = Recording(queue_bytes=1000), asyncio.Event()
    await recording.open(request(tmp_path), woken.set, begin=True, pid=1)
    for _ in range(10):
        recording.take(said("stream", "c", name="stdout", text="x" * 300))
    recording.take(said("stream", "nobody", name="stdout", text="x"))
    recording.take(idle("c"))
    async with asyncio.timeout(PATIENCE):
        dropped = await recording.end("c", OK)
    kept = (tmp_path / "c.out").read_bytes()
    assert kept in {b"x" * 300, b"x" * 600}
    assert dropped >= 3000 - len(kept)
    assert woken.is_set()
    await recording.close()


# -- the wire -------------------------------------------------------------------------------------------------------


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
        self.session = wire.session_for(connection, "kernel")

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
async def pair(folder: Path) -> AsyncIterator[tuple[Line, FakeKernel, list[Message]]]:
    """Open a line to a kernel that only talks."""
    connection = await asyncio.to_thread(place.make, folder, "k", "k.1")
    kernel, heard, talk = FakeKernel(connection), list[Any](), Conversation("px-k")

    def hear(channel: str, it: Message) -> None:
        heard.append(it)
        if it.type == "breaks":
            raise RuntimeError("not taken")
        talk.hear(channel, it)

    line = Line(connection, wire.Wire(connection, "px-k", hear), talk)
    try:
        async with asyncio.timeout(PATIENCE):
            assert (await kernel.sockets["iopub"].recv())[:1] == b"\x01"  # the subscription
        yield line, kernel, heard
    finally:
        await line.wire.close()
        kernel.close()


async def test_a_kernel_without_a_welcome_is_ready_when_an_idle_came_through(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle of the first request was sent before the subscription arrived: it is asked again."""
    monkeypatch.setattr(
        "supervisord_py.kernels.direct.line.UNANSWERED_SECONDS", PATIENCE
    )  # not because the answer took its time
    async with pair(short_tmp) as (line, kernel, _):
        watch = Readiness(line)
        ready = asyncio.ensure_future(watch.wait())
        ((identity, first),) = await kernel.requests(1)
        assert watch.seen == "it does not answer"
        await kernel.reply(identity, "kernel_info_reply", first)
        ((_, second),) = await kernel.requests(1)
        assert not ready.done()
        assert watch.seen != "it does not answer"
        await kernel.publish("status", {"execution_state": "idle"}, parent=second)
        async with asyncio.timeout(PATIENCE):
            await ready
        assert identity == b"px-k"


async def test_messages_with_a_wrong_signature_or_no_sense_are_dropped(short_tmp: Path) -> None:
    async with pair(short_tmp) as (_, kernel, heard):
        with capture_logs() as logs:
            good = kernel.session.serialize(kernel.session.msg("stream", {"text": "x"}))
            await kernel.sockets["iopub"].send_multipart([b"t", good[0], b"0" * 64, *good[2:]])
            await kernel.sockets["iopub"].send_multipart([b"nothing"])
            await kernel.sockets["iopub"].send_multipart([b"<IDS|MSG>"])
            await kernel.publish("breaks", {})
            await kernel.publish("stream", {"text": "good"})
            await eventually(lambda: len(heard) == 2, "the good one, after one that its hearer could not take")
        events = [it["event"] for it in logs]
        assert events == ["kernel_message_dropped"] * 3 + ["kernel_message_not_taken"]


async def test_a_kernel_that_reads_nothing_refuses_in_the_end(short_tmp: Path) -> None:
    async with pair(short_tmp) as (line, _, _):

        def fill() -> None:
            for number in range(100_000):
                line.wire.send("control", "kernel_info_request", {"fill": "x" * 10_000}, msg_id=str(number))

        def is_full() -> bool:
            """Fill it; the thread that empties it into the kernel's may be behind, and make room once more."""
            with pytest.raises(NotSentError, match="queue is full"):
                fill()
            return line.ask("control", "kernel_info_request").id not in line.talk._under_way

        await eventually(is_full, "a queue that stays full")
        await line.wire.close()
        with pytest.raises(NotSentError, match="closed"):
            line.wire.send("control", "kernel_info_request", {}, msg_id="late")
