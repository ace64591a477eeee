"""The kernel's stdout and stderr: ipykernel's own, and for cells of ours the cell's files.

While a cell of ours runs, its files are descriptors 1 and 2, so children and C libraries write
there, too; what is printed is in the file before `print` returns, and its first bytes are published
for other clients. For any other request nothing differs from ipykernel.

What a thread, a task or a child prints is output of the cell that runs at that time, whichever cell
started it; between two cells, of the last one.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import codecs
import contextlib
import functools
import os
import sys
import threading
from collections import OrderedDict
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from ipykernel.iostream import OutStream as Stock

from .cell_writer import STREAMS, CellWriter  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBERS = {"stdout": 1, "stderr": 2}
REMEMBERED = 1024  # cells whose late output is still known for what it is


class OwnCell:
    """One cell of ours.

    `asked`: what its request says of it. `left`: bytes of its text still to be published.
    """

    def __init__(self, header: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        self.header = dict(header)
        self.writer = CellWriter(asked["dir"], asked["cell"], int(asked["cap"]))
        self.left = int(asked["preview"])
        self.file: str | None = asked.get("file")  # of the script that it is a part of
        # name and exit code of the SystemExit that ended it
        self.exit: tuple[str, int] | None = None
        self.decoders = {
            stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in NUMBERS
        }


CURRENT: ContextVar[OwnCell | None] = ContextVar("px_cell", default=None)
"""The cell for which the calling thread or task runs, wherever that is known."""


class Cells:
    """The cells that this kernel has run, and those that have descriptors 1 and 2, the newest
    last.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.pid = os.getpid()
        self.streams: dict[str, OutStream] = {}
        self._known: OrderedDict[str, OwnCell] = OrderedDict()
        self._holders: list[OwnCell] = []
        self._last: OwnCell | None = None
        # What descriptors 1 and 2 were before the first cell of ours, by their numbers.
        self._original_descriptors: dict[int, int] = {}
        # Copies of descriptors 1 and 2 that are switched with them. Libraries that redirect those
        # two (wurlitzer) refuse a `sys.stdout` which says that it is one of them.
        self._copies: dict[int, int] = {}
        os.register_at_fork(after_in_child=self._print_to_descriptors)

    def get(self, header: Mapping[str, Any]) -> OwnCell | None:
        return self._known.get(header.get("msg_id", ""))

    def open(self, request: Mapping[str, Any]) -> OwnCell | None:
        """Return the new cell that `request` asks for, None where it is not one of ours.

        Its `begin` is written.
        """
        asked = (request.get("metadata") or {}).get("px")
        if not isinstance(asked, dict) or not asked.keys() >= {"cell", "dir", "preview", "cap"}:
            return None
        cell = OwnCell(request["header"], asked)
        cell.writer.begin(str(request["content"].get("code", "")))
        self.folder = asked["dir"]
        self._known[cell.header["msg_id"]] = cell
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return cell

    def take_descriptors(self, cell: OwnCell) -> None:
        """Put the files of a cell on descriptors 1 and 2; what cannot be opened leaves them as
        they are.
        """
        if not self._original_descriptors:
            self.copy_descriptors()
        if self._last is not None and not self._holders:
            cell.writer.go_on_after(self._last.writer)
        self._last = cell
        self._holders.append(cell)
        self._switch()

    def copy_descriptors(self) -> None:
        """Copy descriptors 1 and 2, before the first cell.

        Raises OSError: nothing was copied, the next cell tries.
        """
        originals: dict[int, int] = {}
        copies: dict[int, int] = {}
        try:
            for number in NUMBERS.values():
                originals[number] = os.dup(number)
                copies[number] = os.dup(number)
        except OSError:
            for descriptor in (*originals.values(), *copies.values()):
                os.close(descriptor)
            raise
        self._original_descriptors = originals
        self._copies = copies

    def output_cell(self, cell: OwnCell | None) -> OwnCell | None:
        """Return the cell that gets output printed now on behalf of `cell`; None if that is not
        ours.

        If `cell` has ended, its thread or task moves on to the cell that runs, or to the last one:
        from now on `CURRENT` and the parents of the streams name that one.
        """
        if cell is None or not cell.writer.ended:
            return cell
        running = self._holders[-1] if self._holders else self._last
        if running is None or running is cell:
            return cell
        self._move_caller_to(running)
        return running

    def _move_caller_to(self, running: OwnCell) -> None:
        """Have the calling thread or task print for this cell from now on."""
        CURRENT.set(running)
        for stream in self.streams.values():
            stream.set_parent_here(running.header)

    def copy_of(self, number: int) -> int:
        return self._copies.get(number, number)

    def give_back(self, cell: OwnCell) -> None:
        if cell in self._holders:
            _flush_native()
            self._holders.remove(cell)
            self._switch()

    def _switch(self) -> None:
        for stream, number in NUMBERS.items():
            descriptor = self._original_descriptors[number]
            if self._holders:
                # no space for a file: others see the text, the end tells of it
                with contextlib.suppress(OSError):
                    descriptor = self._holders[-1].writer.hold(STREAMS[stream])
            os.dup2(descriptor, number)
            os.dup2(descriptor, self._copies[number], inheritable=False)

    def set_parent(self, request: Mapping[str, Any]) -> None:
        """Make sure of the streams: of their parent, and that user code has left something that can
        be written to.

        ipykernel tells only what `sys.stdout` is now; where it cannot be flushed, no cell would
        ever be answered.
        """
        for name, stream in self.streams.items():
            stream.set_parent(request)
            found: Any = getattr(sys, name, None)
            try:
                found.flush()
                if getattr(found, "closed", False) or not callable(found.write):
                    setattr(sys, name, stream)
            except Exception:  # it is whatever user code made of it
                setattr(sys, name, stream)

    def _print_to_descriptors(self) -> None:
        """In a child that was forked by a cell: print as a program does, each line with one
        write.
        """
        is_of_cell = bool(self._holders) or CURRENT.get() is not None
        for name, stream in self.streams.items():
            if is_of_cell and getattr(sys, name, None) is stream:
                # One write a line: those of several children do not mix.
                lines = open(NUMBERS[name], "w", 1, "utf-8", "surrogateescape", closefd=False)  # noqa: SIM115
                setattr(sys, name, lines)


CELLS = Cells()


class OutStream(Stock):
    flush_interval = 0.05

    def __init__(self, session: Any, pub_thread: Any, name: str, *args: Any, **kwargs: Any) -> None:
        self._is_unpublished = False
        CELLS.streams[name] = self
        super().__init__(session, pub_thread, name, *args, **kwargs)

    def set_parent_here(self, header: Mapping[str, Any]) -> None:
        """Set the parent for the calling thread or task alone: ipykernel's own setter sets it
        for all others, too.
        """
        self._parent_header.set(dict(header))

    def cell(self) -> OwnCell | None:
        return CELLS.output_cell(CURRENT.get() or CELLS.get(self.parent_header))

    def write(self, string: str) -> Any:
        """Write it to the cell's file; publish it where it is among the first bytes of the cell."""
        cell = self.cell()
        if cell is None or not isinstance(string, str):
            return super().write(string)
        try:
            # a file name that is no UTF-8 comes out as its bytes
            data = string.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            data = string.encode(errors="backslashreplace")
        cell.writer.write(self.name, data)
        if cell.left > 0 and os.getpid() == CELLS.pid:
            piece = data[: cell.left]
            cell.left -= len(piece)
            self._is_unpublished = True
            super().write(cell.decoders[self.name].decode(piece))
        return len(string)

    def flush(self) -> None:
        """Of cells of ours there is nothing to be flushed."""
        if self.cell() is None:
            super().flush()

    def publish(self) -> None:
        """Send what was not sent yet: before any other message about the cell."""
        if self._is_unpublished:
            self._is_unpublished = False
            super().flush()

    def close(self) -> None:
        """Stay open: a kernel whose stdout is closed can run nothing any more."""

    def fileno(self) -> int:
        """Return a descriptor for child processes: for cells of ours that of the file."""
        return (
            CELLS.copy_of(NUMBERS[self.name]) if self.cell() is not None else int(super().fileno())
        )

    @property
    def buffer(self) -> Any:
        """A binary stream beneath, which ipykernel has not: there is one only in cells of ours."""
        if self.cell() is None:
            raise AttributeError("'OutStream' object has no attribute 'buffer'")
        return open(NUMBERS[self.name], "wb", 0, closefd=False)


# Libraries tell a notebook by the name of this class ('OutStream' of 'ipykernel.iostream'): it is
# one.
OutStream.__module__ = Stock.__module__


def _c_stdout() -> Any:
    """Return what calls fflush(3) on the C library's `stdout`, from now on buffered by lines;
    None without one.
    """
    try:
        import ctypes

        library = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(
            library, "__stdoutp" if sys.platform == "darwin" else "stdout"
        )
        library.setvbuf(stdout, None, 1, 0)  # 1 is _IOLBF, of glibc and of macOS
        return functools.partial(library.fflush, stdout)
    except (ImportError, OSError, ValueError, AttributeError):
        return None


_FLUSH_C_STDOUT = _c_stdout()


def _flush_native() -> None:
    """Have the C library and Python's original streams write out what they hold back for
    descriptors 1 and 2.
    """
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
    if _FLUSH_C_STDOUT is not None:
        _FLUSH_C_STDOUT()


def attribute_threads() -> None:
    """Have a thread know the cell that started it: what it prints belongs to that, or to one
    that runs later.
    """
    start = threading.Thread.start

    @functools.wraps(start)
    def start_for_cell(self: threading.Thread) -> None:
        cell = CURRENT.get()
        if cell is not None:
            context = Context()  # a thread begins with an empty one, and so it is but for us
            context.run(CURRENT.set, cell)
            for stream in CELLS.streams.values():
                context.run(stream.set_parent_here, cell.header)
            self.run = functools.partial(context.run, self.run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_for_cell  # type: ignore[method-assign]
