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
from supervisord_py.kernels.cell_files import OutputGoneError, capped_words, end_of, error_in
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.cell_files import CellLog, Record, WrittenEnd
    from supervisord_py.kernels.config import OutputLimits

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32  # so many times `inline_bytes` of rich outputs stay in an answer; later ones are held to less
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


class _Part(Struct, eq=False):
    """A stretch of a stream; or what the record at `offset` shows, its words and output; or, with neither, a marker."""

    stream: str = ""
    start: int = 0
    size: int = 0
    offset: int = -1
    words: bytes = b""
    output: Output | None = None


_Shown = list[tuple[_Part, bytes]]


class _Survey(Struct):
    """What the records of a cell tell, and all that could be shown, in order."""

    parts: list[_Part] = field(default_factory=list)
    begin: dict[str, int] = field(default_factory=dict)  # where the streams begin: what is before was cleared
    error: CellError | None = None  # what was raised last
    end: WrittenEnd | None = None
    capped: Record | None = None


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
    found = _survey(log, sizes)
    rich, first = [part for part in found.parts if not part.stream], min(FIRST_OUTPUTS, most_outputs)
    dropped = rich[first : max(first, len(rich) - most_outputs + first)]
    listed = rich[:first] + rich[first + len(dropped) :]
    gone = set(dropped)
    found.parts = [part for part in found.parts if part not in gone]
    inline = 0
    for part in listed:
        allowed = limits.inline_bytes
        if inline > INLINE_OUTPUTS * allowed:
            allowed = min(allowed, INLINE_LATER_BYTES)
        inline += _fill(part, log, allowed, limits.preview_bytes)
    lines = sum(_count_lines(log, stream, found.begin[stream], size) for stream, size in sizes.items())
    cleared = sum(_count_lines(log, stream, 0, size) for stream, size in found.begin.items())
    shown, is_cut = _head_and_tail(log, limits, found.parts, lines)
    end, capped = found.end, found.capped
    unkept, notices = None, []
    if capped is not None and capped.said.get("disk"):
        unkept = capped_words(capped)
    elif capped is not None:
        notices.append(capped_words(capped))
    elif end is not None and end.size > total:
        unkept = f"{end.size - total} bytes of output are lost: they were removed from disk while the cell ran"
    if dropped:
        notices.append(f"{len(dropped)} of {len(rich)} rich outputs are not listed: only the first and the last are")
    return CellOutput(
        text=_text(shown),
        outputs=tuple(_outputs(shown, listed)),
        truncated=is_cut or capped is not None,
        artifact=log.cell_id if total else None,
        total_bytes=total,
        total_lines=cleared + lines + (total > 0 and log.page(total - 1, 1).data != b"\n"),
        shown_bytes=sum(len(data) for part, data in shown if part.stream),
        error=what_was_raised(end.error if end else None, found.error),
        end=end,
        unkept=unkept,
        notices=tuple(notices),
    )


def _count_lines(log: CellLog, stream: str, start: int, end: int) -> int:
    places = range(start, end, BLOCK_BYTES)
    return sum(log.read(stream, at, min(BLOCK_BYTES, end - at)).count(b"\n") for at in places)


def _survey(log: CellLog, sizes: Mapping[str, int]) -> _Survey:
    """Look over all records of a cell; what they display is read again when it is known what stays of it."""
    at = {"stderr": 0, "stdout": 0}
    found = _Survey(begin=dict(at))
    displays: dict[str, list[_Part]] = {}
    is_pending = False  # a clear that waits for the next output

    def clear() -> None:
        found.parts.clear()
        found.begin = dict(at)

    def add(part: _Part) -> None:
        nonlocal is_pending
        if is_pending:
            clear()
        is_pending = False
        if part.stream and found.parts and found.parts[-1].stream == part.stream:
            found.parts[-1].size += part.size
        else:
            found.parts.append(part)

    def streams_up_to(err: int, out: int) -> None:
        for stream, end in (("stderr", err), ("stdout", out)):
            if (size := min(end, sizes[stream]) - at[stream]) > 0:
                add(_Part(stream, at[stream], size))
                at[stream] += size

    for record in log.records():
        streams_up_to(record.err_at, record.at)
        kind, name = record.kind, record.said.get("display_id")
        if kind == "clear":
            is_pending = bool(record.said.get("wait"))
            if not is_pending:
                clear()
        elif kind == "display" and record.said.get("update") and name in displays:
            for part in displays[name]:
                part.offset = record.offset
        elif kind in {"display", "result", "error", "status"}:
            add(part := _Part(offset=record.offset))
            if kind == "display" and name is not None:
                displays.setdefault(name, []).append(part)
        if kind == "error":
            found.error = error_in(record.said)
        elif kind == "capped":
            found.capped = record
        elif kind == "end":
            found.end = end_of(record)
    streams_up_to(sizes["stderr"], sizes["stdout"])
    return found


def _fill(part: _Part, log: CellLog, inline_bytes: int, most: int) -> int:
    """Read the words and the output of a record; return about how many bytes of it are in the answer."""
    record, inline = log.record_at(part.offset), 0
    said = record.said
    if record.kind == "error":
        error = error_in(said)
        members = {"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}
        part.output, text = {"output_type": "error", **members}, traceback_text(error)
    elif record.kind == "status":
        part.output, text = (
            {"output_type": "display_data", "metadata": {}, "data": {STATUS_MIME: said.get("event")}},
            "",
        )
    else:
        data = said.get("data") or {}
        kept, text = spill(log.folder, log.cell_id, record.offset, data, inline_bytes), text_of(data)
        inline = sum(map(weight, kept.values()))
        part.output = {"output_type": "display_data", "metadata": dict(said.get("metadata") or {}), "data": kept}
        if record.kind == "result":
            part.output |= {"output_type": "execute_result", "execution_count": said.get("execution_count")}
    words = text.encode("utf-8", "replace")
    part.words = words if len(words) <= 2 * most else words[:most] + words[-most:]  # of its middle nothing can be shown
    part.size = len(part.words)
    return inline


def _head_and_tail(log: CellLog, limits: OutputLimits, parts: list[_Part], lines: int) -> tuple[_Shown, bool]:
    """Return what is shown, a marker in the place of what is left out, and whether something is.

    `lines`: how many the streams have.
    """

    def between(start: int, end: int) -> _Shown:
        found, at = [], 0
        for part in parts:
            low, high = max(start - at, 0), min(end - at, part.size)
            if low < high and part.stream:
                found.append((part, log.read(part.stream, part.start + low, high - low)))
            elif low < high or (not part.size and start <= at <= end):
                found.append((part, part.words[low:high]))
            at += part.size
        return found

    whole = sum(part.size for part in parts)
    if whole <= limits.preview_bytes:
        return between(0, whole), False
    head = between(0, limits.head_bytes)
    tail = between(whole - max(0, limits.preview_bytes - limits.head_bytes), whole)
    if places := [at for at, (_, data) in enumerate(head) if data]:
        part, data = head[places[-1]]
        head[places[-1]] = (part, data[: cut_end(data)])
    if places := [at for at, (_, data) in enumerate(tail) if data]:
        part, data = tail[places[0]]
        tail[places[0]] = (part, data[cut_start(data) :])
    shown = [*head, *tail]
    lines += sum(part.words.count(b"\n") for part in parts) - sum(data.count(b"\n") for _, data in shown)
    is_stream = sum(part.size for part in parts if part.stream) > sum(len(data) for part, data in shown if part.stream)
    where = f"artifact {log.cell_id}" if is_stream else "see the outputs"
    left_out = whole - sum(len(data) for _, data in shown)
    marker = f"… [{left_out} bytes, {lines} lines omitted; {where}] …\n"
    return [*head, (_Part(), marker.encode()), *tail], True


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


def _outputs(shown: _Shown, listed: list[_Part]) -> Iterator[Output]:
    """Yield the outputs in order; those whose words are left out stand at the marker, which is in the stream there."""
    placed = {part for part, _ in shown}
    left_out = [part for part in listed if part not in placed]
    told: set[_Part] = set()
    streamed: list[tuple[str, str]] = []
    for part, data in shown:
        text = data.decode("utf-8", "replace")
        if part.stream:
            streamed.append((part.stream, text))
            continue
        is_marker = part.output is None
        if is_marker and "artifact" in text:
            stream, before = streamed[-1] if streamed else ("stdout", "\n")
            streamed.append((stream, text if before.endswith("\n") else f"\n{text}"))
        due = left_out if is_marker else [part] if part not in told else []
        if due:
            yield from _streams(streamed)
            streamed.clear()
            yield from (each.output for each in due if each.output is not None)
            told.add(part)
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


def what_was_raised(*told: CellError | None) -> CellError | None:
    """Return the first error that has a name; a kernel replies `NoneType` where a value's own `__repr__` raised."""
    errors = [error for error in told if error is not None]
    return next((error for error in errors if error.name != "NoneType"), errors[0] if errors else None)
