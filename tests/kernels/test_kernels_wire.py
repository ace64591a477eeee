"""Messages: framings, signatures, sockets of a kernel that only talks, and front ends that read slowly."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from kernels.cell_folder import config_in
from kernels.kernel_rig import PATIENCE, eventually, kernel_house
from supervisord_py.errors import ConflictError, InvalidInputError, OverloadedError
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels import direct, wire
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.channels import GAP, OVERRUN, Channels, open_channels
from supervisord_py.kernels.direct import DirectBackend, DirectKernel
from supervisord_py.kernels.wire import V1, Message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
MESSAGES = st.builds(
    lambda channel, objects, buffers: Message(channel, [*map(wire.dump, objects), *buffers]),
    st.sampled_from(("shell", "control", "stdin", "iopub")),
    st.tuples(OBJECTS, OBJECTS, OBJECTS, OBJECTS),
    st.lists(st.binary(max_size=20), max_size=3),
)


def told(message: Message, *, buffers: bool = True) -> tuple[str, list[Any], list[bytes]]:
    rest = list(message.parts[wire.BUFFERS :]) if buffers else []
    return message.channel, [wire.load(part) for part in message.parts[: wire.BUFFERS]], rest


@pytest.mark.parametrize("protocol", [V1, None])
@given(message=MESSAGES, data=st.data())
def test_what_is_packed_comes_back_and_other_bytes_are_a_message_or_a_value_error(
    protocol: str | None, message: Message, data: st.DataObject
) -> None:
    frame = wire.pack(message, protocol)
    assert told(wire.unpack(frame, protocol)) == told(message, buffers=protocol is not None)
    broken = bytearray(frame if isinstance(frame, bytes) else frame.encode())
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    for noise in (cut, data.draw(st.binary(max_size=200))):
        with contextlib.suppress(ValueError):
            assert isinstance(wire.unpack(noise, protocol), Message)


def test_the_framing_is_that_of_the_real_server() -> None:
    """What jupyter_server writes is read, and what we write it reads."""
    base = pytest.importorskip("jupyter_server.services.kernels.connection.base")
    parts = [b'{"msg_id":"1"}', b'{"p":1}', b'{"m":2}', b'{"c":"\\u00fc"}', b"\x00\x01"]
    message = Message("shell", parts)
    assert base.deserialize_msg_from_ws_v1(wire.pack(message, V1)) == ("shell", parts)
    assert told(wire.unpack(base.serialize_msg_to_ws_v1(parts, "shell"), V1)) == told(message)


# -- a kernel that only talks ------------------------------------------------------------------------------------------


def frames_of(key: bytes, message: Message) -> list[bytes]:
    return [wire.DELIMITER, wire.sign(key, message.parts), *message.parts]


class FakeKernel:
    """The kernel's ends of the sockets."""

    def __init__(self, connection: place.Connection) -> None:
        self.key = connection.key.encode()
        self.sockets: dict[str, zmq.asyncio.Socket] = {}
        for channel in ("shell", "control", "iopub"):
            kind = zmq.XPUB if channel == "iopub" else zmq.ROUTER
            socket = self.sockets[channel] = zmq.asyncio.Context.instance().socket(kind)
            socket.linger = 0
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind(connection.endpoint(channel))

    async def request(self) -> tuple[bytes, Message]:
        """Return who asked what on shell."""
        async with asyncio.timeout(PATIENCE):
            identity, *frames = await self.sockets["shell"].recv_multipart()
        message = wire.from_frames(self.key, "shell", frames)
        assert message is not None
        return identity, message

    async def say(self, kind: str, parent: dict[str, Any], to: bytes | None = None, **content: Any) -> None:
        """Publish, or reply to who asked."""
        frames = frames_of(self.key, wire.make(kind, content, "kernel", parent=parent))
        await self.sockets["shell" if to else "iopub"].send_multipart([to or b"topic", *frames])


class NoProcess:
    """A placement where it lives for ever."""

    async def wait(self, _key: str) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[DirectKernel, FakeKernel]]:
    """Have the handle of a kernel that only talks."""
    connection = await asyncio.to_thread(place.make, folder, "k", "k.1")
    fake = FakeKernel(connection)
    launch = Launch("k", "k", "/python", "/", {}, folder)
    config = replace(config_in(folder), run_dir=folder)
    kernel = DirectKernel(NoProcess(), launch, None, connection, config)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(PATIENCE):
            assert (await fake.sockets["iopub"].recv())[:1] == b"\x01"  # the subscription
        yield kernel, fake
    finally:
        await kernel.close()
        for socket in fake.sockets.values():
            socket.close(0)


async def test_a_kernel_without_a_welcome_is_ready_when_an_idle_came_through(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle of the first request was sent before the subscription arrived: it is asked again."""
    monkeypatch.setattr(direct, "UNANSWERED_SECONDS", PATIENCE)  # not because the answer took its time
    async with pair(short_tmp) as (kernel, fake):
        ready = asyncio.ensure_future(kernel.until_ready())
        identity, first = await fake.request()
        await fake.say("kernel_info_reply", first.header, to=identity)
        _, second = await fake.request()
        assert not ready.done()
        await fake.say("status", second.header, execution_state="idle")
        async with asyncio.timeout(PATIENCE):
            await ready
        assert identity == b"px-k"


async def test_messages_with_a_wrong_signature_or_no_sense_are_dropped(short_tmp: Path) -> None:
    async with pair(short_tmp) as (kernel, fake):
        asked, breaks = await kernel.ask("kernel_info_request"), await kernel.ask("kernel_info_request")
        (_, first), (_, second) = await fake.request(), await fake.request()
        breaks.idle = None  # type: ignore[assignment] # so that what is heard of it cannot be taken
        with capture_logs() as logs:
            good = frames_of(fake.key, first)
            for frames in ([good[0], b"0" * 64, *good[2:]], [b"nothing"], [b"<IDS|MSG>"]):
                await fake.sockets["iopub"].send_multipart([b"t", *frames])
            for parent in (second, first):
                await fake.say("status", parent.header, execution_state="idle")
            await eventually(asked.idle.done, "the good one, after one that could not be taken")
        events = [it["event"] for it in logs]
        assert events == ["kernel_message_dropped"] * 3 + ["kernel_message_not_taken"]


async def test_a_kernel_that_reads_nothing_refuses_in_the_end(short_tmp: Path) -> None:
    """And nobody is held up by it."""
    async with pair(short_tmp) as (kernel, _):
        large = {"fill": "x" * 10_000}
        with pytest.raises(ConflictError, match="queue is full"):
            for _number in range(1_000_000):
                await kernel.ask("kernel_info_request", large, "control")
        await kernel.close()
        await kernel.ask("kernel_info_request")  # reaches nobody, and harms nobody


# -- front ends --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def front_end(folder: Path) -> AsyncIterator[Channels]:
    """Join a real kernel."""
    async with kernel_house(folder) as rig:
        handle = await rig.start(DirectBackend(rig.placement, rig.config), rig.launch())
        joined = await open_channels(handle.connection_file, limit_bytes=256 * 1024)
        yield joined
        await joined.close()


def run(joined: Channels, code: str) -> str:
    message = wire.make("execute_request", {**wire.EXECUTE, "code": code}, "front")
    joined.send(message)
    return message.id


async def heard(joined: Channels, is_last: Callable[[Message], bool]) -> list[Message]:
    """Return what comes, up to the message that is waited for."""
    found: list[Message] = []
    async with asyncio.timeout(PATIENCE):
        async for message in joined:
            found.append(message)
            if is_last(message):
                return found
    raise AssertionError("the channels were closed")


async def test_a_front_end_that_stalls_gets_a_gap_and_everything_that_matters(short_tmp: Path) -> None:
    """What is left out is told; status and replies come all; messages that are none are refused."""
    async with front_end(short_tmp) as joined:
        with pytest.raises(InvalidInputError):
            joined.send(wire.make("status", {}, "front", "iopub"))
        asked = run(joined, f"for _ in range(4096): print({'x' * 1023!r})")

        def is_end(message: Message) -> bool:
            return message.parent_id == asked and message.state == "idle"

        await eventually(lambda: any(map(is_end, joined.waiting)), "the end of the flood")
        assert 0 < joined.waiting_bytes < 2 * 256 * 1024
        messages = await heard(joined, is_end)
        if not any(it.type == "execute_reply" for it in messages):
            await heard(joined, lambda it: it.type == "execute_reply")
        assert [it.content["name"] for it in messages if it.type == "stream" and it.content["text"] == GAP] == [
            "stderr"
        ]


async def test_a_front_end_that_is_gone_is_given_up(short_tmp: Path) -> None:
    """Replies are never dropped, so one that never reads must end."""
    async with front_end(short_tmp) as joined:
        for _ in range(40):
            run(
                joined,
                "from IPython.core.getipython import get_ipython\n"
                "get_ipython().payload_manager.write_payload({'source': 'page', 'data': {'text/plain': 'y' * 100000}})",
            )
        await eventually(lambda: joined.waiting_bytes > OVERRUN * 256 * 1024, "more than anybody leaves")
        with pytest.raises(OverloadedError):
            await heard(joined, lambda _: False)
