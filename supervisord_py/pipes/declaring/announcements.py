"""What the system announces of the files in folders, in rounds. Blocking, for a thread of one's own.

One place says how watchfiles is asked: a stop is noticed within a step, changes of one save come in one round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator

    from watchfiles.main import FileChange

STEP_MS = 100
"""Announcements are waited for, and a stop is noticed, in steps of that length."""
GATHER_MS = 400
"""Announcements are gathered for at most so long: an editor makes several of one save."""


def announced(folders: Iterable[str], ending: threading.Event, *, deep: bool) -> Iterator[set[FileChange]]:
    """Yield rounds of changes, the first and every quiet one empty, until `ending` is set.

    Args:
        folders: That are there.
        ending: Set from any thread.
        deep: Listen to everything below them, too.

    Raises:
        OSError, RuntimeError, ImportError: Nobody announces anything here.
    """
    # 20 ms, and its binary part may be missing on a rare machine.
    from watchfiles import watch  # noqa: PLC0415 - see above

    return watch(
        *folders,
        watch_filter=None,
        recursive=deep,
        debounce=GATHER_MS,
        step=STEP_MS,
        stop_event=ending,
        raise_interrupt=False,
        yield_on_timeout=True,
        rust_timeout=STEP_MS,
        ignore_permission_denied=True,
    )
