"""The keeper's end of the socketpair to the control plane: whole frames in, whole frames out, never waiting.

What the control plane does not read is queued up to BACKLOG_BYTES; beyond that it counts as hung, as it does when it
speaks nonsense. Closing the channel is not this module's to decide: to the control plane it means that the keeper is
dead.
"""

from __future__ import annotations

from supervisord_py.keeper.protocol import MAX_FRAME, FrameError, FrameSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any

    from supervisord_py.keeper.loop import Loop

    Receive = Callable[[dict[str, Any], list[int]], None]

BACKLOG_BYTES = 2 * MAX_FRAME


class Channel:
    """Frames over one connected socket, ours from now on.

    `receive` takes each frame and owns its descriptors; `fail` is told once, in words, why no further frame will come
    ("closed" at the regular end).
    """

    def __init__(self, loop: Loop, sock: socket.socket, receive: Receive, fail: Callable[[str], None]) -> None:
        self._loop = loop
        self._frames = FrameSocket(sock)
        self._receive = receive
        self._fail: Callable[[str], None] | None = fail
        loop.watch(sock.fileno(), self._readable)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a frame; `fds` are duplicated into it at once, the caller keeps its own."""
        self._frames.push(message, fds)
        if self._frames.queued > BACKLOG_BYTES:
            self._end("it does not read what it is sent")
        else:
            self._flush()

    def close(self) -> None:
        """Give everything back. Only once the other side is dead."""
        self._fail = None
        self._loop.unwatch(self._frames.fileno())
        self._frames.close()

    def _end(self, why: str) -> None:
        fail, self._fail = self._fail, None
        self._loop.unwatch(self._frames.fileno())
        if fail is not None:
            fail(why)

    def _flush(self) -> None:
        if self._fail is None:
            return
        try:
            done = self._frames.flush()
        except OSError:
            return  # the reading side will say how it ended
        self._loop.watch(self._frames.fileno(), self._readable, None if done else self._flush)

    def _readable(self) -> None:
        try:
            more = self._frames.receive()
            while self._fail is not None and (frame := self._frames.next_frame()) is not None:
                self._receive(*frame)
        except BlockingIOError:
            return
        except (FrameError, OSError) as error:
            self._end(str(error))
            return
        if not more:
            self._end("closed")
