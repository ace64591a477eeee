"""Tells a person who waits what is being waited for and for how long. On stderr, on terminals only.

Laws: nothing is drawn before 0.3 s, and nothing is left behind. Nothing that Ctrl-C may cut in two holds a lock: the
two that there are change hands in one step each, so that who ends the drawing never waits for itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

DELAY_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_ASK_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
"""How long the last stroke may take: whoever reads stderr may have stopped reading."""
_ROUND = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN = "|/-\\"


class Spinner:
    """Draws while its block runs.

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
        self._told = False

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
        try:
            began = time.monotonic()
            if not self._is_over(DELAY_SECONDS):
                self._turn(began)
        finally:
            self._drawing.release()

    def _turn(self, began: float) -> None:
        frames = _ROUND if (sys.stderr.encoding or "").lower().startswith("utf") else _PLAIN
        phase, asked, turn = "", float("-inf"), 0
        while not self._is_over(_FRAME_SECONDS if turn else 0.0):
            now = time.monotonic()
            if now - asked >= _ASK_SECONDS:
                phase, asked = self._phase(), now
            self._put(f"\r\x1b[K{frames[turn % len(frames)]} {self._label}: {phase} {now - began:.1f}s")
            turn += 1
        self._put("\r\x1b[K")

    def _is_over(self, seconds: float) -> bool:
        """Wait so long for the end; say whether it has come."""
        self._told = self._told or self._going.acquire(timeout=seconds)
        return self._told

    @staticmethod
    def _put(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass
