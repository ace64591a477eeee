"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the cell printed: the
streams are read at their two ends, large rich outputs become files. Blocking: call it in a thread.
"""

from __future__ import annotations

import codecs
import importlib
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from supervisord_py.kernels.artifacts import joined, spill, weight
from supervisord_py.kernels.cell_files import OutputGoneError, Reading, StreamSpan
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.cell_files import CellLog, Record
    from supervisord_py.kernels.config import CellLimits

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32  # so many times `inline_bytes` of rich outputs stay in an answer; later ones are held to less
INLINE_LATER_BYTES = 4 * 1024
SMALL_RECORD_BYTES = 4 * 1024  # larger ones are read again when it is known what stays of them
NEAR_BYTES = 1024  # a cut moves this far to fall between lines; further away it only keeps characters whole
MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
_CHARACTER_BYTES = 4
_SHOWN = ("display", "result", "error", "status")
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
    error: CellError | None = None  # what was raised last, if anything
    end: Record | None = None  # None where it runs, or its writer was killed
    unkept: str | None = None  # that something which was printed is not on disk, for another reason than the cap
    notices: tuple[str, ...] = ()  # output beyond the cap, outputs that are not listed


class _Part(Struct, eq=False):
    """A stretch of a stream, or what a record shows: `words` in the text, `output` among the outputs."""

    stream: str = ""
    start: int = 0
    size: int = 0
    offset: int = -1  # of the record
    record: Record | None = None
    words: bytes = b""
    output: Output | None = None

    def read(self, log: CellLog, low: int, high: int) -> bytes:
        """Return bytes of it, `low` and `high` counted from its beginning."""
        return log.read(self.stream, self.start + low, high - low) if self.stream else self.words[low:high]


class _Survey(Struct):
    """What the files of a cell tell."""

    parts: list[_Part] = field(default_factory=list)  # all that could be shown, in order
    begin: dict[str, int] = field(default_factory=dict)  # where the streams begin: what is before was cleared
    sizes: dict[str, int] = field(default_factory=dict)
    last: dict[str, Record] = field(default_factory=dict)  # the last record of each kind
    ends_line: bool = True


def show(log: CellLog, limits: CellLimits, most_outputs: int = FIRST_OUTPUTS + LAST_OUTPUTS) -> CellOutput:
    """Return what is shown of a cell as its files are now; `unkept` says where it has none.

    Of rich outputs the first and the last are listed, `most_outputs` at most.
    """
    inline = 0
    try:
        found = _survey(log, min(SMALL_RECORD_BYTES, limits.inline_bytes))
        rich = [part for part in found.parts if not part.stream]
        dropped = frozenset(rich[FIRST_OUTPUTS : len(rich) - (most_outputs - FIRST_OUTPUTS)])
        found.parts = [part for part in found.parts if part not in dropped]
        for part in found.parts:
            if not part.stream:
                is_much = inline > INLINE_OUTPUTS * limits.inline_bytes
                allowed = min(limits.inline_bytes, INLINE_LATER_BYTES) if is_much else limits.inline_bytes
                inline += _fill(part, log, allowed, limits.preview_bytes)
        is_whole = sum(part.size for part in found.parts) <= limits.preview_bytes
        if is_whole:
            shown = [(part, part.read(log, 0, part.size)) for part in found.parts]
            lines = sum(data.count(b"\n") for part, data in shown if part.stream)
        else:
            lines = sum(_count_lines(log, stream, found.begin[stream], size) for stream, size in found.sizes.items())
            shown = _head_and_tail(log, limits, found.parts, lines)
        lines += sum(_count_lines(log, stream, 0, size) for stream, size in found.begin.items() if size)
    except OutputGoneError as error:  # also taken while they were read
        return CellOutput(unkept=error.detail)
    text, outputs = _composed(shown)
    total, end, capped, raised = sum(found.sizes.values()), *map(found.last.get, ("end", "capped", "error"))
    unkept, notices = None, []
    if capped is not None and capped.disk:
        unkept = capped.capped_words
    elif capped is not None:
        notices.append(capped.capped_words)
    elif end is not None and end.at + end.err_at > total:
        lost = end.at + end.err_at - total
        unkept = f"{lost} bytes of output are lost: they were removed from disk while the cell ran"
    if dropped:
        notices.append(f"{len(dropped)} of {len(rich)} rich outputs are not listed: only the first and the last are")
    return CellOutput(
        text=text,
        outputs=tuple(outputs),
        truncated=capped is not None or not is_whole,
        artifact=log.cell_id if total else None,
        total_bytes=total,
        total_lines=lines + (not found.ends_line),
        shown_bytes=sum(len(data) for part, data in shown if part.stream and part.size),
        error=raised.raised if raised else None,
        end=end,
        unkept=unkept,
        notices=tuple(notices),
    )


def _count_lines(log: CellLog, stream: str, start: int, end: int) -> int:
    places = range(start, end, BLOCK_BYTES)
    return sum(log.read(stream, at, min(BLOCK_BYTES, end - at)).count(b"\n") for at in places)


def _survey(log: CellLog, small_bytes: int) -> _Survey:
    """Look over the files of a cell; of what it displays only small records are kept, whatever there is."""
    reading, found = Reading(log), _Survey()
    found.begin = dict.fromkeys(reading.told, 0)
    displays: dict[str, list[_Part]] = {}
    pending: dict[str, int] | None = None  # a clear that waits for the next output
    span: StreamSpan | None = None
    for item in reading.news():
        part = None
        if isinstance(item, StreamSpan):
            span = item
            part = _Part(item.stream, item.start, item.end - item.start)
        else:
            found.last[item.kind] = item
            small = item if reading.line - item.offset <= small_bytes else None
            if item.kind == "clear":
                pending = dict(reading.told)
            elif item.kind == "display" and item.update and item.display_id in displays:
                for each in displays[item.display_id]:
                    each.offset, each.record = item.offset, small
            elif item.kind in _SHOWN:
                part = _Part(offset=item.offset, record=small)
                if item.kind == "display" and item.display_id is not None:
                    displays.setdefault(item.display_id, []).append(part)
        if pending is not None and (part is not None or not found.last["clear"].wait):
            found.parts.clear()
            found.begin, pending = pending, None
        if part is not None and part.stream and found.parts and found.parts[-1].stream == part.stream:
            found.parts[-1].size += part.size
        elif part is not None:
            found.parts.append(part)
    found.sizes = dict(reading.told)
    found.ends_line = span is None or log.read(span.stream, span.end - 1, 1) == b"\n"
    return found


def _fill(part: _Part, log: CellLog, inline_bytes: int, most: int) -> int:
    """Make the words and the output of a record; return about how many bytes of it are in the answer."""
    record, inline, text = part.record or log.record_at(part.offset), 0, ""
    if record.kind == "error":
        error = record.raised
        members = {"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}
        part.output, text = {"output_type": "error", **members}, traceback_text(error)
    elif record.kind == "status":
        part.output = {"output_type": "display_data", "metadata": {}, "data": {STATUS_MIME: record.event}}
    else:
        kept, text = record.data, text_of(record.data)
        if part.record is None:
            kept = spill(log.folder, log.cell_id, record.offset, kept, inline_bytes)
            inline = sum(map(weight, kept.values()))
        part.output = {"output_type": "display_data", "metadata": record.metadata, "data": kept}
        if record.kind == "result":
            part.output |= {"output_type": "execute_result", "execution_count": record.execution_count}
    words = text.encode("utf-8", "replace")
    part.words = words if len(words) <= 2 * most else words[:most] + words[-most:]  # of its middle nothing can be shown
    part.size = len(part.words)
    return inline


def _head_and_tail(log: CellLog, limits: CellLimits, parts: list[_Part], lines: int) -> list[tuple[_Part, bytes]]:
    """Return the two ends of parts that are too much, in order, with a marker between them.

    Behind the marker stand the outputs whose words are left out. `lines`: how many the streams have.
    """

    def between(start: int, end: int) -> list[tuple[_Part, bytes]]:
        found, at = [], 0
        for part in parts:
            low, high = max(start - at, 0), min(end - at, part.size)
            if low < high or (not part.size and start <= at <= end):
                found.append((part, part.read(log, low, max(low, high))))
            at += part.size
        return found

    whole = sum(part.size for part in parts)
    head = between(0, limits.head_bytes)
    tail = between(whole - max(0, limits.preview_bytes - limits.head_bytes), whole)
    head[-1:] = [(part, data[: cut_end(data)]) for part, data in head[-1:]]
    tail[:1] = [(part, data[cut_start(data) :]) for part, data in tail[:1]]
    shown = [*head, *tail]
    lines += sum(part.words.count(b"\n") for part in parts) - sum(data.count(b"\n") for _, data in shown)
    is_stream = sum(part.size for part in parts if part.stream) > sum(len(data) for part, data in shown if part.stream)
    where = f"artifact {log.cell_id}" if is_stream else "see the outputs"
    left_out = whole - sum(len(data) for _, data in shown)
    marker = f"… [{left_out} bytes, {lines} lines omitted; {where}] …\n".encode()
    if head and head[-1][1] and not head[-1][1].endswith(b"\n"):
        marker = b"\n" + marker
    stream = next((part.stream for part, _ in reversed(head) if part.stream), "stdout") if is_stream else ""
    placed = {part for part, _ in shown}
    omitted = [(part, b"") for part in parts if part.output is not None and part not in placed]
    return [*head, (_Part(stream), marker), *omitted, *tail]


def _composed(shown: list[tuple[_Part, bytes]]) -> tuple[str, list[Output]]:
    """Put everything into one text and into outputs; what is not stream begins on a line of its own."""
    text, outputs, told = "", list[Output](), set[_Part]()
    for stream, run in groupby(shown, lambda each: each[0].stream):
        if stream:
            streamed = as_on_a_terminal(b"".join(data for _, data in run).decode("utf-8", "replace"))
            text += streamed
            outputs += [{"output_type": "stream", "name": stream, "text": streamed}] if streamed else []
            continue
        for part, data in run:
            words = data.decode("utf-8", "replace")
            text += words if not words or not text or text.endswith("\n") else f"\n{words}"
            if part.output is not None and part not in told:  # head and tail may both have words of it
                outputs.append(part.output)
                told.add(part)
    return text, outputs


# -- text --------------------------------------------------------------------------------------------------------------


def cut_end(data: bytes) -> int:
    """Return where to end a head that goes on: behind its last line, if that is near, else behind a character."""
    newline = data.rfind(b"\n", max(0, len(data) - NEAR_BYTES))
    if newline >= 0:
        return newline + 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_CHARACTER_BYTES:])
    return len(data) - len(decoder.getstate()[0])


def cut_start(data: bytes) -> int:
    """Return where to begin a tail that something came before: at a line's beginning, if near, else at a character."""
    newline = data.find(b"\n", 0, NEAR_BYTES)
    if 0 <= newline < len(data) - 1:
        return newline + 1
    starts = (place for place, byte in enumerate(data[:_CHARACTER_BYTES]) if byte & 0xC0 != 0x80)
    return next(starts, len(data) if len(data) < _CHARACTER_BYTES else 0)


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


def what_was_raised(*told: CellError | None) -> CellError | None:
    """Return the first error that has a name; a kernel replies `NoneType` where a value's own `__repr__` raised."""
    errors = [error for error in told if error is not None]
    return next((error for error in errors if error.name != "NoneType"), errors[0] if errors else None)
