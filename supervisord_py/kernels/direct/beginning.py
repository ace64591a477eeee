"""When a cell that was sent has begun: an idle kernel ignores SIGINT, so an interrupt waits for that, for a moment.

Law: the sign is what nobody can hold back. A kernel that records by itself has made the files of the cell, also while
code keeps the interpreter to itself; any other says by iopub what it executes, and its `busy` alone is too early.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisord_py.kernels.direct.message import Message
    from supervisord_py.kernels.output.cell_log import CellLog

LOOK_SECONDS = 0.002


class Beginning:
    """Of one cell.

    Args:
        files: Of the cell, where the kernel makes them; None where it is heard by its messages.
    """

    __slots__ = ("_files", "_seen")

    def __init__(self, files: CellLog | None) -> None:
        self._files = files
        self._seen = False

    def hear(self, message: Message) -> None:
        """Take a message that belongs to the cell: `execute_input`, output, whatever comes first."""
        self._seen = self._seen or message.type != "status"

    def over(self) -> None:
        """Note that the cell has ended, begun or not: nobody waits for it any more."""
        self._seen = True

    async def wait(self, died: asyncio.Future[Any], seconds: float) -> None:
        """Return when the cell has begun, or its kernel died, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_begun() and not died.done():  # noqa: ASYNC110 - the kernel makes the files
                    await asyncio.sleep(LOOK_SECONDS)

    def _has_begun(self) -> bool:
        return self._seen or (self._files is not None and self._files.exists())
