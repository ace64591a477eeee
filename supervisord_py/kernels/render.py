"""What is shown of a cell, made from its files: one text, and outputs as notebooks have them.

Text and outputs tell the same in the same order. Memory is bounded by the limits, not by what the cell printed: the
streams are read at their two ends, large rich outputs become files as they are met. Blocking: call it in a thread.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from supervisord_py.kernels.artifacts import spill, weight
from supervisord_py.kernels.cell import CellResult, CellStatus
from supervisord_py.kernels.cell_files import OutputGoneError, capped_words, end_of, error_in
from supervisord_py.kernels.cell_text import as_on_a_terminal, cut_end, cut_start, text_of, traceback_text
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from supervisord_py.kernels.cell import CellError, Step
    from supervisord_py.kernels.cell_files import CellLog, End, Record
    from supervisord_py.kernels.config import OutputLimits

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400
BLOCK_BYTES = 256 * 1024
INLINE_OUTPUTS = 32
"""So many times `inline_bytes` of rich outputs stay in an answer; beyond it each is held to INLINE_LATER_BYTES."""
INLINE_LATER_BYTES = 4 * 1024
_NAMELESS = "NoneType"


class CellOutput(Struct, frozen=True):
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
    sizes = {stream: log.size(stream) for stream in log.paths}
    total = sum(sizes.values())
    found = _survey(log.records(), total)
    parts = _Parts(log, limits, found, most_outputs, sizes)
    text, outputs, shown_bytes, is_cut = _compose(parts, limits)
    capped, missing = found.capped, max(0, found.end.size - total) if found.end else 0
    unkept, notices = None, []
    if missing and capped is None:
        unkept = f"{missing} bytes of output are lost: they were removed from disk while the cell ran"
    elif capped is not None and capped.said.get("disk"):
        unkept = capped_words(capped)
    elif capped is not None:
        notices.append(capped_words(capped))
    if parts.count > len(parts.rich):
        dropped = parts.count - len(parts.rich)
        notices.append(f"{dropped} of {parts.count} rich outputs are not listed: only the first and the last are")
    return CellOutput(
        text,
        outputs,
        is_cut or capped is not None,
        log.cell_id if total else None,
        total,
        _count_lines(log, log.pieces()) + (total > 0 and log.page(total - 1, 1).data != b"\n"),
        shown_bytes,
        what_was_raised(found.end.error if found.end else None, found.error),
        found.end,
        unkept,
        tuple(notices),
    )


def _count_lines(log: CellLog, pieces: Iterable[tuple[str, int, int]]) -> int:
    """Return how many line ends lie in a stretch of each stream that all these pieces are of."""
    ends: dict[str, tuple[int, int]] = {}
    for stream, start, end in pieces:
        first, last = ends.get(stream, (start, end))
        ends[stream] = min(first, start), max(last, end)
    count = 0
    for stream, (at, last) in ends.items():
        for start in range(at, last, BLOCK_BYTES):
            count += log.read(stream, start, min(BLOCK_BYTES, last - start)).count(b"\n")
    return count


# -- the first look over the records: what was cleared, which displays were written over, how it ended ---------------


class _Survey(Struct):
    """What must be known before the records are shown in order.

    Attributes:
        cleared: The record that cleared last.
        latest: `{display_id: its last update}`.
        displayed: Ids that were displayed, cleared ones included.
        error: What was raised last.
    """

    cleared: Record | None = None
    latest: dict[str, Record] = field(default_factory=dict)
    displayed: set[str] = field(default_factory=set)
    error: CellError | None = None
    end: End | None = None
    capped: Record | None = None

    def is_shown(self, record: Record) -> bool:
        """Say whether a display has a place of its own; an update only has where its id was never displayed here."""
        name = record.said.get("display_id")
        if not record.said.get("update"):
            return True
        return name is not None and name not in self.displayed and self.latest[name].offset == record.offset


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
    """A stretch of a stream, from `start` on, or the words of the rich output number `ordinal`."""

    size: int
    stream: str = ""
    start: int = 0
    ordinal: int = -1


class _Parts:
    """Everything that is shown, in order.

    Attributes:
        all: In order.
        rich: The first and the last rich outputs by number, each with its words. `count`: of all there were.
    """

    def __init__(
        self, log: CellLog, limits: OutputLimits, found: _Survey, most_outputs: int, sizes: dict[str, int]
    ) -> None:
        self.log = log
        self.all: list[_Part] = []
        self.rich: dict[int, tuple[Output, bytes]] = {}
        self.count = 0
        self._limits = limits
        self._found = found
        self._first = min(FIRST_OUTPUTS, most_outputs)
        self._last: deque[int] = deque()
        self._most_last = most_outputs - self._first
        self._inline = 0
        cleared, self._sizes = found.cleared, sizes
        self._at = {"stderr": cleared.err_at if cleared else 0, "stdout": cleared.at if cleared else 0}
        for record in log.records():
            if cleared is None or record.offset > cleared.offset:
                self._streams_up_to(record.at, record.err_at)
                self._take(record)
        self._streams_up_to(sizes["stdout"], sizes["stderr"])
        self.all = [part for part in self.all if part.ordinal < 0 or part.ordinal in self.rich]

    def _streams_up_to(self, out: int, err: int) -> None:
        for stream, end in (("stderr", min(err, self._sizes["stderr"])), ("stdout", min(out, self._sizes["stdout"]))):
            start = self._at[stream]
            if end > start:
                self._at[stream] = end
                if self.all and self.all[-1].stream == stream:
                    start = self.all.pop().start
                self.all.append(_Part(end - start, stream, start))

    def _take(self, record: Record) -> None:
        said = record.said
        if record.kind == "error":
            error = error_in(said)
            members = {"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}
            self._add({"output_type": "error", **members}, traceback_text(error))
        elif record.kind == "status":
            self._add({"output_type": "display_data", "metadata": {}, "data": {STATUS_MIME: said.get("event")}}, "")
        elif record.kind == "result":
            self._add_bundle(record, said, {"output_type": "execute_result"})
        elif record.kind == "display" and self._found.is_shown(record):
            update = self._found.latest.get(said.get("display_id", ""))
            latest = update.said if update is not None and update.offset > record.offset else said
            self._add_bundle(record, latest, {"output_type": "display_data"})

    def _add_bundle(self, record: Record, said: Mapping[str, Any], output: Output) -> None:
        data, allowed = said.get("data") or {}, self._limits.inline_bytes
        if self._inline > INLINE_OUTPUTS * allowed:
            allowed = min(allowed, INLINE_LATER_BYTES)
        output["metadata"] = dict(said.get("metadata") or {})
        if record.kind == "result":
            output["execution_count"] = said.get("execution_count")
        output["data"] = spill(self.log.folder, self.log.cell_id, record.offset, data, allowed)
        self._inline += sum(map(weight, output["data"].values()))
        self._add(output, text_of(data))

    def _add(self, output: Output, text: str) -> None:
        words = text.encode("utf-8", "replace")
        if len(words) > 2 * self._limits.preview_bytes:  # of its middle nothing can be shown
            words = words[: self._limits.preview_bytes] + words[-self._limits.preview_bytes :]
        self.rich[self.count] = (output, words)
        self.all.append(_Part(len(words), ordinal=self.count))
        if self.count >= self._first:
            self._last.append(self.count)
            if len(self._last) > self._most_last:
                del self.rich[self._last.popleft()]
        self.count += 1

    def between(self, start: int, end: int) -> list[_Piece]:
        """Return what lies between two places of all parts; the stretches of a stream are read at once."""
        chosen: list[tuple[_Part, int, int]] = []
        at = 0
        for part in self.all:
            low, high = max(start - at, 0), min(end - at, part.size)
            if low < high or (not part.size and start <= at <= end):
                chosen.append((part, low, high))
            at += part.size
        blocks: dict[str, tuple[int, bytes]] = {}
        for stream in self._at:
            spans = [(part.start + low, part.start + high) for part, low, high in chosen if part.stream == stream]
            if spans:
                blocks[stream] = spans[0][0], self.log.read(stream, spans[0][0], spans[-1][1] - spans[0][0])
        found = []
        for part, low, high in chosen:
            first, block = blocks.get(part.stream) or (0, self.rich[part.ordinal][1])
            begin = part.start - first
            found.append(_Piece(part, block[begin + low : begin + high]))
        return found


# -- text and outputs --------------------------------------------------------------------------------------------------


class _Piece(Struct):
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


def _compose(parts: _Parts, limits: OutputLimits) -> tuple[str, tuple[Output, ...], int, bool]:
    """Return text, outputs, how many bytes of the stream are in the text, and whether something is left out."""
    whole = sum(part.size for part in parts.all)
    if whole <= limits.preview_bytes:
        shown = parts.between(0, whole)
        return _text(shown), tuple(_outputs(shown, {}, parts)), _streamed(shown), False
    head = parts.between(0, limits.head_bytes)
    tail = parts.between(whole - max(0, limits.preview_bytes - limits.head_bytes), whole)
    for last in [piece for piece in head if piece.data][-1:]:
        last.data = last.data[: cut_end(last.data)]
    for first in [piece for piece in tail if piece.data][:1]:
        first.data = first.data[cut_start(first.data) :]
    marker = _Piece(None, _marker(parts, whole, [*head, *tail]).encode())
    shown = [*head, marker, *tail]
    placed = {piece.part.ordinal for piece in shown if piece.part is not None}
    left_out = {ordinal: output for ordinal, (output, _) in parts.rich.items() if ordinal not in placed}
    return _text(shown), tuple(_outputs(shown, left_out, parts)), _streamed(shown), True


def _marker(parts: _Parts, whole: int, shown: Sequence[_Piece]) -> str:
    streams = [part for part in parts.all if part.stream]
    lines = _count_lines(parts.log, ((part.stream, part.start, part.start + part.size) for part in streams))
    lines += sum(words.count(b"\n") for _, words in parts.rich.values())
    lines -= sum(piece.data.count(b"\n") for piece in shown)
    size = whole - sum(len(piece.data) for piece in shown)
    is_stream = sum(part.size for part in streams) > _streamed(shown)
    where = f"artifact {parts.log.cell_id}" if is_stream else "see the outputs"
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


def _outputs(shown: Iterable[_Piece], left_out: Mapping[int, Output], parts: _Parts) -> Iterator[Output]:
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
        due = left_out if piece.part is None else {piece.part.ordinal: parts.rich[piece.part.ordinal][0]}
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
