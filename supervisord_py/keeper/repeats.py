"""How many lines of one kind a log takes.

Keeper and control plane share it: they write into the same file.
"""

from __future__ import annotations

BURST = 20  # lines of one kind in a window; the others are counted
WINDOW_SECONDS = 60.0
MOST_KINDS = 256
SUPPRESSED = "lines_suppressed"


class RepeatLimiter:
    """Lets BURST lines of a kind through in WINDOW_SECONDS, and counts the others."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str, now: float) -> bool:
        """Say whether a line of that kind may be written. `now`: monotonic seconds."""
        window = self._windows.get(kind)
        if window is None or now >= window.ends_at:
            if window is None and len(self._windows) >= MOST_KINDS:
                self._windows.pop(next(iter(self._windows)))  # the oldest
            suppressed = window.suppressed if window is not None else 0
            window = self._windows[kind] = _Window(now + WINDOW_SECONDS)
            window.suppressed = suppressed
        window.lines += 1
        if window.lines <= BURST:
            return True
        window.suppressed += 1
        return False

    def overdue(self, now: float) -> list[tuple[str, int]]:
        """Return each kind of which lines were suppressed in a window that is over, with their
        number, once.
        """
        over = [kind for kind, window in self._windows.items() if now >= window.ends_at]
        windows = [(kind, self._windows.pop(kind)) for kind in over]
        return [(kind, window.suppressed) for kind, window in windows if window.suppressed]


class _Window:
    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.lines = 0
        self.suppressed = 0
