"""YAML's complaints, said so that a person can mend the line. Pure.

The parsers (C and Python) word their errors differently, so the cure is read from the text at the place of the error,
and their words are used only where the text does not tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.wall import shown

if TYPE_CHECKING:
    from supervisord_py.pipes.declaring.front_matter import Lines

QUOTED = "quote the value"

_KEY_VALUE = re.compile(r"^(\s*(?:- +)?)([^\s:#'\"][^:]*):[ \t]+(\S.*)$")
_ITEM = re.compile(r"^(\s*)- +(\S.*)$")
_COMMENT = re.compile(r"\s+#.*$")
_STARRED_ITEM = re.compile(r"(?<=[\[,])(\s*)\*(\s*)(?=[\],])")
_NO_SPACE = re.compile(r"^\s*[\w-]+:\S")
_DIRECTIVE = re.compile(r"(?:^|(?<=[\r\n]))%")
_SPECIAL = "@`%"


@dataclass(frozen=True, slots=True)
class YamlFault:
    """What a parser said, and where: indexes into the text of the file."""

    words: str
    context: str
    index: int
    began: int


@dataclass(frozen=True, slots=True)
class Cure:
    """One sentence each, and the index of what is wrong."""

    detail: str
    hint: str
    index: int


def cure_of(fault: YamlFault, text: str, lines: Lines) -> Cure:
    """Explain a syntax error of the front matter, `text` being the whole file."""
    at = text[fault.index : fault.index + 1]
    if at == "\t":
        return Cure("a tab stands where YAML wants spaces", "use spaces instead of the tab", fault.index)
    if "start any token" in fault.words and at in _SPECIAL:
        return _unquoted(f"a value cannot begin with {at} without quotes", fault.index, lines)
    if "document start" in fault.words and (directive := _DIRECTIVE.search(text, 0, fault.index)):
        return Cure(
            "a line that begins with % is a YAML directive; there are none here", "take it out", directive.start()
        )
    return _by_context(fault, text[fault.began : fault.began + 1], lines) or _by_line(fault, lines)


def _by_context(fault: YamlFault, began: str, lines: Lines) -> Cure | None:
    """Explain by what the parser was reading; None where that says nothing."""
    if "alias" in fault.context:
        return alias_cure(fault.began, lines)
    if "anchor" in fault.context:
        return anchor_cure(fault.began, lines)
    if "quoted scalar" in fault.context:
        return _quotes(fault, began)
    if "flow" in fault.context:
        return Cure(f"the {began} that begins here does not end as it should", _flow_hint(began), fault.began)
    if "block scalar" in fault.context:
        return Cure("text follows the | or > on its line", "begin the text on the next line, indented", fault.began)
    return None


def alias_cure(index: int, lines: Lines) -> Cure:
    """Explain a `*` that begins a value: YAML takes it for a reference."""
    place = lines.place(index)
    line = lines.line(place.line)
    starred = _STARRED_ITEM.sub(r'\1"*"\2', line)
    hint = f"quote it: {starred.strip()}" if starred != line else _quoted_line(line)
    word = _COMMENT.sub("", line[place.column - 1 :]) if starred == line else "*"
    return Cure(f"{shown(word)} begins with *, which YAML reads as a reference", hint, index)


def anchor_cure(index: int, lines: Lines) -> Cure:
    """Explain a `&`: names for parts of a file have no use here, and cost more than they give."""
    return _unquoted(f"{shown(lines.rest(index))} begins with &, a YAML anchor; there are none here", index, lines)


def tag_cure(index: int, lines: Lines) -> Cure:
    """Explain a `!`: values have the types of their keys, not the ones that a tag names."""
    return _unquoted(f"{shown(lines.rest(index))} begins with !, a YAML tag; there are none here", index, lines)


def _unquoted(detail: str, index: int, lines: Lines) -> Cure:
    return Cure(detail, _quoted_line(lines.line(lines.place(index).line)), index)


def _quoted_line(line: str) -> str:
    """Return the line with its value in single quotes, as the thing to write instead."""
    bare = _COMMENT.sub("", line)
    pair = _KEY_VALUE.match(bare)
    if pair is not None:
        return f"quote it: {pair[1].strip()}{' ' if pair[1].strip() else ''}{pair[2]}: {_single(pair[3])}"
    item = _ITEM.match(bare)
    return f"quote it: - {_single(item[2])}" if item is not None else QUOTED


def _single(value: str) -> str:
    return "'" + value.strip().replace("'", "''") + "'"


def _quotes(fault: YamlFault, began: str) -> Cure:
    if "escape" in fault.words:
        hint = "use single quotes, in which a backslash is a backslash"
        return Cure("a backslash in double quotes begins an escape, and this is none", hint, fault.index)
    hint = f"close the value with {began}, or quote the whole of it"
    return Cure(f"the quote {began} that begins here is never closed", hint, fault.began)


def _flow_hint(began: str) -> str:
    close = "]" if began == "[" else "}"
    return f"separate the items with commas, close with {close}, and quote what holds one of , : [ ] {{ }} #"


def _by_line(fault: YamlFault, lines: Lines) -> Cure:
    place = lines.place(fault.index)
    line = lines.line(place.line)
    pair = _KEY_VALUE.match(line)
    if pair is not None and pair.start(3) <= place.column - 1:
        return _in_value(fault, pair, line)
    above = lines.line(place.line - 1) if place.line > 1 else ""
    if _NO_SPACE.match(line) or _NO_SPACE.match(above):
        wrong = line if _NO_SPACE.match(line) else above
        index = fault.index if wrong is line else lines.start(fault.index) - 1
        return Cure(f"{shown(wrong.strip())} has no space after its colon", "write key: value", index)
    if _indent(line) > _indent(above) and pair is not None:
        hint = "begin all keys in the same column, and quote values that hold a colon"
        return Cure("this line is indented deeper than the one above", hint, fault.index)
    if "expected ':'" in fault.words:
        return Cure(
            "a line here is not of the form key: value", "write key: value, or put # before a comment", fault.began
        )
    return Cure(
        f"this is no valid YAML: {fault.words}",
        "write key: value, and quote values with special characters",
        fault.index,
    )


def _in_value(fault: YamlFault, pair: re.Match[str], line: str) -> Cure:
    value = pair[3]
    if value[0] in "'\"":
        hint = "put the whole value in one pair of quotes"
        return Cure(f"text follows the closing quote of {shown(pair[2])}", hint, fault.index)
    if value[0] == "-":
        hint = "put each item on a line of its own, or quote the value"
        return Cure(f"the value of {shown(pair[2])} begins with -, which begins a list item", hint, fault.index)
    why = "holds a colon" if ":" in value else "is no plain text"
    return Cure(f"the value of {shown(pair[2])} {why}", _quoted_line(line), fault.index)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
