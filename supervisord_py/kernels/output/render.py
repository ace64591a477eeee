"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the cell printed: the
stream is read at its two ends, its line ends are counted block by block, large rich outputs become files as they are
met. Blocking file I/O: call it in a thread.
"""

from __future__ import annotations

import codecs
import importlib
import re
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.cell import CellResult, CellStatus
from supervisord_py.kernels.output.artifacts import joined, spill, weight
from supervisord_py.kernels.output.cell_log import OutputGoneError
from supervisord_py.kernels.output.records import (
    STATUS_MIME,
    Capped,
    Clear,
    Display,
    End,
    Raised,
    Result,
    Status,
    StreamChange,
    capped_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from supervisord_py.kernels.cell import CellError, Step
    from supervisord_py.kernels.config import OutputLimits
    from supervisord_py.kernels.output.cell_log import CellLog
    from supervisord_py.kernels.output.records import Record

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32
"""So many times `inline_bytes` of rich outputs stay in an answer; beyond it each is held to INLINE_LATER_BYTES."""
INLINE_LATER_BYTES = 4 * 1024
NEAR_BYTES = 1024
"""A cut moves this far to fall between lines; further away it only keeps characters whole."""
MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
_CHARACTER_BYTES = 4
_NAMELESS = "NoneType"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class CellOutput:
    """What a cell gave, as far as its files tell.

    Attributes:
        text, outputs, truncated, artifact, total_bytes, total_lines, shown_bytes: See CellResult.
        error: What was raised.
        end: Its end record; None where it runs, or its writer was killed.
        unkept: Says that something which was printed is not on disk, for another reason than the cap.
        notices: Output beyond the cap, outputs that are not listed.
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
    """Return what is shown of a cell as its files are now; nothing where it has none: its kernel died before it began.

    Args:
        log: The cell.
        limits: `head_bytes`, `preview_bytes` of text, `inline_bytes` of one rich output.
        most_outputs: How many rich outputs are listed.
    """
    if not log.exists():
        return CellOutput()
    try:
        return _show(log, limits, most_outputs)
    except OutputGoneError as error:  # taken while they were read
        return CellOutput(unkept=error.detail)


def _show(log: CellLog, limits: OutputLimits, most_outputs: int) -> CellOutput:
    total = log.size()
    found = _survey(log.records(), total)
    collected = _Collector(log, limits, found, most_outputs)
    collected.collect(total)
    text, outputs, shown_bytes, is_cut = _compose(collected, limits)
    missing = max(0, found.end.at - log.size()) if found.end else 0
    open_end = total > 0 and log.read(total - 1, 1) != b"\n"
    return CellOutput(
        text,
        outputs,
        is_cut or found.capped is not None,
        log.cell_id if total else None,
        total,
        _count_lines(log, 0, total) + open_end,
        shown_bytes,
        what_was_raised(found.end.error if found.end else None, found.error),
        found.end,
        _unkept(found, missing),
        tuple(_notices(found, collected)),
    )


def _unkept(found: _Survey, missing: int) -> str | None:
    if missing:
        return f"{missing} bytes of output are lost: they were removed from disk while the cell ran"
    return capped_words(found.capped) if found.capped is not None and found.capped.by_disk else None


def _notices(found: _Survey, collected: _Collector) -> Iterator[str]:
    if found.capped is not None and not found.capped.by_disk:
        yield capped_words(found.capped)
    if collected.count > len(collected.rich):
        dropped = collected.count - len(collected.rich)
        yield f"{dropped} of {collected.count} rich outputs are not listed: only the first and the last are"


def _count_lines(log: CellLog, start: int, end: int) -> int:
    count = 0
    while start < end and (block := log.read(start, min(BLOCK_BYTES, end - start))):
        count += block.count(b"\n")
        start += len(block)
    return count


# -- the first look over the records: what was cleared, which displays were written over, how it ended ---------------


@dataclass(slots=True)
class _Survey:
    """What must be known before the records are shown in order.

    Attributes:
        visible_from: Byte of the stream at which what was not cleared begins.
        visible_after: Offset of the record that cleared; -1 where nothing was.
        latest: `{display_id: offset of its last update}`.
        displayed: Ids that were displayed, cleared ones included.
        error: What was raised last.
        end, capped: As the records say.
    """

    visible_from: int = 0
    visible_after: int = -1
    latest: dict[str, int] = field(default_factory=dict)
    displayed: set[str] = field(default_factory=set)
    error: CellError | None = None
    end: End | None = None
    capped: Capped | None = None

    def is_shown(self, record: Display) -> bool:
        """Say whether a display has a place of its own; an update only has where its id was never displayed here."""
        name = record.display_id
        if not record.update:
            return True
        return name is not None and name not in self.displayed and self.latest[name] == record.place.offset


def _survey(records: Iterable[Record], total_bytes: int) -> _Survey:
    """Look over all records of a cell whose stream has `total_bytes` now."""
    found = _Survey()
    pending: Clear | None = None
    for record in records:
        if isinstance(record, Clear):
            pending = record
        if pending is not None and (
            not pending.wait or record.at > pending.at or isinstance(record, Display | Result | Raised)
        ):
            found.visible_from, found.visible_after, pending = pending.at, pending.place.offset, None
        match record:
            case Display(update=True, display_id=str() as name):
                found.latest[name] = record.place.offset
            case Display(display_id=str() as name):
                found.displayed.add(name)
            case Raised(error=error):
                found.error = error
            case Capped():
                found.capped = record
            case End():
                found.end = record
            case _:
                pass
    if pending is not None and total_bytes > pending.at:
        found.visible_from, found.visible_after = pending.at, pending.place.offset
    return found


# -- the second look: parts in order -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of the stream file, from `start` on, or the words of the rich output number `ordinal`."""

    size: int
    start: int = 0
    stream: str = ""
    ordinal: int = -1


class _Collector:
    """Goes over the records in order.

    Attributes:
        parts: What is shown, in order; of the middle of a long stream only its size.
        rich: The first and the last rich outputs by number, each with its words. `count`: of all there were.
    """

    def __init__(self, log: CellLog, limits: OutputLimits, found: _Survey, most_outputs: int) -> None:
        self.log = log
        self.parts: list[_Part] = []
        self.rich: dict[int, tuple[Output, bytes]] = {}
        self.count = 0
        self._limits = limits
        self._found = found
        self._first = min(FIRST_OUTPUTS, most_outputs)
        self._last: deque[int] = deque()
        self._most_last = most_outputs - self._first
        self._stream = "stdout"
        self._position = found.visible_from
        self._inline = 0

    def collect(self, total: int) -> None:
        """Fill `parts` and `rich` for a cell whose stream has `total` bytes."""
        for record in self.log.records():
            if isinstance(record, StreamChange):
                self._stream_up_to(min(record.at, total), total)
                self._stream = record.stream
            elif record.place.offset > self._found.visible_after:
                self._take(record, total)
        self._stream_up_to(total, total)
        self.parts = [part for part in self.parts if part.ordinal < 0 or part.ordinal in self.rich]

    def _stream_up_to(self, end: int, total: int) -> None:
        start, self._position = self._position, max(self._position, end)
        if start >= end:
            return
        last = self.parts[-1] if self.parts else None
        is_joined = last is not None and last.ordinal < 0 and last.start + last.size == start
        # What lies so far from both ends is never shown: who wrote it does not matter.
        is_far = start - self._found.visible_from > self._limits.preview_bytes < total - end
        if last is not None and is_joined and (last.stream == self._stream or (is_far and not last.stream)):
            self.parts[-1] = replace(last, size=end - last.start)
        else:
            self.parts.append(_Part(end - start, start, "" if is_far else self._stream))

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
        updates, _ = self.log.records_from(offset, limit=1)
        return updates[0] if updates and isinstance(updates[0], Display) else record

    def _add_bundle(self, record: Record, data: Any, output: Output, total: int) -> None:
        allowed = self._limits.inline_bytes
        if self._inline > INLINE_OUTPUTS * allowed:
            allowed = min(allowed, INLINE_LATER_BYTES)
        output["data"] = spill(self.log.folder, self.log.cell_id, record.place.offset, data, allowed)
        self._inline += sum(map(weight, output["data"].values()))
        self._add(record, output, text_of(data, html_to_markdown), total)

    def _add(self, record: Record, output: Output, text: str, total: int) -> None:
        self._stream_up_to(min(record.at, total), total)
        words = text.encode("utf-8", "replace")
        if len(words) > 2 * self._limits.preview_bytes:  # of its middle nothing can be shown
            words = words[: self._limits.preview_bytes] + words[-self._limits.preview_bytes :]
        self.rich[self.count] = (output, words)
        self.parts.append(_Part(len(words), ordinal=self.count))
        if self.count >= self._first:
            self._last.append(self.count)
            if len(self._last) > self._most_last:
                del self.rich[self._last.popleft()]
        self.count += 1


# -- text and outputs --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Piece:
    """What is shown of a part: `part` is None for the marker of what is left out."""

    part: _Part | None
    data: bytes

    @property
    def stream(self) -> str:
        """Which stream it is of; "" where of none."""
        return self.part.stream if self.part is not None else ""

    @property
    def text(self) -> str:
        """As text."""
        return self.data.decode("utf-8", "replace")


def _compose(collected: _Collector, limits: OutputLimits) -> tuple[str, tuple[Output, ...], int, bool]:
    """Return text, outputs, how many bytes of the stream are in the text, and whether something is left out."""
    whole = sum(part.size for part in collected.parts)
    if whole <= limits.preview_bytes:
        shown = _between(collected, 0, whole)
        return _text(shown), tuple(_outputs(shown, {}, collected)), _streamed(shown), False
    head = _between(collected, 0, limits.head_bytes)
    tail = _between(collected, whole - max(0, limits.preview_bytes - limits.head_bytes), whole)
    for last in [piece for piece in head if piece.data][-1:]:
        last.data = last.data[: cut_end(last.data)]
    for first in [piece for piece in tail if piece.data][:1]:
        first.data = first.data[cut_start(first.data) :]
    marker = _Piece(None, _marker(collected, whole, [*head, *tail]).encode())
    shown = [*head, marker, *tail]
    placed = {piece.part.ordinal for piece in shown if piece.part is not None}
    left_out = {ordinal: output for ordinal, (output, _) in collected.rich.items() if ordinal not in placed}
    return _text(shown), tuple(_outputs(shown, left_out, collected)), _streamed(shown), True


def _between(collected: _Collector, start: int, end: int) -> list[_Piece]:
    """Return what lies between two places of all parts; the stretches of the stream are read at once."""
    chosen: list[tuple[_Part, int, int]] = []
    at = 0
    for part in collected.parts:
        low, high = max(start - at, 0), min(end - at, part.size)
        if low < high or (not part.size and start <= at <= end):
            chosen.append((part, low, high))
        at += part.size
    spans = [(part.start + low, part.start + high) for part, low, high in chosen if part.ordinal < 0]
    first = spans[0][0] if spans else 0
    block = collected.log.read(first, spans[-1][1] - first) if spans else b""
    return [
        _Piece(part, block[part.start + low - first : part.start + high - first])
        if part.ordinal < 0
        else _Piece(part, collected.rich[part.ordinal][1][low:high])
        for part, low, high in chosen
    ]


def _marker(collected: _Collector, whole: int, shown: Sequence[_Piece]) -> str:
    log, spans = collected.log, [part for part in collected.parts if part.ordinal < 0]
    lines = _count_lines(log, spans[0].start, spans[-1].start + spans[-1].size) if spans else 0
    lines += sum(words.count(b"\n") for _, words in collected.rich.values())
    lines -= sum(piece.data.count(b"\n") for piece in shown)
    size = whole - sum(len(piece.data) for piece in shown)
    is_stream = sum(part.size for part in spans) > _streamed(shown)
    where = f"artifact {log.cell_id}" if is_stream else "see the outputs"
    return f"… [{size} bytes, {lines} lines omitted; {where}] …\n"


def _streamed(shown: Iterable[_Piece]) -> int:
    return sum(len(piece.data) for piece in shown if piece.stream)


def _text(shown: Iterable[_Piece]) -> str:
    """Put everything into one text; what is not stream begins on a line of its own."""
    text = ""
    for is_stream, run in groupby(shown, lambda piece: bool(piece.stream)):
        if is_stream:
            text += as_on_a_terminal(b"".join(piece.data for piece in run).decode("utf-8", "replace"))
            continue
        for words in filter(None, (piece.text for piece in run)):
            text += words if not text or text.endswith("\n") else f"\n{words}"
    return text


def _outputs(shown: Iterable[_Piece], left_out: Mapping[int, Output], collected: _Collector) -> Iterator[Output]:
    """Yield the outputs in order; those whose words are left out stand at the marker, which is in the stream there."""
    told: set[int] = set()
    streamed: list[tuple[str, str]] = []
    for piece in shown:
        if piece.stream:
            streamed.append((piece.stream, piece.text))
            continue
        if piece.part is None and "artifact" in piece.text:
            stream, before = streamed[-1] if streamed else ("stdout", "\n")
            streamed.append((stream, piece.text if before.endswith("\n") else f"\n{piece.text}"))
        due = left_out if piece.part is None else {piece.part.ordinal: collected.rich[piece.part.ordinal][0]}
        if new := [output for ordinal, output in due.items() if ordinal not in told]:
            yield from _streams(streamed)
            streamed.clear()
            told.update(due)
            yield from new
    yield from _streams(streamed)


def _streams(streamed: Iterable[tuple[str, str]]) -> Iterator[Output]:
    for stream, run in groupby(streamed, lambda each: each[0]):
        text = as_on_a_terminal("".join(text for _, text in run))
        if text:
            yield {"output_type": "stream", "name": stream, "text": text}


def cut_end(data: bytes) -> int:
    """Return where to end a head that goes on: behind its last line, if that is near, else behind a character."""
    newline = data.rfind(b"\n", max(0, len(data) - NEAR_BYTES))
    return newline + 1 if newline >= 0 else whole_characters(data)


def cut_start(data: bytes) -> int:
    """Return where to begin a tail that something came before: at a line's beginning, if near, else at a character."""
    newline = data.find(b"\n", 0, NEAR_BYTES)
    if 0 <= newline < len(data) - 1:
        return newline + 1
    starts = (place for place, byte in enumerate(data[:_CHARACTER_BYTES]) if byte & 0xC0 != 0x80)
    return next(starts, len(data) if len(data) < _CHARACTER_BYTES else 0)


def whole_characters(data: bytes) -> int:
    """Return how many bytes lie before a UTF-8 character that is cut by the end; all of them where none is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_CHARACTER_BYTES:])
    return len(data) - len(decoder.getstate()[0])


def as_on_a_terminal(text: str) -> str:
    """Return the text with carriage returns resolved: each line as the last writing over it left it."""
    if "\r" not in text:
        return text
    return "\n".join(_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def _line(line: str) -> str:
    seen = ""
    for over in filter(None, line.split("\r")):
        escaped = "\x1b" in over or "\x1b" in seen  # columns cannot be counted: the later writing stands alone
        seen = over if escaped else over + seen[len(over) :]
    return seen


def text_of(data: Mapping[str, Any], to_markdown: Callable[[str], str]) -> str:
    """Return the words that stand for a bundle, ending with a line end: markdown, else plain text, else HTML; or ""."""
    for mime in (MARKDOWN, PLAIN, HTML):
        if mime not in data:
            continue
        text = joined(data[mime])
        if mime == HTML:
            text = to_markdown(text).strip("\n")
        return text if not text or text.endswith("\n") else f"{text}\n"
    return ""


def html_to_markdown(html: str) -> str:
    """Return HTML as markdown. The first call imports the library, a tenth of a second: not on an event loop."""
    text: str = importlib.import_module("markdownify").markdownify(html, heading_style="ATX")
    return text


def traceback_text(error: CellError) -> str:
    """Return a traceback without its colours, else the name and value."""
    text = "\n".join(error.traceback) or f"{error.name}: {error.value}"
    return _ESCAPES.sub("", text).rstrip("\n") + "\n"


def what_was_raised(*told: CellError | None) -> CellError | None:
    """Return the first error that has a name; a kernel replies `NoneType` where a value's own `__repr__` raised."""
    errors = [error for error in told if error is not None]
    return next((error for error in errors if error.name != _NAMELESS), errors[0] if errors else None)


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
