"""The two streams that people and programs read: results on stdout, everything else on stderr.

Law: stdout carries the result and nothing but the result; when its reader goes away the command ends without a word.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

from pxctl import interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_STDIN = 0
_STDOUT = 1
_STDERR = 2
_FALLBACK_WIDTH = 80
_READ_BYTES = 64 * 1024


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
    """Write it in pieces that a pipe takes at once if it takes any (select.PIPE_BUF): nothing blocks but the wait."""
    view = memoryview(piece)
    while view:
        interrupts.wait_writable(fd)
        # Whoever shares this terminal or pipe may have made it non-blocking (node does).
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(fd, view[: select.PIPE_BUF]) :]


def read_input() -> bytes:
    """Return all of stdin."""
    pieces = []
    while interrupts.wait_readable(_STDIN) and (piece := os.read(_STDIN, _READ_BYTES)):
        pieces.append(piece)
    return b"".join(pieces)


def read_answer() -> str:
    """Return the line that a person types."""
    interrupts.wait_readable(_STDIN)
    return sys.stdin.readline()


def forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot complain."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, _STDOUT)
    os.close(nothing)
