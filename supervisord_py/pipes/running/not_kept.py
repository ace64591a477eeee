"""What of an execution's output can be read nowhere, in bytes and in words. Pure.

Law: nobody takes the beginning for the whole. `stdout_bytes` and `stderr_bytes` of a row count what was said, its
files hold what was kept of it; `lost_bytes` counts all that no file has, of every stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.room_requests import OutputStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.execution import Execution

OF_FILES, OF_ROWS = "pipes.output_file_bytes", "pipes.output_row_bytes"
"""Settings that limit what is kept of a stream in its file; in its row, which is all there is once its file is gone."""


def not_kept(execution: Execution, stream: OutputStream, sizes: Mapping[OutputStream, int]) -> int:
    """Return how many bytes of a stream are not in its file.

    A row does not count the agent's own events: what was lost and was of neither other stream is theirs.

    Args:
        execution: As it ended.
        stream: Which.
        sizes: Of the files that are there, bytes.
    """
    said = {OutputStream.STDOUT: execution.stdout_bytes, OutputStream.STDERR: execution.stderr_bytes}
    missing = {each: max(0, total - sizes.get(each, 0)) for each, total in said.items()}
    return missing[stream] if stream in missing else max(0, execution.lost_bytes - sum(missing.values()))


def sentence(stream: OutputStream, lost: int, total: int, limit: str) -> str | None:
    """Say what is missing of a stream and which setting limits what is kept; None where nothing is."""
    if not lost:
        return None
    return f"{lost} of {total} bytes of {stream.value} were not kept (limit: {limit})"
