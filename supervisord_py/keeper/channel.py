"""The keeper's side of the socketpair to the control plane: whole frames in, whole frames out, never waiting.

A frame is a 4-byte big-endian length and one JSON object; descriptors ride on the first byte of the frame that
announces them. What the control plane does not read is queued up to BACKLOG_BYTES; beyond that it counts as hung, as
it does when it speaks nonsense. Closing the channel is not this module's to decide: to the control plane it means that
the keeper is dead.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections import deque

from supervisord_py.keeper.protocol import LENGTH_BYTES, MAX_FRAME, Decoder, FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.loop import Loop

    Receive = Callable[[dict[str, Any], list[int]], None]
    Fail = Callable[[str], None]

PIECE_BYTES = 65536
BACKLOG_BYTES = 2 * MAX_FRAME
FDS_PER_MESSAGE = 16
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Channel:
    """Frames over one connected socket.

    Args:
        loop: Says when it is ready.
        sock: The socket; ours from now on.
        receive: Takes each frame with its descriptors, which the receiver owns.
        fail: Told once, in words, why no further frame will come ("closed" at the regular end).
    """

    __slots__ = ("_decoder", "_fail", "_loop", "_output", "_queued", "_receive", "_sock")

    def __init__(self, loop: Loop, sock: socket.socket, receive: Receive, fail: Fail) -> None:
        self._loop = loop
        self._sock = sock
        self._receive = receive
        self._fail = fail
        self._decoder = Decoder()
        self._output: deque[tuple[bytes, list[int]]] = deque()
        self._queued = 0
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._readable)

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send a frame; `fds` are duplicated into it at once, the caller keeps its own."""
        body = json.dumps(message if not fds else {**message, "fds": len(fds)}, separators=(",", ":")).encode()
        copies = [os.dup(fd) for fd in fds or ()]
        self._output.append((len(body).to_bytes(LENGTH_BYTES, "big") + body, copies))
        self._queued += len(body)
        if self._queued > BACKLOG_BYTES:
            self._end("it does not read what it is sent")
        elif len(self._output) == 1:
            self._flush()

    def close(self) -> None:
        """Give everything back. Only once the other side is dead."""
        if self._sock.fileno() >= 0:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
        for _, fds in self._output:
            _close_all(fds)
        self._output.clear()
        self._decoder.close()

    def _end(self, why: str) -> None:
        fail, self._fail = self._fail, _ignore
        self._loop.unwatch(self._sock.fileno())
        fail(why)

    def _flush(self) -> None:
        while self._output:
            frame, fds = self._output.popleft()
            try:
                sent = self._write(frame, fds)
            except BlockingIOError:
                self._output.appendleft((frame, fds))
                break
            except OSError:
                _close_all(fds)
                return  # the reading side will say how it ended
            _close_all(fds)
            self._queued -= sent
            if sent < len(frame):
                self._output.appendleft((frame[sent:], []))
        self._loop.watch(self._sock.fileno(), self._readable, self._flush if self._output else None)

    def _write(self, frame: bytes, fds: list[int]) -> int:
        if not fds:
            return self._sock.send(frame)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        return self._sock.sendmsg([frame], ancillary)

    def _readable(self) -> None:
        space = socket.CMSG_SPACE(FDS_PER_MESSAGE * array.array("i").itemsize)
        try:
            piece, ancillary, _, _ = self._sock.recvmsg(PIECE_BYTES, space, _CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it died with something of ours unread
            piece, ancillary = b"", []
        except OSError as error:
            self._end(str(error))
            return
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += _unpack_fds(payload)
        self._decoder.feed(piece, fds)
        try:
            while (frame := self._decoder.next_frame()) is not None:
                self._receive(frame.message, frame.fds)
        except FrameError as error:
            self._end(str(error))
            return
        if not piece:
            self._end("closed")


def _unpack_fds(payload: bytes) -> list[int]:
    numbers = array.array("i")
    numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
    for fd in numbers:
        os.set_inheritable(fd, False)
    return list(numbers)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _ignore(_why: str) -> None:
    """Said once already."""
