"""The last record of a cell that nobody can write any more: its kernel is gone, so the room says how it ended.

Law: written once nobody else writes; an end that is there stands, and files that are not there stay away. Whoever pages
through the output comes to an end, however the kernel came to its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.inside.cell_writer import CellWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.output.cell_log import CellLog

_TAIL_BYTES = 64 * 1024


def seal(log: CellLog, error: Mapping[str, object] | None, ended_at: float) -> bool:
    """Write the end of a cell that began and has none. Blocking.

    Args:
        log: Its files.
        error: What ended it, `{name, value, traceback}`.
        ended_at: Unix seconds.

    Returns:
        Whether it was written.
    """
    try:
        if not log.exists() or log.ended() is not None:
            return False
        began = next((record.place.time for record in log.records()), ended_at)
        _cut_torn_line(log.records_path)
    except (UnknownUnitError, OSError):
        return False
    writer = CellWriter(str(log.folder), log.cell_id, cap=0)
    writer.end("error", execution_count=None, duration=max(0.0, ended_at - began), error=error)
    return writer.lost_bytes == 0


def error_members(error: CellError | None) -> dict[str, object] | None:
    """Return an error as files and rows have it: `{name, value, traceback}`."""
    if error is None:
        return None
    return {"name": error.name, "value": error.value, "traceback": list(error.traceback)}


def _cut_torn_line(path: Path) -> None:
    """Cut off what a writer that was killed in the middle of a line left, so that the next record begins a line."""
    with path.open("r+b", buffering=0) as file:
        fd = file.fileno()
        end = size = os.fstat(fd).st_size
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            newline = os.pread(fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(fd, end)
