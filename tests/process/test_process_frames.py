"""Frames and descriptors over a socket: exact, in order, non-blocking, nothing leaked."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from supervisord_py.keeper.protocol import MAX_FRAME, FrameError, FrameSocket, close_fds


def frame(message: object) -> bytes:
    """Return the bytes of one frame, by the protocol's text and not by its code."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, FrameSocket]]:
    left, right = (FrameSocket(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    yield left, right
    left.close()
    right.close()


def frames(sock: FrameSocket) -> list[tuple[dict[str, Any], list[int]]]:
    found = []
    try:
        while sock.receive():
            while (one := sock.next_frame()) is not None:
                found.append(one)
    except BlockingIOError:
        pass
    return found


WRONG = [struct.pack(">I", 3) + b"{]}", struct.pack(">I", 2) + b"[]", struct.pack(">I", 1) + b"\xff"]
WRONG += [struct.pack(">I", MAX_FRAME + 1), frame({"fds": 1}), frame({"fds": "x"})]


@pytest.mark.parametrize("data", WRONG)
def test_what_is_not_of_the_protocol_is_refused_after_what_is(data: bytes) -> None:
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock = FrameSocket(reader)
    with writer:
        writer.sendall(frame({"n": 1}) + data)
        assert sock.receive()
        assert sock.next_frame() == ({"n": 1}, [])
        with pytest.raises(FrameError):
            sock.next_frame()
    sock.close()


def test_descriptors_arrive_with_exactly_their_frame(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    pipes = [os.pipe() for _ in range(3)]
    for number, carried in enumerate(([], pipes[:1], pipes[1:], [])):
        left.push({"n": number}, [read for read, _ in carried])
    assert left.flush()
    found = frames(right)
    assert [len(fds) for _, fds in found] == [0, 1, 2, 0]
    for number, (_, write) in enumerate(pipes):
        os.write(write, b"%d" % number)
    came = [fd for _, fds in found for fd in fds]
    assert [os.read(fd, 9) for fd in came] == [b"0", b"1", b"2"]
    assert not any(os.get_inheritable(fd) for fd in came)
    close_fds([*came, *(fd for ends in pipes for fd in ends)])  # the sender's own stayed his


def test_a_peer_that_does_not_read_blocks_nobody_and_gets_everything(pair: tuple[FrameSocket, FrameSocket]) -> None:
    left, right = pair
    read, write = os.pipe()
    for number in range(31):
        left.push({"n": number, "body": "x" * 100_000}, [read] if number == 30 else [])
    os.close(read)
    assert not left.flush()
    found = []
    while left.queued:
        left.flush()
        found += frames(right)
    assert [message["n"] for message, _ in found] == list(range(31))
    os.write(write, b"!")
    assert os.read(found[-1][1][0], 1) == b"!"
    close_fds([write, *found[-1][1]])


def test_the_end_comes_after_all_that_was_said_and_closes_what_was_queued() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock = FrameSocket(ours)
    read, write = os.pipe()
    theirs.sendall(frame({"n": 1}))
    theirs.close()
    sock.push({"to": "nobody"}, [write])
    os.close(write)
    with pytest.raises(OSError, match="pipe"):
        sock.flush()
    assert os.read(read, 1) == b""  # the duplicate of the writing end is closed: nobody can write any more
    os.close(read)
    assert [message for message, _ in frames(sock)] == [{"n": 1}]
    assert not sock.receive()
    sock.close()
