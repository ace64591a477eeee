"""Tells a person who waits what is being waited for and for how long. On stderr, on terminals only.

Law: nothing is drawn before 0.3 s, and nothing is left behind.
"""

from __future__ import annotations

import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

DELAY_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_ASK_SECONDS = 0.5
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
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True) if on else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Erase the line; may be called twice."""
        self._done.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _draw(self) -> None:
        began = time.monotonic()
        if self._done.wait(DELAY_SECONDS):
            return
        frames = _ROUND if (sys.stderr.encoding or "").lower().startswith("utf") else _PLAIN
        phase, asked, turn = "", float("-inf"), 0
        while not self._done.is_set():
            now = time.monotonic()
            if now - asked >= _ASK_SECONDS:
                phase, asked = self._phase(), now
            self._put(f"\r\x1b[K{frames[turn % len(frames)]} {self._label}: {phase} {now - began:.1f}s")
            turn += 1
            self._done.wait(_FRAME_SECONDS)
        self._put("\r\x1b[K")

    @staticmethod
    def _put(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass
