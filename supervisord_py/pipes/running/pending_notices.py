"""Notices that were promised and not given yet, on disk: a control plane that dies in between leaves them to the next.

Law: a notice is written down before the row that it is about becomes final, and struck out when everybody was told, or
it is known why not. So none is lost; one that was under way when we died is given again.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisord_py.pipes.running.counting import Notice, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "notices.json"


class PendingNotices:
    """What is still to be told, by execution. A disk that takes nothing leaves it in memory alone.

    Args:
        folder: Where the file lies.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._notices: dict[int, Notice] = {}
        self._lock = asyncio.Lock()

    async def open(self) -> Mapping[int, Notice]:
        """Return what an earlier control plane had promised."""
        self._notices = await asyncio.to_thread(_read, self._file)
        return dict(self._notices)

    async def promise(self, execution: int, notice: Notice) -> None:
        """Write down what is going to be told."""
        self._notices[execution] = notice
        await self._save()

    async def done(self, execution: int) -> None:
        """Strike out what was told."""
        if self._notices.pop(execution, None) is not None:
            await self._save()

    async def _save(self) -> None:
        async with self._lock:  # in the order of the changes
            text = json.dumps({str(key): [it.kind.value, it.failures] for key, it in self._notices.items()})
            with suppress(OSError):
                await asyncio.to_thread(_write, self._file, text)


def _read(file: Path) -> dict[int, Notice]:
    """Return what the file holds; a file that makes no sense is as none. Blocking."""
    try:
        found = json.loads(file.read_bytes())
        return {int(key): Notice(NoticeKind(kind), int(failures)) for key, (kind, failures) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(fd)
    fresh.replace(file)
