"""The `sys.stdout` and `sys.stderr` of the kernel: ipykernel's own, and for cells of ours a way straight into the file.

Law: for a request that is not ours nothing differs from ipykernel. For one of ours every write is in the file before
it returns; what lay in the pipes before it is there first (see `descriptors`).
"""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import codecs
import io
import os
import sys
from typing import TYPE_CHECKING

from ipykernel.iostream import OutStream as Stock

from .descriptors import NUMBERS, Capture  # noqa: TID252
from .forked import Lines  # noqa: TID252
from .live_cell import Cells, LiveCell  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SLICE = 1 << 20
"""Characters that are encoded at a time: a huge string must not be held twice."""


class Wiring:
    """What all streams of this process share."""

    def __init__(self) -> None:
        self.cells = Cells()
        self.capture: Capture | None = None
        self.streams: dict[str, Any] = {}
        self.forked = False
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")(errors="replace") for name in NUMBERS}

    def note_fork(self) -> None:
        """Know that this process is a child of the kernel."""
        self.forked = True

    def start_capture(self) -> Capture:
        """Take descriptors 1 and 2, once."""
        if self.capture is None:
            self.capture = Capture(self)
            self.cells.say = self.capture.say
        return self.capture

    def write(self, stream: str, data: bytes) -> None:
        """Take what was written to a descriptor while no cell of ours had it."""
        outstream = self.streams.get(stream)
        if outstream is None or self.capture is None:
            return
        cell = self.cells.get(outstream.last_header)
        if cell is not None:
            cell.write(stream, data)
            return
        Stock.write(outstream, self._decoders[stream].decode(data))
        self.capture.echo(stream, data)

    def put_right(self, request: Mapping[str, Any]) -> None:
        """Make sure of the streams before `request` is run, and after it was broken off.

        ipykernel tells only what `sys.stdout` is now whose output comes; user code may have put a wrapper of its own
        there. Where it has left something that cannot be written to, no cell would ever run again: ours come back.
        """
        for name, outstream in self.streams.items():
            outstream.set_parent(request)
            if not _writable(getattr(sys, name, None)):
                setattr(sys, name, outstream)


WIRING = Wiring()
os.register_at_fork(after_in_child=WIRING.note_fork)


class OutStream(Stock):
    """Takes what Python code prints."""

    def __init__(
        self, session: Any, pub_thread: Any, name: str, *args: Any, watchfd: Any = True, **kwargs: Any
    ) -> None:
        super().__init__(session, pub_thread, name, *args, watchfd=False, **kwargs)
        self._bytes = _Bytes(self)
        self._lines = Lines(NUMBERS[name])
        self._last: tuple[Any, LiveCell | None] = ({}, None)
        WIRING.streams[name] = self
        if watchfd:
            self._original_stdstream_copy = WIRING.start_capture().original[name]

    def write(self, string: Any) -> int | None:  # type: ignore[override] # as ipykernel's
        """Write text; return the number of characters."""
        cell = self._cell()
        if cell is None or not isinstance(string, str):
            return super().write(string)  # which also finds the words for what is no text
        if len(string) <= SLICE:
            self.write_bytes(cell, _encoded(string))
        else:
            for start in range(0, len(string), SLICE):
                self.write_bytes(cell, _encoded(string[start : start + SLICE]))
        return len(string)

    def _cell(self) -> LiveCell | None:
        """Return the cell that the caller's output belongs to; each print asks, and most mean the one of the last."""
        header = self.parent_header
        known, cell = self._last
        if header is not known or cell is None:
            cell = WIRING.cells.get(header)
            self._last = header, cell
        return cell

    def write_bytes(self, cell: LiveCell, data: bytes) -> None:
        """Write what was encoded, or never was text."""
        if WIRING.forked:
            self._lines.write(data)  # the file has one writer, the kernel
            return
        if WIRING.capture is not None:
            WIRING.capture.catch_up()
        cell.write(self.name, data)

    def flush(self) -> None:
        """Publish what was not yet published; in the file it is already. A forked child writes what it has gathered."""
        cell = WIRING.cells.get(self.parent_header)
        if cell is None:
            super().flush()
            return
        if WIRING.forked:
            self._lines.flush()
        else:
            cell.flush()

    def close(self) -> None:
        """Stay open: a kernel whose stdout is closed can run nothing any more."""

    def fileno(self) -> int:
        """Return a descriptor for child processes: for cells of ours the captured one."""
        if WIRING.capture is not None and WIRING.cells.get(self.parent_header) is not None:
            return NUMBERS[self.name]
        number: int = super().fileno()
        return number

    @property
    def buffer(self) -> Any:
        """A binary stream beneath, which ipykernel has not: there is one only in cells of ours."""
        if WIRING.cells.get(self.parent_header) is None:
            raise AttributeError("'OutStream' object has no attribute 'buffer'")
        return self._bytes

    @property
    def last_header(self) -> Mapping[str, Any]:
        """The header of whoever ran last: that is how ipykernel routes what bears no sign of its own."""
        header: Mapping[str, Any] = self._parent_header_global
        return header

    def set_parent(self, parent: Mapping[str, Any]) -> None:
        """Note whose output comes now.

        Threads go on writing to the last cell of ours while a client only asks something (a completion, our own
        kernel_info_request): that would otherwise be the parent of their output.
        """
        before = self._parent_header_global
        super().set_parent(parent)
        header = parent.get("header", parent)
        if header.get("msg_type") != "execute_request" and WIRING.cells.get(before) is not None:
            self._parent_header_global = before

    def set_own_parent(self, header: Mapping[str, Any]) -> None:
        """Note whose output the calling thread's is."""
        self._parent_header.set(dict(header))


# Libraries tell a notebook by the name of this class ('OutStream' of 'ipykernel.iostream'): it is one.
OutStream.__module__ = Stock.__module__


def _writable(stream: Any) -> bool:
    """Say whether `stream` can be written to and flushed; it is whatever user code made of it."""
    try:
        stream.flush()
        return callable(stream.write) and not getattr(stream, "closed", False)
    except Exception:
        return False


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer` and `sys.stderr.buffer`."""

    def __init__(self, outstream: OutStream) -> None:
        self._outstream = outstream
        self.name = outstream.name

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._outstream.fileno()

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        self._outstream.flush()

    def close(self) -> None:
        """Stay open: who wraps this in a text stream and forgets that would else close the user's stdout."""

    def write(self, data: Any) -> int:
        """Write bytes as they are."""
        whole = memoryview(data).cast("B")
        cell = WIRING.cells.get(self._outstream.parent_header)
        if cell is None:
            self._outstream.write(bytes(whole).decode(errors="replace"))
        else:
            for start in range(0, len(whole), SLICE):
                self._outstream.write_bytes(cell, bytes(whole[start : start + SLICE]))
        return len(whole)


def _encoded(text: str) -> bytes:
    """Return the bytes of `text`: file names with bytes that are no UTF-8 come out as those bytes (PEP 383)."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")
