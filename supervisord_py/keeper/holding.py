"""How far a child may run ahead of whoever follows its output: beyond that its pipes are not read, and it waits.

Law: what a follower has not seen is never thrown away for want of room in the log: what lies beyond `seen`, bytes and
the index's records of them, stays under the limit. A child that waits in write(2) is better than a line that is lost.
A stop grants the same room once more, so that a polite child need not wait for a reader to write its last words; one
that writes on for ever is killed with its pipes full, and still nothing is lost.
"""

from __future__ import annotations

from collections import deque

from supervisord_py.keeper.protocol import INDEX_RECORD_SIZE

UNLIMITED = 1 << 62
MARK_PIECES = 64
"""One mark stands for so many pieces: a flood of single bytes must not fill the memory with positions."""


class Hold:
    """The bound of one instance. Positions are those of the unit's log.

    Attributes:
        seen: Up to where the follower has everything.
    """

    __slots__ = ("_first", "_limit", "_marks", "_pieces", "seen")

    def __init__(self, limit: int | None = None) -> None:
        self._first = self._limit = UNLIMITED if limit is None else limit
        self._marks: deque[int] = deque()
        self._pieces = 0
        self.seen = 0

    @property
    def bounded(self) -> bool:
        """Whether there is a limit."""
        return self._first < UNLIMITED

    def room(self, position: int) -> int:
        """Return how many bytes may be read at this end of the log; 0 or less: none."""
        records = len(self._marks) * MARK_PIECES * INDEX_RECORD_SIZE
        return self._limit - (position - self.seen) - records

    def took(self, position: int) -> None:
        """Note that a piece was read, and that the log now ends here."""
        self._pieces += 1
        if self.bounded and self._pieces % MARK_PIECES == 0:
            self._marks.append(position)

    def see(self, position: int) -> None:
        """Take the follower's word for it: he has everything before this position."""
        self.seen = position
        while self._marks and self._marks[0] <= position:
            self._marks.popleft()

    def relax(self) -> None:
        """Grant the same room once more; granted before, it stays."""
        self._limit = 2 * self._first
