"""The front matter of a `pipe.md`: text to nodes, each with its place. Pure.

YAML is read for its structure only. What a scalar means is for its key to say, so that `9:30` is not 570, `010` not 8,
`no` not false and a date not a date. Anchors, aliases, tags and merge keys are refused: a file is what it looks like.
The nodes are made from the parser's events: depth and number are bounded before anything is built.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from supervisord_py.pipes.declaring.problems import DeclarationError
from supervisord_py.pipes.declaring.yaml_cures import YamlFault, alias_cure, anchor_cure, cure_of, tag_cure
from supervisord_py.pipes.models import ConfigProblem
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where something begins; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]` is what was written, quotes included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text. `plain` is one without quotes, `block` one that begins with | or >."""

    text: str
    place: Place
    span: Span
    plain: bool = True
    block: bool = False

    @property
    def is_null(self) -> bool:
        """Whether nothing was said: empty, `~` or `null` without quotes."""
        return self.plain and self.text in NULLS


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    place: Place
    span: Span
    flow: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a table with its value; keys are unique in their table."""

    key: str
    place: Place
    span: Span
    value: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A map. `flow` is one in braces."""

    entries: tuple[Entry, ...]
    place: Place
    span: Span
    flow: bool = False


Node: TypeAlias = Scalar | Items | Table


def kind_of(node: Node) -> str:
    """Name a node in a message."""
    if isinstance(node, Scalar):
        return "text"
    return "a list" if isinstance(node, Items) else "a map"


def simple(node: Node) -> object:
    """Return a node as texts, lists and dicts of texts; null is None."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Items):
        return [simple(each) for each in node.items]
    return {each.key: simple(each.value) for each in node.entries}


BOM = "\ufeff"

_LINE_END = re.compile(r"\r\n|\n|\r")


class Lines:
    """The lines of one text. A byte order mark counts for nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [len(BOM) if text.startswith(BOM) else 0]
        self._starts += [each.end() for each in _LINE_END.finditer(text)]

    def place(self, index: int) -> Place:
        """Return line and column of an index."""
        line = max(bisect_right(self._starts, index), 1)
        return Place(line, max(index - self._starts[line - 1], 0) + 1)

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without its end."""
        begin = self._starts[number - 1]
        end = _LINE_END.search(self._text, begin)
        return self._text[begin : end.start() if end else len(self._text)]

    def rest(self, index: int) -> str:
        """Return what follows in the line of an index."""
        return self._text[index : self.end(index)]

    def start(self, index: int) -> int:
        """Return where the line of an index begins."""
        return self._starts[max(bisect_right(self._starts, index), 1) - 1]

    def end(self, index: int) -> int:
        """Return where the line of an index ends, before its line end."""
        found = _LINE_END.search(self._text, index)
        return found.start() if found else len(self._text)


FENCE = "---"
CURE = "begin the file with a line ---, then lines of key: value, then another line ---, then the prompt"

_OPENING = re.compile(r"\s*---[ \t]*(\r\n|\n|\r|$)")
_CLOSING = re.compile(r"(?:(?<=\n)|(?<=\r)(?!\n))---([^\r\n]*)(?:\r\n|\n|\r|$)")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\n|\r))*")


@dataclass(frozen=True, slots=True)
class Sections:
    """Indexes into the text.

    Attributes:
        header_start, header_end: Between the two fences, its last line end included.
        body_start: After the line end of the closing fence.
        newline: Line end of the opening fence, for lines that are added.
    """

    header_start: int
    header_end: int
    body_start: int
    newline: str


def _divide(text: str, lines: Lines, file: str) -> Sections:
    """Find the front matter: from a first line `---` to the next line that begins with `---`."""
    start = len(BOM) if text.startswith(BOM) else 0
    opening = _OPENING.match(text, start)
    closing = _CLOSING.search(text, opening.end()) if opening else None
    words = text[start:].strip()
    index = text.index(words[:1], start)
    if opening and closing:
        rest = closing.group(1).strip("- \t")
        if not rest:
            return Sections(opening.end(), closing.start(), closing.end(), opening.group(1) or "\n")
        index, hint = closing.start(), "put the closing --- on a line of its own"
        detail = f"{shown(rest)} follows the closing ---"
    elif opening:
        detail = "the front matter that begins here is never closed"
        hint = "put a line --- between the keys and the prompt"
    else:
        first, hint = shown(words.splitlines()[0]) if words else "", CURE
        detail = f"there is no front matter: the file begins with {first}" if words else "the file is empty"
        if words.startswith(FENCE):
            detail = f"the first line is {first}; the line that opens the front matter is --- and nothing else"
    place = lines.place(index)
    raise DeclarationError(ConfigProblem(detail, hint, file, place.line, place.column)) from None


def _body_of(text: str, sections: Sections) -> str:
    """Return the prompt: no blank lines before or after it, the rest as it is."""
    body = text[sections.body_start :].rstrip()
    blank = _BLANK_LINES.match(body)
    return body[blank.end() :] if blank else body


MAX_DEPTH = 16
MAX_NODES = 10_000

_MERGE = "<<"
_NOT_YAML = re.compile("[^\\t\\n\\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What libyaml refuses; it would count the place in bytes."""


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """A file, taken apart.

    Attributes:
        header: What stands between the fences; empty where nothing does.
        body: The prompt, without blank lines around it.
        sections: Where both lie in `text`.
    """

    text: str
    header: Table
    body: str
    sections: Sections


def parse(text: str, file: str) -> FrontMatter:
    """Take a file apart; `file` is how messages call it.

    Raises:
        DeclarationError: With one problem: line, column and cure.
    """
    lines = Lines(text)
    sections = _divide(text, lines, file)
    header = _Header(text, sections, lines, file).read()
    return FrontMatter(text, header, _body_of(text, sections), sections)


class _Header:
    """Reads the events of one header; everything it raises is a DeclarationError."""

    def __init__(self, text: str, sections: Sections, lines: Lines, file: str) -> None:
        # 15 ms, of which a control plane without pipes has no use.
        import yaml

        self._yaml = yaml
        self._text = text
        self._offset = sections.header_start
        self._lines = lines
        self._file = file
        self._nodes = 0
        self._end = sections.header_end
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = yaml.parse(text[self._offset : self._end], Loader=loader)

    def read(self) -> Table:
        wrong = _NOT_YAML.search(self._text, self._offset, self._end)
        if wrong is not None:
            detail = f"the character U+{ord(wrong[0]):04X} cannot stand in front matter"
            self._refuse(detail, "take it out", wrong.start())
        try:
            return self._document()
        except self._yaml.MarkedYAMLError as error:
            self._refuse_syntax(error)

    def _document(self) -> Table:
        yaml = self._yaml
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            here = self._offset
            return Table((), self._lines.place(here), Span(here, here))
        root = self._node(next(self._events), 0)
        end = next(self._events)
        if end.explicit:
            self._refuse("a line ... ends the front matter early", "take the line out", self._index(end.start_mark))
        if isinstance(root, Scalar) and root.is_null:
            return Table((), root.place, root.span)
        if not isinstance(root, Table):
            self._refuse("the front matter is not made of lines of key: value", CURE, root.span.start)
        return root

    def _node(self, event: Any, depth: int) -> Node:
        yaml = self._yaml
        start = self._index(event.start_mark)
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            what = f"more than {MAX_NODES} values" if depth <= MAX_DEPTH else f"more than {MAX_DEPTH} levels"
            self._refuse(f"the front matter has {what}", "put long texts into the prompt or into files", start)
        if isinstance(event, yaml.AliasEvent):
            self._raise(alias_cure(start, self._lines))
        if event.anchor is not None:
            self._raise(anchor_cure(start, self._lines))
        if event.tag is not None:
            self._raise(tag_cure(start, self._lines))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, start)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(event, start, depth)
        return self._table(event, start, depth)

    def _scalar(self, event: Any, start: int) -> Scalar:
        end = self._index(event.end_mark)
        block = event.style in ("|", ">")
        if block:
            # The parser passes over blank lines to the next token; they belong to nobody.
            end = start + len(self._text[start:end].rstrip())
        return Scalar(event.value, self._lines.place(start), Span(start, end), event.style in (None, ""), block)

    def _items(self, event: Any, start: int, depth: int) -> Items:
        items: list[Node] = []
        while not isinstance(each := next(self._events), self._yaml.SequenceEndEvent):
            items.append(self._node(each, depth + 1))
        # The end of a block is where the next token begins, after comments; the last item ends earlier.
        end = self._index(each.end_mark) if event.flow_style or not items else items[-1].span.end
        return Items(tuple(items), self._lines.place(start), Span(start, end), bool(event.flow_style))

    def _table(self, event: Any, start: int, depth: int) -> Table:
        entries: dict[str, Entry] = {}
        while not isinstance(each := next(self._events), self._yaml.MappingEndEvent):
            entry = self._entry(each, depth)
            if entry.key in entries:
                self._refuse_twice(entry, entries[entry.key])
            entries[entry.key] = entry
        found = tuple(entries.values())
        end = self._index(each.end_mark) if event.flow_style or not found else found[-1].value.span.end
        return Table(found, self._lines.place(start), Span(start, end), bool(event.flow_style))

    def _entry(self, event: Any, depth: int) -> Entry:
        key = self._node(event, depth + 1)
        if not isinstance(key, Scalar) or key.block:
            self._refuse("a key here is not a word", "write key: value", key.span.start)
        if key.plain and key.text == _MERGE:
            self._refuse("<< merges YAML maps, which is not done here", "write the keys out", key.span.start)
        return Entry(key.text, key.place, key.span, self._node(next(self._events), depth + 1))

    def _index(self, mark: Any) -> int:
        return self._offset + int(mark.index)

    def _refuse_twice(self, second: Entry, first: Entry) -> NoReturn:
        detail = f"the key {shown(second.key)} stands in line {first.place.line} and again in line {second.place.line}"
        self._refuse(detail, "keep one of the two lines", second.span.start, second.key)

    def _refuse_syntax(self, error: Any) -> NoReturn:
        index = self._index(error.problem_mark)
        began = index if error.context_mark is None else self._index(error.context_mark)
        fault = YamlFault(str(error.problem), str(error.context or ""), index, began)
        self._raise(cure_of(fault, self._text, self._lines))

    def _raise(self, cure: Any) -> NoReturn:
        self._refuse(cure.detail, cure.hint, cure.index)

    def _refuse(self, detail: str, hint: str, index: int, key: str | None = None) -> NoReturn:
        place = self._lines.place(index)
        raise DeclarationError(ConfigProblem(detail, hint, self._file, place.line, place.column, key)) from None
