"""What is shown of a cell: one text, and outputs as notebooks have them. Pure: parts and bytes in, values out.

Law: text and outputs tell the same in the same order; nothing that was printed disappears without a marker that counts
it. A marker names the artifact under which everything is.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.kernels.output.display_text import as_on_a_terminal, cut_end, cut_start
from supervisord_py.kernels.output.two_ends import Span, Words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from supervisord_py.kernels.output.two_ends import Ends, Omitted, Part

Output = dict[str, Any]
FIRST_OUTPUTS = 100
LAST_OUTPUTS = 400


class StreamFile(Protocol):
    """The complete stream output, as far as it must be looked at again.

    Attributes:
        artifact: Id under which it can be read.
    """

    artifact: str

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes `start` up to `end`."""

    def count_lines(self, start: int, end: int) -> int:
        """Return how many line ends lie in that range."""


class RichOutputs:
    """The rich outputs of a cell by number, the `first` and the `last` of them."""

    def __init__(self, first: int = FIRST_OUTPUTS, last: int = LAST_OUTPUTS) -> None:
        self._room = first
        self._first: list[tuple[int, Output]] = []
        self._last: deque[tuple[int, Output]] = deque(maxlen=last)
        self.count = 0

    def add(self, output: Output) -> int:
        """Take the next one; return its number."""
        (self._first if len(self._first) < self._room else self._last).append((self.count, output))
        self.count += 1
        return self.count - 1

    def kept(self) -> dict[int, Output]:
        """Return those that are listed, in order."""
        return dict([*self._first, *self._last])

    @property
    def dropped(self) -> int:
        """How many are not listed."""
        return self.count - len(self._first) - len(self._last)


@dataclass(frozen=True, slots=True)
class Streamed:
    """Decoded text of one stream."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Rich:
    """A rich output in its place, with so much of its words as is shown."""

    ordinal: int
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Between head and tail; `marker` is "" where nothing is left out."""

    marker: str
    in_stream: bool


Item = Streamed | Rich | Gap
Loaded = list[tuple["Part", bytes]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of a cell.

    Attributes:
        text: See CellResult.
        outputs: See CellResult.
        truncated: Something of it is not in `text`.
        shown_bytes: Of the stream, in `text`.
    """

    text: str
    outputs: tuple[Output, ...]
    truncated: bool
    shown_bytes: int


def compose(ends: Ends, rich: RichOutputs, stream_file: StreamFile) -> Shown:
    """Make text and outputs of the two ends of a cell's output; `rich` are the outputs that their Words are of."""
    head = _load(ends.head, stream_file.read)
    tail = _load(ends.tail, stream_file.read)
    omitted = _trim(head, tail, ends.omitted) if ends.omitted.size else ends.omitted
    marker = _marker(omitted, stream_file) if omitted.size else ""
    gap = Gap(marker, omitted.end > omitted.start)
    items = [*_decoded(head), gap, *_decoded(tail)]
    shown_bytes = sum(part.size for part, _ in (*head, *tail) if isinstance(part, Span))
    return Shown(_text(items), tuple(_outputs(items, rich.kept())), omitted.size > 0, shown_bytes)


def _load(parts: Sequence[Part], read: Callable[[int, int], bytes]) -> Loaded:
    """Pair each part with its bytes; the stretches of one end lie side by side, so they are read at once."""
    spans = [part for part in parts if isinstance(part, Span)]
    start = spans[0].start if spans else 0
    block = read(start, spans[-1].end) if spans else b""
    return [
        (part, part.data if isinstance(part, Words) else block[part.start - start : part.end - start]) for part in parts
    ]


def _trim(head: Loaded, tail: Loaded, omitted: Omitted) -> Omitted:
    """Move both cuts to where a line or at least a character ends; return what is omitted then."""
    if head:
        part, data = head.pop()
        kept, cut = part.split(cut_end(data))
        head.append((kept, data[: kept.size]))
        omitted = omitted.with_part(cut)
    if tail:
        part, data = tail.pop(0)
        cut, kept = part.split(cut_start(data))
        tail.insert(0, (kept, data[cut.size :]))
        omitted = omitted.with_part(cut)
    return omitted


def _marker(omitted: Omitted, stream_file: StreamFile) -> str:
    lines = omitted.word_lines + stream_file.count_lines(omitted.start, omitted.end)
    where = f"artifact {stream_file.artifact}" if omitted.end > omitted.start else "see the outputs"
    return f"… [{omitted.size} bytes, {lines} lines omitted; {where}] …\n"


def _decoded(parts: Loaded) -> Iterator[Item]:
    """Yield the parts of one end as text; a character that another stream cut in two is put together again."""
    decoders: dict[str, codecs.IncrementalDecoder] = {}
    for part, data in parts:
        if isinstance(part, Words):
            yield Rich(part.ordinal, data.decode("utf-8", "replace"))
            continue
        if part.stream not in decoders:
            decoders[part.stream] = codecs.getincrementaldecoder("utf-8")("replace")
        yield Streamed(part.stream, decoders[part.stream].decode(data))
    for stream, decoder in decoders.items():
        if rest := decoder.decode(b"", final=True):
            yield Streamed(stream, rest)


def _text(items: Iterable[Item]) -> str:
    """Put everything into one text; what is not stream begins on a line of its own."""
    text = ""
    for is_streamed, run in groupby(items, lambda item: isinstance(item, Streamed)):
        words = [_words(item) for item in run]
        if is_streamed:
            text += as_on_a_terminal("".join(words))
            continue
        for each in filter(None, words):
            text += each if not text or text.endswith("\n") else f"\n{each}"
    return text


def _words(item: Item) -> str:
    return item.marker if isinstance(item, Gap) else item.text


def _outputs(items: Sequence[Item], rich: dict[int, Output]) -> Iterator[Output]:
    """Yield the outputs in order; those whose words are omitted stand at the gap."""
    places = {item.ordinal for item in items if isinstance(item, Rich)}
    told: set[int] = set()
    streamed: list[Streamed] = []
    for item in items:
        match item:
            case Streamed():
                streamed.append(item)
            case Gap(marker=marker, in_stream=True):
                streamed.append(Streamed(streamed[-1].stream if streamed else "stdout", _own_line(streamed, marker)))
        due = _due(item, rich, places, told)
        if due:
            yield from _streams(streamed)
            streamed.clear()
            told.update(due)
            yield from (rich[ordinal] for ordinal in due)
    yield from _streams(streamed)


def _own_line(before: Sequence[Streamed], marker: str) -> str:
    return marker if not before or before[-1].text.endswith("\n") else f"\n{marker}"


def _due(item: Item, rich: dict[int, Output], places: set[int], told: set[int]) -> list[int]:
    """Return which rich outputs stand at an item."""
    match item:
        case Rich(ordinal=ordinal):
            return [ordinal] if ordinal in rich and ordinal not in told else []
        case Gap():
            return [ordinal for ordinal in rich if ordinal not in places]
        case _:
            return []


def _streams(items: Iterable[Streamed]) -> Iterator[Output]:
    for stream, run in groupby(items, lambda item: item.stream):
        text = as_on_a_terminal("".join(item.text for item in run))
        if text:
            yield {"output_type": "stream", "name": stream, "text": text}
