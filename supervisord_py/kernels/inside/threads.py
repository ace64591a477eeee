"""Output of a thread that outlives its cell belongs to the cell which started it.

ipykernel 6 keeps such a book for printed text, ipykernel 7 gives a thread's output to whichever cell came last. Workers
of a pool are left out: they live for many cells, and what they print is the doing of whoever gave them work last.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

POOLS = frozenset(("concurrent.futures.thread", "multiprocessing.pool"))
_MARK = "_px_parent"


def attribute(ours: Callable[[], Mapping[str, Any] | None], adopt: Callable[[Mapping[str, Any]], None]) -> None:
    """Have every thread that is started by a cell of ours bear that cell's header.

    Args:
        ours: Returns the header of the cell of ours that the calling thread runs for, None where there is none.
        adopt: Makes a header that of the calling thread.
    """
    start = threading.Thread.start

    @functools.wraps(start)
    def start_with_parent(self: threading.Thread) -> None:
        header = ours()
        target = getattr(self, "_target", None)
        if header is not None and getattr(target, "__module__", None) not in POOLS:
            setattr(self, _MARK, header)
            self.run = _Attributed(self.run, header, adopt)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_with_parent  # type: ignore[method-assign]


def parent_of_this_thread() -> Mapping[str, Any] | None:
    """Return the header that this thread was started with, None where it is not a cell's of ours."""
    return getattr(threading.current_thread(), _MARK, None)


class _Attributed:
    """What a thread runs: first it takes its header on."""

    def __init__(
        self, run: Callable[[], None], header: Mapping[str, Any], adopt: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._run = run
        self._header = header
        self._adopt = adopt

    def __call__(self) -> None:
        self._adopt(self._header)
        self._run()
