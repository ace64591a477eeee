"""SIGINT: it ends the user's code and nothing else, and it arrives also where ipykernel lets it wait.

ipykernel raises KeyboardInterrupt from before it calls the handler of a request until after that has returned: in its
own code that means no reply, or no kernel. For cells of ours the handler looks where it is: while user code is on the
stack it raises; before, it remembers and raises when the code begins; afterwards there is nothing left to interrupt.
Signal handlers are the main thread's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType
    from typing import Any


class Gate:
    """What SIGINT does around a cell of ours."""

    def __init__(self) -> None:
        self._came = 0
        self._user_code: set[CodeType] = set()
        self._run: CodeType | None = None
        self._trigger: CodeType | None = None

    def surround(self, shell: Any) -> None:
        """Learn what runs user code: cells, callbacks of events such as the drawing of figures, user expressions.

        `run_code` and `showtraceback` of IPython's shell are wrapped.
        """
        run_code = shell.run_code

        @functools.wraps(run_code)
        async def run_user_code(*args: Any, **kwargs: Any) -> Any:
            self._deliver()
            return await run_code(*args, **kwargs)

        show = shell.showtraceback

        @functools.wraps(show)
        def show_without_ours(*args: Any, **kwargs: Any) -> Any:
            kind, _, trace = sys.exc_info()
            if kind is not None and kind.__name__ in _RAISED_BY_OURS and trace is not None:
                _cut_off_ours(trace)
            return show(*args, **kwargs)

        shell.run_code = run_user_code
        shell.showtraceback = show_without_ours
        called: tuple[Any, ...] = (run_user_code, type(shell.events).trigger, type(shell).user_expressions)
        self._user_code = {each.__code__ for each in called}
        self._run, self._trigger = called[0].__code__, called[1].__code__

    def arm(self) -> Any:
        """Take SIGINT over for a cell of ours; return the handler that was in force."""
        self._came = 0
        return signal.signal(signal.SIGINT, self._handle)

    def disarm(self) -> None:
        """Ignore it, as an idle kernel does."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @contextlib.contextmanager
    def awaiting(self, cell: asyncio.Future[Any]) -> Iterator[None]:
        """Interrupt an asynchronous cell; entered when ipykernel's own handler, which cancels the cell, is in force.

        That handler gives its work to the loop with `add_callback`, from within the loop's own thread: this does not
        end the wait in select(2), so nothing happens until something else does (ipykernel #881). And nothing happens at
        all when the cell's code is next in the loop and does not come back. So the cell is cancelled here and now.

        Args:
            cell: The task that runs it.
        """

        def handle(_number: int, frame: FrameType | None) -> None:
            if self._is_user_code(frame):
                raise KeyboardInterrupt
            if asyncio.current_task(cell.get_loop()) is cell:
                self._came += 1  # between two statements: raised when the next one begins
            else:
                cell.cancel()
                cell.get_loop().call_soon_threadsafe(_nothing)

        signal.signal(signal.SIGINT, handle)
        if self._came:
            signal.raise_signal(signal.SIGINT)
        try:
            yield  # ipykernel restores what was in force before its own handler
        finally:
            self._came = 0

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if self._is_user_code(frame):
            raise KeyboardInterrupt
        self._came += 1

    def _deliver(self) -> None:
        came, self._came = self._came, 0
        if came:
            raise KeyboardInterrupt

    def _is_user_code(self, frame: FrameType | None) -> bool:
        """Say whether what runs user code has called `frame`, directly or not."""
        if frame is not None and frame.f_code is self._run:
            return True  # on the way in or out
        while frame is not None:
            called, frame = frame, frame.f_back
            if frame is not None and frame.f_code in self._user_code:
                # IPython's own callbacks are short, and it takes an interrupt of them for a mistake of theirs.
                theirs = str(called.f_globals.get("__name__")).startswith(("IPython.", "ipykernel."))
                if frame.f_code is not self._trigger or not theirs:
                    return True
        return False


GATE = Gate()


def accept() -> None:
    """Let SIGINT be what it is by default: a shell that starts a job with `&` has it ignored, and that is inherited."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cut_off_ours(trace: TracebackType) -> None:
    """End a traceback where the user's code was interrupted: the rest is how we raise, and what we call."""
    last, step, is_beneath_ours = trace, trace.tb_next, False
    while step is not None:
        is_ours = os.path.dirname(step.tb_frame.f_code.co_filename) == _FOLDER
        is_beneath_ours = is_beneath_ours or is_ours
        if not is_ours and not (is_beneath_ours and _is_library(step.tb_frame)):
            last = step
        step = step.tb_next
    last.tb_next = None


def _is_library(frame: FrameType) -> bool:
    """Say whether this is the code of Python's own modules or of Jupyter's, which ours calls, and users' seldom."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names or package in _JUPYTERS


_FOLDER = os.path.dirname(__file__)
_JUPYTERS = ("ipykernel", "IPython", "jupyter_client", "traitlets", "zmq", "tornado")
_RAISED_BY_OURS = ("KeyboardInterrupt", "StdinNotImplementedError")


def _nothing() -> None:
    """Be the reason to wake."""
