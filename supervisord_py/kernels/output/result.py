"""The answer of one cell, made from its files. Blocking file I/O in bounded pieces: call it in a thread.

Law: memory is bounded by the limits, not by what the cell printed: the stream is read at its two ends, its line ends
are counted block by block, large rich outputs become files as they are met.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.cell import CellResult, CellStatus
from supervisord_py.kernels.output.artifacts import spill
from supervisord_py.kernels.output.cell_log import OutputGoneError
from supervisord_py.kernels.output.mime import text_of, weight, without_colours
from supervisord_py.kernels.output.records import (
    STATUS_MIME,
    Display,
    Raised,
    Result,
    Status,
    StreamChange,
    capped_words,
)
from supervisord_py.kernels.output.shown import FIRST_OUTPUTS, LAST_OUTPUTS, RichOutputs, compose
from supervisord_py.kernels.output.survey import survey
from supervisord_py.kernels.output.two_ends import Span, TwoEnds, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.kernels.cell import CellError, Step
    from supervisord_py.kernels.config import OutputLimits
    from supervisord_py.kernels.output.cell_log import CellLog
    from supervisord_py.kernels.output.records import End, Record
    from supervisord_py.kernels.output.shown import Output
    from supervisord_py.kernels.output.survey import Survey

_NAMELESS = "NoneType"
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32
"""So many times `inline_bytes` of rich outputs stay in an answer; beyond it each is held to INLINE_LATER_BYTES."""
INLINE_LATER_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class CellOutput:
    """What a cell gave, as far as its files tell.

    Attributes:
        text, outputs, truncated, artifact, total_bytes, total_lines, shown_bytes: See CellResult.
        error: What was raised.
        end: Its end record; None where it runs, or its writer was killed.
        unkept: Says that something which was printed is not on disk, for another reason than the cap.
        notices: Output that is not kept, outputs that are not listed.
    """

    text: str = ""
    outputs: tuple[Output, ...] = ()
    truncated: bool = False
    artifact: str | None = None
    total_bytes: int = 0
    total_lines: int = 0
    shown_bytes: int = 0
    error: CellError | None = None
    end: End | None = None
    unkept: str | None = None
    notices: tuple[str, ...] = ()


def show(log: CellLog, limits: OutputLimits, most_outputs: int = FIRST_OUTPUTS + LAST_OUTPUTS) -> CellOutput:
    """Return what is shown of a cell as its files are now.

    A cell without files (its kernel died before it began) has given nothing; one whose files are taken while they are
    read, too, with a notice.

    Args:
        log: The cell.
        limits: `head_bytes`, `preview_bytes` of text, `inline_bytes` of one rich output.
        most_outputs: How many rich outputs are listed.
    """
    if not log.exists():
        return CellOutput()
    try:
        return _show(log, limits, most_outputs)
    except OutputGoneError as error:
        return CellOutput(unkept=error.detail)


def _show(log: CellLog, limits: OutputLimits, most_outputs: int) -> CellOutput:
    total = log.size()
    found = survey(log.records(), total)
    first = min(FIRST_OUTPUTS, most_outputs)
    ends, rich = _Collector(log, limits, found, RichOutputs(first, most_outputs - first)).collect(total)
    stream = _Stream(log)
    shown = compose(ends, rich, stream)
    missing = max(0, found.end.at - log.size()) if found.end else 0
    return CellOutput(
        shown.text,
        shown.outputs,
        shown.truncated or found.capped is not None,
        log.cell_id if total else None,
        total,
        stream.total_lines(total),
        shown.shown_bytes,
        what_was_raised(found.end.error if found.end else None, found.error),
        found.end,
        _unkept(found, missing),
        tuple(_notices(found, rich)),
    )


def _unkept(found: Survey, missing: int) -> str | None:
    if missing:
        return f"{missing} bytes of output are lost: they were removed from disk while the cell ran"
    return capped_words(found.capped) if found.capped is not None and found.capped.by_disk else None


def _notices(found: Survey, rich: RichOutputs) -> list[str]:
    notices = []
    if found.capped is not None and not found.capped.by_disk:
        notices.append(capped_words(found.capped))
    if rich.dropped:
        notices.append(f"{rich.dropped} of {rich.count} rich outputs are not listed: only the first and the last are")
    return notices


class _Stream:
    """The stream file, for `compose`."""

    def __init__(self, log: CellLog) -> None:
        self._log = log
        self.artifact = log.cell_id

    def read(self, start: int, end: int) -> bytes:
        return self._log.read(start, end - start)

    def count_lines(self, start: int, end: int) -> int:
        count = 0
        while start < end and (block := self._log.read(start, min(BLOCK_BYTES, end - start))):
            count += block.count(b"\n")
            start += len(block)
        return count

    def total_lines(self, total: int) -> int:
        """Count the lines of all of it; a last one without its end is one."""
        open_end = total > 0 and self._log.read(total - 1, 1) != b"\n"
        return self.count_lines(0, total) + int(open_end)


class _Collector:
    """Goes over the records in order and hands the parts to the two ends."""

    def __init__(self, log: CellLog, limits: OutputLimits, found: Survey, rich: RichOutputs) -> None:
        self._log = log
        self._limits = limits
        self._found = found
        self._ends = TwoEnds(limits.head_bytes, max(0, limits.preview_bytes - limits.head_bytes))
        self._rich = rich
        self._stream = "stdout"
        self._position = found.visible_from
        self._inline = 0

    def collect(self, total: int) -> tuple[Any, RichOutputs]:
        """Return the ends and the rich outputs of a cell whose stream has `total` bytes."""
        for record in self._log.records():
            if isinstance(record, StreamChange):
                self._stream_up_to(min(record.at, total))
                self._stream = record.stream
            elif record.place.offset > self._found.visible_after:
                self._take(record, total)
        self._stream_up_to(total)
        return self._ends.finish(), self._rich

    def _stream_up_to(self, end: int) -> None:
        if end > self._position:
            self._ends.add(Span(self._position, end, self._stream))
            self._position = end

    def _take(self, record: Record, total: int) -> None:
        output: Output
        match record:
            case Display() if self._found.is_shown(record):
                shown = self._latest(record)
                output = {"output_type": "display_data", "metadata": dict(shown.metadata)}
                self._add_bundle(record, shown.data, output, total)
            case Result():
                count = record.execution_count
                output = {"output_type": "execute_result", "metadata": dict(record.metadata), "execution_count": count}
                self._add_bundle(record, record.data, output, total)
            case Status():
                output = {"output_type": "display_data", "metadata": {}, "data": {STATUS_MIME: dict(record.event)}}
                self._add(record, output, "", total)
            case Raised(error=error):
                lines = list(error.traceback)
                output = {"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": lines}
                self._add(record, output, traceback_text(error), total)
            case _:
                pass

    def _latest(self, record: Display) -> Display:
        """Return the display as its last update left it."""
        offset = self._found.latest.get(record.display_id) if record.display_id is not None else None
        if offset is None or offset <= record.place.offset:
            return record
        updates, _ = self._log.records_from(offset, limit=1)
        return updates[0] if updates and isinstance(updates[0], Display) else record

    def _add_bundle(self, record: Record, data: Any, output: Output, total: int) -> None:
        text = text_of(data, html_to_markdown)
        allowed = self._limits.inline_bytes
        if self._inline > INLINE_OUTPUTS * allowed:
            allowed = min(allowed, INLINE_LATER_BYTES)
        output["data"] = spill(self._log.folder, self._log.cell_id, record.place.offset, data, allowed)
        self._inline += sum(map(weight, output["data"].values()))
        self._add(record, output, text, total)

    def _add(self, record: Record, output: Output, text: str, total: int) -> None:
        self._stream_up_to(min(record.at, total))
        self._ends.add(Words(text.encode("utf-8", "replace"), self._rich.add(output)))


def traceback_text(error: CellError) -> str:
    """Return a traceback without its colours, else the name and value."""
    text = "\n".join(error.traceback) or f"{error.name}: {error.value}"
    return without_colours(text).rstrip("\n") + "\n"


def what_was_raised(*told: CellError | None) -> CellError | None:
    """Return the first error that has a name; a kernel replies `NoneType` where a value's own `__repr__` raised."""
    errors = [error for error in told if error is not None]
    return next((error for error in errors if error.name != _NAMELESS), errors[0] if errors else None)


def html_to_markdown(html: str) -> str:
    """Return HTML as markdown. The first call imports the library, a tenth of a second: not on an event loop."""
    text: str = importlib.import_module("markdownify").markdownify(html, heading_style="ATX")
    return text


def cell_result(
    cell_id: str,
    title: str | None,
    output: CellOutput,
    *,
    status: CellStatus | None = None,
    error: CellError | None = None,
    duration_seconds: float | None = None,
    execution_count: int | None = None,
    steps: Sequence[Step] = (),
    lossy: bool = False,
    notices: Sequence[str] = (),
) -> CellResult:
    """Put what a cell gave and how it ended together; what is None here is taken from its end record."""
    end = output.end
    if status is None:
        status = end.status if end is not None else CellStatus.ERROR
    return CellResult(
        cell_id,
        title,
        status,
        output.text,
        output.outputs,
        what_was_raised(error, output.error),
        output.truncated,
        output.artifact,
        output.total_bytes,
        output.total_lines,
        output.shown_bytes,
        duration_seconds if duration_seconds is not None or end is None else end.duration,
        execution_count if execution_count is not None or end is None else end.execution_count,
        tuple(steps),
        lossy or output.unkept is not None,
        (*filter(None, [output.unkept]), *output.notices, *notices),
    )
