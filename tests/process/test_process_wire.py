"""Frames and descriptors over the channel: exact, in order, non-blocking, nothing leaked."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from process.fake_keeper import frame
from supervisord_py.keeper.protocol import MAX_FRAME, Decoder, Frame, FrameError
from supervisord_py.process.wire import HIGH_WATER_BYTES, Channel, close_fds, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Until = Callable[[Callable[[], object]], Awaitable[None]]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.text().filter(lambda name: name != "fds"), JSON, max_size=4)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield left, right
    left.close()
    right.close()


class Ear:
    """Hears what a channel tells."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[Frame] = []
        self.ends: list[Exception | None] = []
        self.channel = Channel(sock, self.frames.append, self.ends.append)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_frame_is_a_big_endian_length_and_that_much_json() -> None:
    data = encode({"verb": "hello", "text": "grüß \udcff"})
    assert struct.unpack(">I", data[:4])[0] == len(data) - 4
    assert json.loads(data[4:]) == {"verb": "hello", "text": "grüß \udcff"}


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_any_cutting_of_the_stream_gives_the_same_frames(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder, seen, at = Decoder(), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        decoder.feed(stream[at : at + step])
        while (found := decoder.next_frame()) is not None:
            seen.append(found.message)
        at += step
    assert seen == messages


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_FRAME + 1),
        struct.pack(">I", 3) + b"{]}",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 1) + b"\xff",
        frame({"fds": 1}),
        frame({"fds": -1}),
        frame({"fds": "x"}),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(FrameError):
        decoder.next_frame()


async def test_descriptors_arrive_with_exactly_their_frame(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    left, right = Ear(pair[0]), Ear(pair[1])
    pipes = [os.pipe() for _ in range(3)]
    left.channel.send({"n": 0})
    left.channel.send({"n": 1}, [pipes[0][0]])
    left.channel.send({"n": 2}, [pipes[1][0], pipes[2][0]])
    left.channel.send({"n": 3})
    await until(lambda: len(right.frames) == 4)
    assert [len(it.fds) for it in right.frames] == [0, 1, 2, 0]
    for number, (_, write) in enumerate(pipes):
        os.write(write, b"%d" % number)
    assert [os.read(fd, 9) for it in right.frames for fd in it.fds] == [b"0", b"1", b"2"]
    assert not any(os.get_inheritable(fd) for it in right.frames for fd in it.fds)
    for it in right.frames:
        close_fds(it.fds)
    for ends in pipes:
        close_fds(ends)  # the sender's own stayed his
    left.channel.close()
    right.channel.close()


async def test_a_peer_that_does_not_read_blocks_nobody_and_gets_everything(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    """Backpressure: `drain` waits while too much is queued, the loop goes on, order and descriptors are kept."""
    left = Ear(pair[0])
    read, write = os.pipe()
    body = "x" * 100_000
    for number in range(2 * HIGH_WATER_BYTES // len(body)):
        left.channel.send({"n": number, "body": body})
    left.channel.send({"last": True}, [read])
    os.close(read)
    drained = asyncio.ensure_future(left.channel.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    right = Ear(pair[1])
    await until(lambda: right.frames and "last" in right.frames[-1].message)
    await asyncio.wait_for(drained, 60)
    assert [it.message["n"] for it in right.frames[:-1]] == list(range(len(right.frames) - 1))
    os.write(write, b"!")
    assert os.read(right.frames[-1].fds[0], 1) == b"!"
    close_fds((*right.frames[-1].fds, write))
    left.channel.close()
    right.channel.close()


async def test_the_end_of_the_peer_is_told_once_after_all_that_it_said(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    pair[1].sendall(frame({"n": 1}) + frame({"n": 2}))
    pair[1].close()
    ear = Ear(pair[0])
    await until(lambda: ear.ends)
    assert [it.message for it in ear.frames] == [{"n": 1}, {"n": 2}]
    assert ear.ends == [None]
    assert ear.channel.closed
    with pytest.raises(FrameError, match="closed"):
        ear.channel.send({})
    await ear.channel.drain()


async def test_a_broken_frame_ends_the_channel_after_the_good_ones(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    ear = Ear(pair[0])
    pair[1].sendall(frame({"n": 1}) + struct.pack(">I", 1) + b"x" + frame({"n": 2}))
    await until(lambda: ear.ends)
    assert [it.message for it in ear.frames] == [{"n": 1}]
    assert isinstance(ear.ends[0], FrameError)


async def test_writing_to_a_peer_that_is_gone_raises_nothing_and_closes_what_was_queued(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    ear = Ear(pair[0])
    read, write = os.pipe()
    ear.channel.send({"body": "x" * 3_000_000}, [read])
    ear.channel.send({"more": True}, [write])
    os.close(write)
    pair[1].close()
    await until(lambda: ear.ends)
    assert os.read(read, 1) == b""  # the duplicate of the writing end is closed: nobody can write any more
    os.close(read)


async def test_too_many_descriptors_at_once_end_the_channel_and_are_closed(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    ear = Ear(pair[0])
    read, write = os.pipe()
    socket.send_fds(pair[1], [frame({"fds": 100})], [write] * 100)
    os.close(write)
    await until(lambda: ear.ends)
    assert isinstance(ear.ends[0], FrameError)
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_peer_that_stops_reading_but_not_speaking_is_still_heard(
    pair: tuple[socket.socket, socket.socket], until: Until
) -> None:
    ear = Ear(pair[0])
    pair[1].shutdown(socket.SHUT_RD)
    read, write = os.pipe()
    ear.channel.send({"to": "nobody"}, [write])
    os.close(write)
    await ear.channel.drain()
    assert os.read(read, 1) == b""
    os.close(read)
    pair[1].sendall(frame({"n": 1}))
    await until(lambda: ear.frames)
    assert not ear.channel.closed
