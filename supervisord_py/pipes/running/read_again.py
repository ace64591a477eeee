"""A file that is read again when it has changed, and only then. Blocking.

Law: a stamp vouches for what was read only when the file was not young at that moment: two changes within one tick of
a file system's clock look like one. The time of change counts, which nobody can set, not that of writing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTLE_SECONDS = 2.0
"""The coarsest clocks of file systems tick so seldom."""
T = TypeVar("T")
_Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Device, inode, size and change time (ns); None where there is no file."""


class ReadAgain(Generic[T]):
    """What one file says.

    Args:
        read: Reads it; a file that is not there, too.
        wall: Unix seconds, to compare with the times of files.
    """

    def __init__(self, read: Callable[[Path], T], wall: Callable[[], float] = time.time) -> None:
        self._read = read
        self._wall = wall
        self._known: tuple[Path, _Stamp, T] | None = None

    def now(self, file: Path) -> T:
        """Return what the file says, any number of threads may ask."""
        known, stamp = self._known, _stamp(file)
        if known is not None and known[:2] == (file, stamp):
            return known[2]
        found = self._read(file)
        is_young = stamp is not None and abs(self._wall() - stamp[3] / 1e9) <= SETTLE_SECONDS
        self._known = None if is_young else (file, stamp, found)
        return found


def _stamp(file: Path) -> _Stamp:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
