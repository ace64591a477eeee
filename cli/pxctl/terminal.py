"""The streams that people and programs read: results on stdout, everything else on stderr; and the spinner.

stdout carries the result and nothing else; when its reader goes away the command ends without a word.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


_STDIN = 0
_STDOUT = 1
_STDERR = 2
_FALLBACK_WIDTH = 80
_READ_BYTES = 64 * 1024


def interrupt(number: int, frame: object) -> None:
    """Let Ctrl-C end the command, and the next one the process at once, whatever it does."""
    del number, frame
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


def occupy_streams() -> None:
    """Put something in the place of streams that the caller closed.

    Otherwise the next socket would get their number, and the daemon would get what is meant for the user. A closed
    stdout stays unwritable: who closed it and yet asks for a result is told.
    """
    for fd in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(fd)
        except OSError:
            # open(2) returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if fd == _STDERR else os.O_RDONLY), True)


def is_terminal(fd: int) -> bool:
    """Say whether the descriptor is a terminal; a closed one is not."""
    try:
        return os.isatty(fd)
    except OSError:  # pragma: no cover - isatty(3) reports closed descriptors as no terminal
        return False


def width(env: Mapping[str, str]) -> int:
    """Return the number of columns of stdout's terminal: COLUMNS, then what the terminal says, then 80."""
    told = env.get("COLUMNS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(_STDOUT).columns or _FALLBACK_WIDTH
    except OSError:
        return _FALLBACK_WIDTH


def height() -> int:
    """Return the number of lines of stdout's terminal."""
    try:
        return os.get_terminal_size(_STDOUT).lines or 24
    except OSError:
        return 24


def write(piece: str | bytes) -> None:
    """Write to stdout at once; raises ReaderGone when nobody reads it."""
    if isinstance(piece, str):
        piece = piece.encode("utf-8", "surrogateescape")
    try:
        _write_all(_STDOUT, piece)
    except BrokenPipeError as error:
        raise ReaderGone from error


def notice(text: str) -> None:
    """Write a line to stderr; nobody reading it is no reason to fail."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def write_error(piece: str | bytes) -> None:
    """Write a piece to stderr as it is; nobody reading it is no reason to fail."""
    if isinstance(piece, str):
        piece = piece.encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError):
        _write_all(_STDERR, piece)


def _write_all(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Whoever shares this terminal or pipe may have made it non-blocking (node does).
            select.select([], [fd], [])


def read_input() -> bytes:
    """Return all of stdin."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(_STDIN, _READ_BYTES)
        except BlockingIOError:
            select.select([_STDIN], [], [])
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot complain."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, _STDOUT)
    os.close(nothing)


DELAY_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_ASK_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
"""How long the last stroke may take: whoever reads stderr may have stopped reading."""
_ROUND = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN = "|/-\\"


class Spinner:
    """Says on stderr what is waited for and for how long, after 0.3 s, while its block runs; leaves nothing behind.

    Bare locks and no Event: Ctrl-C may cut an Event's own code in two while it holds its lock.

    Args:
        label: What is waited for ("tool:x").
        phase: Says what is going on, in a word or two; asked about twice a second, may block briefly.
        on: False draws nothing.
    """

    def __init__(self, label: str, phase: Callable[[], str], *, on: bool) -> None:
        self._label = label
        self._phase = phase
        self._on = on
        self._going = allocate_lock()
        """Held until it is to stop."""
        self._drawing = allocate_lock()
        """Held while something may still be drawn."""

    def __enter__(self) -> Self:
        if self._on:
            self._going.acquire()
            self._drawing.acquire()
            start_new_thread(self._draw, ())
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Erase the line; may be called twice."""
        with contextlib.suppress(RuntimeError):  # it was told already
            self._going.release()
        if self._drawing.acquire(timeout=_LEAVE_SECONDS):
            self._drawing.release()

    def _draw(self) -> None:
        frames = _ROUND if (sys.stderr.encoding or "").lower().startswith("utf") else _PLAIN
        began = time.monotonic()
        phase, asked, turn, pause = "", float("-inf"), 0, DELAY_SECONDS
        try:
            while not self._going.acquire(timeout=pause):
                now = time.monotonic()
                if now - asked >= _ASK_SECONDS:
                    phase, asked = self._phase(), now
                write_error(f"\r\x1b[K{frames[turn % len(frames)]} {self._label}: {phase} {now - began:.1f}s")
                turn, pause = turn + 1, _FRAME_SECONDS
            if turn:
                write_error("\r\x1b[K")
        finally:
            self._drawing.release()
