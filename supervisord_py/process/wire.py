"""The control plane's end of the keeper's channel: frames and descriptors over one stream socket, questions in them.

Law: nothing here blocks, and nothing is lost or mixed up: frames go out in the order of `send`, descriptors ride on the
first byte of their frame and are handed out with exactly that frame; what breaks the framing ends the channel. Every
question ends, by its answer, by its deadline or by the loss of the keeper, and each of the last two raises
`KeeperLostError`. Descriptors that nobody takes are closed.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import json
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import KeeperLostError, TooLargeError
from supervisord_py.keeper.protocol import LENGTH_BYTES, MAX_FRAME, Decoder, Frame, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Message = dict[str, Any]

_READ_BYTES = 256 * 1024
_READS_A_TURN = 8
"""Reads before the loop gets its turn again: a flood of events must not starve everything else."""
_FDS_MAX = 64
_ANCILLARY_BYTES = socket.CMSG_SPACE(_FDS_MAX * array.array("i").itemsize)
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
HIGH_WATER_BYTES = 1024 * 1024


def close_fds(fds: Iterable[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def encode(message: Message) -> bytes:
    """Return the bytes of one frame. Escaped to ASCII, so that surrogates (undecodable file names) pass too.

    Raises:
        FrameError: It is larger than a frame may be.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


@dataclass(slots=True)
class _Outgoing:
    rest: memoryview
    fds: tuple[int, ...]


class Channel:
    """A socket that speaks frames. Use on the loop's thread only.

    Args:
        sock: A connected AF_UNIX stream socket; owned from now on.
        on_frame: Called for each frame as it comes; owns the frame's descriptors.
        on_closed: Called once when the peer is gone or broke the framing, with the cause (None: it closed); not called
            after `close()`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[Exception | None], None],
    ) -> None:
        sock.settimeout(0)
        os.set_inheritable(sock.fileno(), False)  # its only parameter
        self._sock = sock
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._decoder = Decoder()
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._writing = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closed

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue one frame; duplicates of `fds` ride along, so the caller may close his at once.

        Raises:
            FrameError: The frame is too large, or the channel is closed.
        """
        if self._closed:
            raise FrameError("the channel is closed")
        data = encode({**message, "fds": len(fds)} if fds else message)
        self._queue.append(_Outgoing(memoryview(data), tuple(os.dup(fd) for fd in fds)))
        self._queued_bytes += len(data)
        if self._queued_bytes > HIGH_WATER_BYTES:
            self._drained.clear()
        if not self._writing:
            self._writable()

    async def drain(self) -> None:
        """Wait until little enough is queued; returns at once when the channel is closed."""
        await self._drained.wait()

    def close(self) -> None:
        """End the channel from this side; frames not yet sent are dropped."""
        self._end()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._decoder.close()
        for outgoing in self._queue:
            close_fds(outgoing.fds)
        self._queue.clear()
        self._drained.set()

    def _fail(self, cause: Exception | None) -> None:
        if not self._closed:
            self._end()
            self._on_closed(cause)

    def _readable(self) -> None:
        for _ in range(_READS_A_TURN):
            if self._closed or not self._read_once():
                return

    def _read_once(self) -> bool:
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY_BYTES, _CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._fail(error)
            return False
        fds = _received(ancillary)
        if flags & socket.MSG_CTRUNC:
            close_fds(fds)
            self._fail(FrameError("descriptors were lost on the way: too many, or this process may open no more"))
            return False
        if not data:
            self._fail(None)
            return False
        return self._deliver(data, fds)

    def _deliver(self, data: bytes, fds: Sequence[int]) -> bool:
        self._decoder.feed(data, fds)
        while not self._closed:
            try:
                frame = self._decoder.next_frame()
            except FrameError as error:
                self._fail(error)
                return False
            if frame is None:
                return True
            self._on_frame(frame)
        return False

    def _writable(self) -> None:
        try:
            while self._queue:
                self._write_some(self._queue[0])
        except (BlockingIOError, InterruptedError):
            self._want_write(wanted=True)
        except OSError:
            # The reading side meets the same end, after all that the peer still said before it.
            self._want_write(wanted=False)
            self._drop_queue()
        else:
            self._want_write(wanted=False)

    def _write_some(self, outgoing: _Outgoing) -> None:
        if outgoing.fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", outgoing.fds))]
            sent = self._sock.sendmsg([outgoing.rest], rights)
            close_fds(outgoing.fds)
            outgoing.fds = ()
        else:
            sent = self._sock.send(outgoing.rest)
        outgoing.rest = outgoing.rest[sent:]
        self._queued_bytes -= sent
        if not outgoing.rest:
            self._queue.popleft()
        if self._queued_bytes <= HIGH_WATER_BYTES:
            self._drained.set()

    def _drop_queue(self) -> None:
        for outgoing in self._queue:
            close_fds(outgoing.fds)
        self._queue.clear()
        self._queued_bytes = 0
        self._drained.set()

    def _want_write(self, *, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._fd, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._fd)
        self._writing = wanted


def _received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for fd in found:
        os.set_inheritable(fd, False)  # its only parameter; MSG_CMSG_CLOEXEC is not everywhere
    return list(found)


_GONE_HINT = "the daemon ends now and its children with it; see `pxctl why UNIT` after the next start"
_MUTE_HINT = "see `pxctl doctor`; `pxctl daemon restart --all` replaces keeper and control plane"


class RefusedError(Exception):
    """The keeper said no. `kind` is one of keeper/protocol.py; `members` is the whole error object."""

    def __init__(self, members: Message) -> None:
        self.kind = str(members.get("kind"))
        self.detail = str(members.get("detail", self.kind))
        self.members = members
        super().__init__(self.detail)


class Calls:
    """The control plane's end of the channel.

    Args:
        sock: Connected to the keeper; owned from now on.
        on_event: Called with each event's JSON object.
        on_lost: Called once when the keeper is gone; not after `close()`.
    """

    def __init__(
        self, sock: socket.socket, *, on_event: Callable[[Message], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_event = on_event
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._channel = Channel(sock, self._frame, self._closed)

    @property
    def closed(self) -> bool:
        """Whether no question can be asked any more."""
        return self._channel.closed

    async def ask(self, verb: str, seconds: float, *, fds: Sequence[int] = (), **members: Any) -> Message:
        """Ask, and return the answer.

        Args:
            verb: Of keeper/protocol.py.
            seconds: Deadline.
            fds: Descriptors that ride along; they stay the caller's.
            members: Members of the request, JSON values.

        Raises:
            RefusedError: The keeper said no.
            KeeperLostError: It is gone or late.
            TooLargeError: The request does not fit into a frame.
        """
        frame = await self._exchange(verb, seconds, fds, members)
        close_fds(frame.fds)
        return _accepted(frame.message)

    async def ask_fd(self, verb: str, seconds: float, **members: Any) -> int:
        """Ask for a descriptor, and return it; raises like `ask`. The caller closes it."""
        frame = await self._exchange(verb, seconds, (), members)
        if len(frame.fds) != 1:
            close_fds(frame.fds)
            _accepted(frame.message)
            raise KeeperLostError(f"the keeper answered `{verb}` with {len(frame.fds)} descriptors instead of one")
        return frame.fds[0]

    def tell(self, verb: str) -> None:
        """Send a request whose answer does not matter; nothing happens when the keeper is gone."""
        if not self._channel.closed:
            self._channel.send({"id": next(self._numbers), "verb": verb})

    def close(self) -> None:
        """End the channel from this side."""
        self._channel.close()
        self._fail_pending("the channel to the keeper was closed")

    async def _exchange(self, verb: str, seconds: float, fds: Sequence[int], members: Message) -> Frame:
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._channel.drain()
                self._send({"id": number, "verb": verb, **members}, fds)
                self._pending[number] = future
                return await future
        except TimeoutError as error:
            _discard(future)
            raise KeeperLostError(
                f"the keeper did not answer `{verb}` within {seconds:g} s", hint=_MUTE_HINT
            ) from error
        except asyncio.CancelledError:
            _discard(future)
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: Message, fds: Sequence[int]) -> None:
        if self._channel.closed:
            raise KeeperLostError("the keeper is gone", hint=_GONE_HINT)
        try:
            self._channel.send(message, fds)
        except FrameError as error:
            raise TooLargeError(f"`{message['verb']}` cannot be sent to the keeper: {error}") from error

    def _frame(self, frame: Frame) -> None:
        number = frame.message.get("id")
        if number is None:
            close_fds(frame.fds)
            self._on_event(frame.message)
            return
        future = self._pending.pop(number, None) if isinstance(number, int) else None
        if future is None or future.done():
            close_fds(frame.fds)
        else:
            future.set_result(frame)

    def _closed(self, cause: Exception | None) -> None:
        self._fail_pending("the keeper is gone" if cause is None else f"the keeper is lost: {cause}")
        self._on_lost()

    def _fail_pending(self, detail: str) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(KeeperLostError(detail, hint=_GONE_HINT))


def _accepted(message: Message) -> Message:
    if message.get("ok") is True:
        return message
    error = message.get("error")
    raise RefusedError(error if isinstance(error, dict) else {"kind": "failed", "detail": f"refused: {message}"})


def _discard(future: asyncio.Future[Frame]) -> None:
    """Close what an answer brought that came in the very moment its asker gave up."""
    if future.done() and not future.cancelled() and future.exception() is None:
        close_fds(future.result().fds)
