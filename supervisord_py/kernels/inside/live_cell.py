"""The cells of ours that this kernel has run: who writes where, and what other clients are told of it.

Law: first the file, then the message. Of a cell's stream text only the first `preview` bytes are published, as ordinary
`stream` messages; for the rest there is a `px_tick` at most every 100 ms, whatever is printed, so that neither this
process nor a client that does not read ever holds more than that.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from .cell_writer import CellWriter  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SPACING = 0.1
"""Seconds between two rounds of messages about stream text of one cell."""
FIRST_DELAY = 0.02
"""Seconds until the first one: long enough for the pieces of one print to come together."""
REMEMBERED = 4096
"""Cells whose late output is still known for what it is; each takes about two kilobytes."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LiveCell:
    """One cell while it runs, and afterwards for what comes late.

    Args:
        writer: Of its files.
        header: Header of the execute_request: the parent of every message about this cell.
        preview: Bytes of stream text that are published.
        publisher: Sends messages.
    """

    def __init__(self, writer: CellWriter, header: Mapping[str, Any], preview: int, publisher: Publisher) -> None:
        self.writer = writer
        self.header = header
        self.started = time.monotonic()
        self.replied = False
        self.number: int | None = None
        self.pipes: Any | None = None
        self._publisher = publisher
        self._lock = threading.RLock()
        self._left = preview
        self._pending: list[tuple[str, bytes]] = []
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")(errors="replace") for name in ("stdout", "stderr")
        }
        self._told = 0
        self._last = 0.0
        self._scheduled = False

    def write(self, stream: str, data: bytes) -> None:
        """Take bytes of `stdout` or `stderr`: to the file at once, to other clients soon."""
        self.writer.write(stream, data)
        if self._left > 0:
            with self._lock:
                piece = bytes(data[: self._left])
                self._left -= len(piece)
                self._pending.append((stream, piece))
        if not self._scheduled:
            self._scheduled = True
            due = self._last + SPACING - time.monotonic()
            self._publisher.later(max(due, FIRST_DELAY), self._tell)

    def flush(self) -> None:
        """Send what is to be published and was not yet: before any other message about this cell."""
        with self._lock:  # also to wait for a round that another thread is sending
            pending, self._pending = self._pending, []
            for stream, data in _merged(pending):
                text = self._decoders[stream].decode(data)
                self._told += len(data)
                if text:
                    self._publisher.stream(self.header, stream, text)

    def _tell(self) -> None:
        """Publish; runs in the thread of the iopub socket, which must not wait here.

        Whoever holds the lock may be waiting for this very thread: the queue in which others hand it their messages
        is of bounded length.
        """
        if not self._lock.acquire(blocking=False):
            self._publisher.later(FIRST_DELAY, self._tell)
            return
        try:
            self._last = time.monotonic()  # before the next round may be scheduled, which reckons from it
            self._scheduled = False
            self.flush()
            total = self.writer.total
            if total > self._told:
                self._told = total
                self._publisher.tick(self.header, total)
        finally:
            self._lock.release()
        self._publisher.drain()
        if self.writer.ended:
            self.writer.close()


class Publisher:
    """Sends messages about cells on iopub.

    ipykernel's thread of that socket is woken through a pipe of bounded length, also by itself: it would wait for
    itself for ever. What it sends itself is therefore put into its queue directly, in turn, and `drain` works that off.

    Args:
        send: Of Jupyter's session, unrecorded.
        pub_thread: ipykernel's thread of the iopub socket.
    """

    def __init__(self, send: Any, pub_thread: Any) -> None:
        self._send = send
        self._pub_thread = pub_thread

    def later(self, delay: float, action: Any) -> None:
        """Call `action` in the socket's thread after `delay` seconds."""
        pub_thread = self._pub_thread
        if self._is_its_thread():
            pub_thread.io_loop.call_later(delay, action)
        else:
            pub_thread.schedule(lambda: pub_thread.io_loop.call_later(delay, action))

    def drain(self) -> None:
        """Send what the socket's thread, the calling one, has queued."""
        if self._is_its_thread():
            self._pub_thread._handle_event(None)

    def send_multipart(self, *args: Any, **kwargs: Any) -> None:
        """Be the socket that Jupyter's session sends to."""
        pub_thread = self._pub_thread
        if self._is_its_thread():
            pub_thread._events.append(lambda: pub_thread._really_send(*args, **kwargs))
        else:
            pub_thread.send_multipart(*args, **kwargs)

    def _is_its_thread(self) -> bool:
        return threading.current_thread() is self._pub_thread.thread

    def stream(self, header: Mapping[str, Any], stream: str, text: str) -> None:
        """Publish stream text as Jupyter's clients know it."""
        content = {"name": stream, "text": text}
        self._send(self, "stream", content, parent=header, ident=b"stream." + stream.encode())

    def tick(self, header: Mapping[str, Any], total: int) -> None:
        """Say that there is more in the file; clients that do not know this message ignore it."""
        content = {"cell": header.get("msg_id"), "total": total}
        self._send(self, "px_tick", content, parent=header, ident=b"px_tick")


class Cells:
    """Finds a cell by the message that asked for it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.publisher: Publisher | None = None
        self.folder: str | None = None
        self.say = _print_error
        self._cells: OrderedDict[str, LiveCell] = OrderedDict()

    def get(self, header: Mapping[str, Any]) -> LiveCell | None:
        """Return the cell whose execute_request has this header, None where that is none of ours."""
        return self._cells.get(header.get("msg_id", ""))

    def concerns(self, request: Mapping[str, Any]) -> bool:
        """Say whether `request` wants to be a cell of ours."""
        return self.publisher is not None and (request.get("metadata") or {}).get("px") is not None

    def open(self, request: Mapping[str, Any]) -> LiveCell | None:
        """Return the new cell that `request` asks for, None where it is not one of ours. Its `begin` is written."""
        if self.publisher is None or not self.concerns(request):
            return None
        known = _understood(request["metadata"]["px"])
        if known is None:
            self.say("px: metadata.px of an execute_request is not understood; it is run as any other")
            return None
        name, folder, preview, cap = known
        header = dict(request["header"])
        cell = LiveCell(CellWriter(folder, name, cap), header, preview, self.publisher)
        cell.writer.begin(str(request["content"].get("code", "")))
        self.folder = folder
        self._remember(header["msg_id"], cell)
        return cell

    def _remember(self, message: str, cell: LiveCell) -> None:
        self._cells[message] = cell
        while len(self._cells) > REMEMBERED:
            self._cells.popitem(last=False)


def _print_error(sentence: str) -> None:
    print(sentence, file=sys.__stderr__)


def _understood(asked: Any) -> tuple[str, str, int, int] | None:
    """Return cell id, folder, preview and cap out of `metadata.px`, None where it is not what it should be."""
    try:
        name, folder = asked["cell"], asked["dir"]
        preview, cap = int(asked["preview"]), int(asked["cap"])
    except (TypeError, KeyError, ValueError):
        return None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(folder, str):
        return None
    return name, folder, preview, cap


def _merged(pieces: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Put neighbours of the same stream together."""
    merged: list[tuple[str, list[bytes]]] = []
    for stream, data in pieces:
        if not merged or merged[-1][0] != stream:
            merged.append((stream, []))
        merged[-1][1].append(data)
    return [(stream, b"".join(parts)) for stream, parts in merged]
