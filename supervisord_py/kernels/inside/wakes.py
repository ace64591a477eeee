"""Sees to it that an interrupt wakes a main thread that was about to wait.

CPython notes a signal and looks for it between bytecodes; one that comes after the last look and before a system call
that blocks is noted, and nothing wakes who sleeps then. But the number is written to the wake-up descriptor at once
(`signal.set_wakeup_fd`). A thread reads it there and sends the main thread another signal a few times, whose handler
does nothing: it ends the wait, and the interrupt that is noted is raised. Where it was raised already, nothing happens.

Code that takes the wake-up descriptor for itself (trio, `loop.add_signal_handler`) is as well off as without this.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

POKE = signal.SIGURG
"""Ignored by default, also behind an exec, and seldom anybody's."""
PAUSES = (0.01, 0.05, 0.25)
"""Seconds before each of the signals: a thread may be stopped for a while just before it waits."""


def begin() -> None:
    """Watch the main thread, which calls this, from now on; not where the signal is somebody else's."""
    if signal.getsignal(POKE) != signal.SIG_DFL:
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.signal(POKE, _nothing)
    signal.set_wakeup_fd(told.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(heard,), name="px-wakes", daemon=True).start()


def _watch(heard: socket.socket) -> None:
    main = threading.main_thread().ident
    while numbers := heard.recv(4096):
        if signal.SIGINT not in numbers or main is None:
            continue
        for pause in PAUSES:
            time.sleep(pause)
            if signal.getsignal(POKE) is _nothing:
                signal.pthread_kill(main, POKE)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Be a handler: a signal that is ignored ends no wait."""
