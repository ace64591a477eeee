"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the cell printed: the
streams are read at their two ends, large rich outputs become files as they are met. Blocking: call it in a thread.
"""

from __future__ import annotations

import codecs
import importlib
import re
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from supervisord_py.kernels.artifacts import joined, spill, weight
from supervisord_py.kernels.cell import CellResult, CellStatus
from supervisord_py.kernels.cell_files import OutputGoneError, capped_words, end_of, error_in
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.cell_files import CellLog, Record, WrittenEnd
    from supervisord_py.kernels.config import OutputLimits

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32
"""So many times `inline_bytes` of rich outputs stay in an answer; beyond it each is held to INLINE_LATER_BYTES."""
INLINE_LATER_BYTES = 4 * 1024
NEAR_BYTES = 1024  # a cut moves this far to fall between lines; further away it only keeps characters whole
MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
_CHARACTER_BYTES = 4
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class CellOutput(Struct, frozen=True):
    """What a cell gave, as far as its files tell; members without a comment as in CellResult."""

    text: str = ""
    outputs: tuple[Output, ...] = ()
    truncated: bool = False
    artifact: str | None = None
    total_bytes: int = 0
    total_lines: int = 0
    shown_bytes: int = 0
    error: CellError | None = None  # what was raised
    end: WrittenEnd | None = None  # None where it runs, or its writer was killed
    unkept: str | None = None  # that something which was printed is not on disk, for another reason than the cap
    notices: tuple[str, ...] = ()  # output beyond the cap, outputs that are not listed


def show(log: CellLog, limits: OutputLimits, most_outputs: int = FIRST_OUTPUTS + LAST_OUTPUTS) -> CellOutput:
    """Return what is shown of a cell as its files are now; nothing where it has none: its kernel died before it began.

    Of rich outputs the first and the last are listed, `most_outputs` at most.
    """
    if not log.exists():
        return CellOutput()
    try:
        return _show(log, limits, most_outputs)
    except OutputGoneError as error:  # taken while they were read
        return CellOutput(unkept=error.detail)


def _show(log: CellLog, limits: OutputLimits, most_outputs: int) -> CellOutput:
    sizes = {stream: log.size(stream) for stream in log.paths}
    total = sum(sizes.values())
    found = _survey(log.records(), total)
    parts = _Parts(log, limits, found, most_outputs, sizes)
    shown, is_cut = parts.shown()
    end, capped = found.end, found.capped
    unkept, notices = None, []
    if capped is not None and capped.said.get("disk"):
        unkept = capped_words(capped)
    elif capped is not None:
        notices.append(capped_words(capped))
    elif end is not None and end.size > total:
        unkept = f"{end.size - total} bytes of output are lost: they were removed from disk while the cell ran"
    if (dropped := parts.count - len(parts.rich)) > 0:
        notices.append(f"{dropped} of {parts.count} rich outputs are not listed: only the first and the last are")
    lines = sum(_count_lines(log, stream, 0, size) for stream, size in sizes.items())
    return CellOutput(
        text=_text(shown),
        outputs=tuple(_outputs(shown, parts)),
        truncated=is_cut or capped is not None,
        artifact=log.cell_id if total else None,
        total_bytes=total,
        total_lines=lines + (total > 0 and log.page(total - 1, 1).data != b"\n"),
        shown_bytes=sum(len(data) for part, data in shown if part.stream),
        error=what_was_raised(end.error if end else None, found.error),
        end=end,
        unkept=unkept,
        notices=tuple(notices),
    )


def _count_lines(log: CellLog, stream: str, start: int, end: int) -> int:
    places = range(start, end, BLOCK_BYTES)
    return sum(log.read(stream, at, min(BLOCK_BYTES, end - at)).count(b"\n") for at in places)


# -- the first look over the records: what was cleared, which displays were written over, how it ended ---------------


class _Survey(Struct):
    """What must be known before the records are shown in order."""

    cleared: Record | None = None  # the record that cleared last
    latest: dict[str, Record] = field(default_factory=dict)  # display id → its last update
    displayed: set[str] = field(default_factory=set)  # ids, cleared ones included
    error: CellError | None = None  # what was raised last
    end: WrittenEnd | None = None
    capped: Record | None = None

    def displays(self, record: Record) -> Mapping[str, Any] | None:
        """Return what stands in the place of a display; None for an update of what was displayed here before."""
        name = record.said.get("display_id")
        update = self.latest.get(name or "")
        if record.said.get("update"):
            is_last = update is not None and update.offset == record.offset
            return record.said if is_last and name not in self.displayed else None
        return update.said if update is not None and update.offset > record.offset else record.said


def _survey(records: Iterable[Record], total_bytes: int) -> _Survey:
    """Look over all records of a cell whose streams have `total_bytes` now."""
    found = _Survey()
    pending: Record | None = None
    for record in records:
        if record.kind == "clear":
            pending = record
        grew = pending is not None and record.at + record.err_at > pending.at + pending.err_at
        is_new = grew or record.kind in {"display", "result", "error"}
        if pending is not None and (is_new or not pending.said.get("wait")):
            found.cleared, pending = pending, None
        name = record.said.get("display_id")
        if record.kind == "display" and name is not None:
            if record.said.get("update"):
                found.latest[name] = record
            else:
                found.displayed.add(name)
        elif record.kind == "error":
            found.error = error_in(record.said)
        elif record.kind == "capped":
            found.capped = record
        elif record.kind == "end":
            found.end = end_of(record)
    if pending is not None and total_bytes > pending.at + pending.err_at:
        found.cleared = pending
    return found


# -- the second look: parts in order -----------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A stretch of a stream, from `start` on; or the words of the rich output `ordinal`; or, with neither, a marker."""

    size: int
    stream: str = ""
    start: int = 0
    ordinal: int = -1


_Shown = list[tuple[_Part, bytes]]
_MARKER = _Part(0)


class _Parts:
    """Everything that could be shown, in order.

    `rich`: the first and the last rich outputs by number, each with its words; `count`: of all there were.
    """

    def __init__(
        self, log: CellLog, limits: OutputLimits, found: _Survey, most_outputs: int, sizes: dict[str, int]
    ) -> None:
        self.all: list[_Part] = []
        self.rich: dict[int, tuple[Output, bytes]] = {}
        self.count = 0
        self._log, self._limits, self._sizes = log, limits, sizes
        self._first = min(FIRST_OUTPUTS, most_outputs)
        self._last: deque[int] = deque()
        self._most_last = most_outputs - self._first
        self._inline = 0
        cleared = found.cleared
        self._at = {"stderr": cleared.err_at if cleared else 0, "stdout": cleared.at if cleared else 0}
        for record in log.records():
            if cleared is None or record.offset > cleared.offset:
                self._streams_up_to({"stderr": record.err_at, "stdout": record.at})
                self._take(record, found)
        self._streams_up_to(sizes)
        self.all = [part for part in self.all if part.ordinal < 0 or part.ordinal in self.rich]

    def _streams_up_to(self, ends: Mapping[str, int]) -> None:
        for stream, start in self._at.items():
            end = min(ends[stream], self._sizes[stream])
            if end > start:
                self._at[stream] = end
                begin = self.all.pop().start if self.all and self.all[-1].stream == stream else start
                self.all.append(_Part(end - begin, stream, begin))

    def _take(self, record: Record, found: _Survey) -> None:
        said = record.said
        if record.kind == "error":
            error = error_in(said)
            members = {"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}
            self._add({"output_type": "error", **members}, traceback_text(error))
        elif record.kind == "status":
            self._add({"output_type": "display_data", "metadata": {}, "data": {STATUS_MIME: said.get("event")}}, "")
        elif record.kind == "result":
            self._add_bundle(record, said, {"output_type": "execute_result"})
        elif record.kind == "display" and (latest := found.displays(record)) is not None:
            self._add_bundle(record, latest, {"output_type": "display_data"})

    def _add_bundle(self, record: Record, said: Mapping[str, Any], output: Output) -> None:
        data, allowed = said.get("data") or {}, self._limits.inline_bytes
        if self._inline > INLINE_OUTPUTS * allowed:
            allowed = min(allowed, INLINE_LATER_BYTES)
        output["metadata"] = dict(said.get("metadata") or {})
        if record.kind == "result":
            output["execution_count"] = said.get("execution_count")
        output["data"] = spill(self._log.folder, self._log.cell_id, record.offset, data, allowed)
        self._inline += sum(map(weight, output["data"].values()))
        self._add(output, text_of(data))

    def _add(self, output: Output, text: str) -> None:
        words, most = text.encode("utf-8", "replace"), self._limits.preview_bytes
        if len(words) > 2 * most:  # of its middle nothing can be shown
            words = words[:most] + words[-most:]
        self.rich[self.count] = (output, words)
        self.all.append(_Part(len(words), ordinal=self.count))
        if self.count >= self._first:
            self._last.append(self.count)
            if len(self._last) > self._most_last:
                del self.rich[self._last.popleft()]
        self.count += 1

    def shown(self) -> tuple[_Shown, bool]:
        """Return what is shown, a marker in the place of what is left out, and whether something is."""
        limits = self._limits
        whole = sum(part.size for part in self.all)
        if whole <= limits.preview_bytes:
            return self._between(0, whole), False
        head = self._between(0, limits.head_bytes)
        tail = self._between(whole - max(0, limits.preview_bytes - limits.head_bytes), whole)
        if places := [at for at, (_, data) in enumerate(head) if data]:
            part, data = head[places[-1]]
            head[places[-1]] = (part, data[: cut_end(data)])
        if places := [at for at, (_, data) in enumerate(tail) if data]:
            part, data = tail[places[0]]
            tail[places[0]] = (part, data[cut_start(data) :])
        return [*head, (_MARKER, self._marker(whole, [*head, *tail]).encode()), *tail], True

    def _between(self, start: int, end: int) -> _Shown:
        found, at = [], 0
        for part in self.all:
            low, high = max(start - at, 0), min(end - at, part.size)
            if low < high and part.stream:
                found.append((part, self._log.read(part.stream, part.start + low, high - low)))
            elif low < high or (not part.size and start <= at <= end):
                found.append((part, self.rich[part.ordinal][1][low:high]))
            at += part.size
        return found

    def _marker(self, whole: int, shown: _Shown) -> str:
        streams = [part for part in self.all if part.stream]
        lines = sum(_count_lines(self._log, part.stream, part.start, part.start + part.size) for part in streams)
        lines += sum(words.count(b"\n") for _, words in self.rich.values())
        lines -= sum(data.count(b"\n") for _, data in shown)
        streamed = sum(len(data) for part, data in shown if part.stream)
        is_stream = sum(part.size for part in streams) > streamed
        where = f"artifact {self._log.cell_id}" if is_stream else "see the outputs"
        return f"… [{whole - sum(len(data) for _, data in shown)} bytes, {lines} lines omitted; {where}] …\n"


def _text(shown: _Shown) -> str:
    """Put everything into one text; what is not stream begins on a line of its own."""
    text = ""
    for is_stream, run in groupby(shown, lambda each: bool(each[0].stream)):
        if is_stream:
            text += as_on_a_terminal(b"".join(data for _, data in run).decode("utf-8", "replace"))
            continue
        for words in filter(None, (data.decode("utf-8", "replace") for _, data in run)):
            text += words if not text or text.endswith("\n") else f"\n{words}"
    return text


def _outputs(shown: _Shown, parts: _Parts) -> Iterator[Output]:
    """Yield the outputs in order; those whose words are left out stand at the marker, which is in the stream there."""
    placed = {part.ordinal for part, _ in shown}
    left_out = [output for ordinal, (output, _) in parts.rich.items() if ordinal not in placed]
    told: set[int] = set()
    streamed: list[tuple[str, str]] = []
    for part, data in shown:
        text = data.decode("utf-8", "replace")
        if part.stream:
            streamed.append((part.stream, text))
            continue
        if part is _MARKER and "artifact" in text:
            stream, before = streamed[-1] if streamed else ("stdout", "\n")
            streamed.append((stream, text if before.endswith("\n") else f"\n{text}"))
        due = left_out if part is _MARKER else [parts.rich[part.ordinal][0]] if part.ordinal not in told else []
        told.add(part.ordinal)
        if due:
            yield from _streams(streamed)
            streamed.clear()
            yield from due
    yield from _streams(streamed)


def _streams(streamed: Iterable[tuple[str, str]]) -> Iterator[Output]:
    for stream, run in groupby(streamed, lambda each: each[0]):
        if text := as_on_a_terminal("".join(text for _, text in run)):
            yield {"output_type": "stream", "name": stream, "text": text}


# -- text --------------------------------------------------------------------------------------------------------------


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
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        seen = ""
        for over in filter(None, line.split("\r")):
            escaped = "\x1b" in over or "\x1b" in seen  # columns cannot be counted: the later writing stands alone
            seen = over if escaped else over + seen[len(over) :]
        lines.append(seen)
    return "\n".join(lines)


def text_of(data: Mapping[str, Any]) -> str:
    """Return the words that stand for a bundle, ending with a line end: markdown, else plain text, else HTML; or ""."""
    mime = next((each for each in (MARKDOWN, PLAIN, HTML) if each in data), None)
    text = "" if mime is None else joined(data[mime])
    if mime == HTML:  # the first time imports the library, a tenth of a second
        text = importlib.import_module("markdownify").markdownify(text, heading_style="ATX").strip("\n")
    return text if not text or text.endswith("\n") else f"{text}\n"


def traceback_text(error: CellError) -> str:
    """Return a traceback without its colours, else the name and value."""
    text = "\n".join(error.traceback) or f"{error.name}: {error.value}"
    return _ESCAPES.sub("", text).rstrip("\n") + "\n"


# -- the result --------------------------------------------------------------------------------------------------------


def what_was_raised(*told: CellError | None) -> CellError | None:
    """Return the first error that has a name; a kernel replies `NoneType` where a value's own `__repr__` raised."""
    errors = [error for error in told if error is not None]
    return next((error for error in errors if error.name != "NoneType"), errors[0] if errors else None)


def cell_result(
    cell_id: str,
    title: str | None,
    output: CellOutput,
    *,
    status: CellStatus | None = None,
    error: CellError | None = None,
    duration_seconds: float | None = None,
    execution_count: int | None = None,
    notices: Sequence[str] = (),
    **members: Any,
) -> CellResult:
    """Put what a cell gave and how it ended together; what is None here is taken from its end record."""
    if (end := output.end) is not None:
        status = status or end.status
        duration_seconds = end.duration if duration_seconds is None else duration_seconds
        execution_count = end.execution_count if execution_count is None else execution_count
    shown = ("text", "outputs", "truncated", "artifact", "total_bytes", "total_lines", "shown_bytes")
    members |= {name: getattr(output, name) for name in shown}
    members["lossy"] = members.get("lossy", False) or output.unkept is not None
    return CellResult(
        cell_id,
        title,
        status or CellStatus.ERROR,
        error=what_was_raised(error, output.error),
        duration_seconds=duration_seconds,
        execution_count=execution_count,
        notices=(*filter(None, [output.unkept]), *output.notices, *notices),
        **members,
    )
