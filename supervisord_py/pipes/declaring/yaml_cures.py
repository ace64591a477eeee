"""YAML's complaints, said so that a person can mend the line. Pure.

The parsers (C and Python) word their errors differently, so the cure is read from the text at the place of the error,
and their words are used only where the text does not tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from supervisord_py.pipes.declaring.front_matter import Lines

QUOTED = "quote the value"

_KEY_VALUE = re.compile(r"^(\s*(?:- +)?)([^\s:#'\"][^:]*):[ \t]+(\S.*)$")
_ITEM = re.compile(r"^(\s*)- +(\S.*)$")
_COMMENT = re.compile(r"\s+#.*$")
_STARRED_ITEM = re.compile(r"(?<=[\[,])(\s*)\*(\s*)(?=[\],])")
_NO_SPACE = re.compile(r"^\s*[\w-]+:\S")
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
    at, began = text[fault.index : fault.index + 1], text[fault.began : fault.began + 1]
    if at == "\t":
        return Cure("a tab stands where YAML wants spaces", "use spaces instead of the tab", fault.index)
    if "start any token" in fault.words and at in _SPECIAL:
        return _unquoted(f"a value cannot begin with {at} without quotes", fault.index, lines)
    if "alias" in fault.context:
        return alias_cure(fault.began, lines)
    if "anchor" in fault.context:
        return anchor_cure(fault.began, lines)
    if "escape" in fault.words:
        hint = "use single quotes, in which a backslash is a backslash"
        return Cure("a backslash in double quotes begins an escape, and this is none", hint, fault.index)
    if "quoted scalar" in fault.context:
        hint = f"close the value with {began}, or quote the whole of it"
        return Cure(f"the quote {began} that begins here is never closed", hint, fault.began)
    if "flow" in fault.context:
        hint = "separate the items with commas, close them, and quote what holds one of , : [ ] { } #"
        return Cure(f"the {began} that begins here does not end as it should", hint, fault.began)
    place = lines.place(fault.index)
    line = lines.line(place.line)
    pair = _KEY_VALUE.match(line)
    if pair is not None and pair.start(3) <= place.column - 1:
        why = "holds a colon" if ":" in pair[3] and pair[3][0] not in "'\"" else "is no plain text"
        return Cure(f"the value of {shown(pair[2])} {why}", _quoted_line(line), fault.index)
    above = lines.line(place.line - 1) if place.line > 1 else ""
    for wrong, index in ((line, fault.index), (above, lines.start(fault.index) - 1)):
        if _NO_SPACE.match(wrong):
            return Cure(f"{shown(wrong.strip())} has no space after its colon", "write key: value", index)
    hint = "write key: value in the same column, quote values with special characters, put # before a comment"
    index = fault.began if "expected ':'" in fault.words else fault.index
    return Cure(f"this is no valid YAML: {fault.words}", hint, index)


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
