"""Ctrl-C: noticed at every moment and never lost.

Law: once SIGINT has come the command waits for nothing more; the second one ends the process at once, whatever it does.

The interpreter alone does not keep it. A signal that comes after the last look at the signals and before a system call
leaves that call blocked; a KeyboardInterrupt that is raised inside of a destructor or of a callback is printed and
forgotten. So each wait of the main thread is a poll that also looks at a pipe which the interpreter's own part of the
signal handling writes to at once (`signal.set_wakeup_fd`), and asks the note of what came before it waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_MILLISECONDS = 1000
_LONGEST = 1e9
"""Of one poll(2), whose time is an int."""
_NOT_WATCHED = -1


class _Watch:
    """What is known of Ctrl-C in this process."""

    __slots__ = ("pressed", "read_end", "thread", "write_end")

    def __init__(self) -> None:
        self.pressed = False
        self.thread = _NOT_WATCHED
        self.read_end = _NOT_WATCHED
        self.write_end = _NOT_WATCHED


_watch = _Watch()


def begin() -> None:
    """Watch for Ctrl-C from here on; where SIGINT is ignored (a shell's background job) or another's, leave it alone.

    Call it in the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    sys.excepthook = _told
    sys.unraisablehook = _forgotten
    _watch.pressed = False
    _watch.read_end, _watch.write_end = os.pipe()
    os.set_blocking(_watch.read_end, False)
    os.set_blocking(_watch.write_end, False)
    _watch.thread = get_ident()
    signal.set_wakeup_fd(_watch.write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _press)


def end() -> None:
    """Everything is said: from here on Ctrl-C ends the process, and nobody sees a traceback."""
    if _watch.thread == _NOT_WATCHED:
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _watch.thread = _NOT_WATCHED
    os.close(_watch.read_end)
    os.close(_watch.write_end)


def note() -> None:
    """Note that Ctrl-C ends the command; the next one ends the process at once. For signal handlers that raise."""
    _watch.pressed = True
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def was_noted() -> bool:
    """Say whether Ctrl-C has ended the command."""
    return _watch.pressed


def wait_readable(fd: int, seconds: float | None = None) -> bool:
    """Wait until something can be read, or the other end is gone; False when the time is over (None is never).

    Raises:
        KeyboardInterrupt: Ctrl-C, now or before: nobody waits for an answer any more.
    """
    if _watch.pressed and _is_watched():
        raise KeyboardInterrupt
    return _wait(fd, select.POLLIN, seconds)


def wait_writable(fd: int, seconds: float | None = None) -> bool:
    """Wait until something can be written; as `wait_readable`, but what is being cleared away may still be written.

    Raises:
        KeyboardInterrupt: Ctrl-C while it waits.
    """
    return _wait(fd, select.POLLOUT, seconds)


def pause(seconds: float) -> None:
    """Sleep.

    Raises:
        KeyboardInterrupt: Ctrl-C, now or before.
    """
    if _watch.pressed and _is_watched():
        raise KeyboardInterrupt
    _wait(None, 0, seconds)


def _wait(fd: int | None, events: int, seconds: float | None) -> bool:
    poll, wake = select.poll(), _watch.read_end
    if fd is not None:
        poll.register(fd, events)
    if _is_watched():
        poll.register(wake, select.POLLIN)
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        found = [ready for ready, _ in poll.poll(None if left is None else min(left * _MILLISECONDS, _LONGEST))]
        if wake in found:
            # The handler has run when this line does; where what it raised was lost, the note is left.
            _drain(wake)
        if fd in found:
            return True
        if left == 0.0:
            return False


def _is_watched() -> bool:
    """Say whether this is the thread that Ctrl-C ends; others wait for what they wait for."""
    return _watch.thread == get_ident()


def _drain(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 4096)


def _press(number: int, frame: FrameType | None) -> None:
    del number, frame
    note()
    raise KeyboardInterrupt


def _told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Show what nobody caught; Ctrl-C at the very end is no error of ours, and the exit code says it."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _forgotten(unraisable: Any) -> None:
    """Show what nobody could catch; a Ctrl-C among it was noted, and the next wait raises it again."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
