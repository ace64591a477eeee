"""Single keys of the front matter changed in place: nothing else in the file moves by a character. Pure.

The parsed nodes say where a value stands, and only those characters are replaced; comments, order, quoting, line ends
and the prompt stay. What comes out is parsed again before it is given away: either exactly the keys that were asked for
differ, or the edit is refused. Values are quoted wherever another reader of YAML could take them for something else.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, TypeAlias, Union

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.declaring.front_matter import Items, Lines, Node, Scalar, parse, simple
from supervisord_py.pipes.declaring.problems import DeclarationError
from supervisord_py.pipes.schedule import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.declaring.front_matter import Entry, FrontMatter

Value: TypeAlias = Union[str, bool, int, float, "list[Value]", "dict[str, Value]", None]
"""A JSON value."""

_WORD = r"[A-Za-z0-9_./+-]+(?::[A-Za-z0-9_./+-]+)*"
_PLAIN = re.compile(rf"(?=[A-Za-z_/]|\./){_WORD}(?: {_WORD})*")
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_OTHER_MEANING = frozenset({"yes", "no", "on", "off", "y", "n", "null"})
"""Booleans and nulls of some readers; `true` and `false` are meant by whoever writes them."""
_CONSTANTS = {None: "null", True: "true", False: "false"}
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class NoYamlError(ValueError):
    """A value that cannot be written."""


def inline(value: Value) -> str:
    """Return a value as it is written after `key: `.

    Raises:
        NoYamlError: It has no form in YAML: an infinite number, half a surrogate pair.
    """
    match value:
        case None | bool():
            return _CONSTANTS[value]
        case int() | float():
            return _number(value)
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(inline(each) for each in value)}]"
    return f"{{{', '.join(f'{_text(key)}: {inline(each)}' for key, each in value.items())}}}"


def as_read(value: Value) -> object:
    """Return a value as the front matter's reader sees it once it is written: texts, lists, dicts, None."""
    match value:
        case list():
            return [as_read(each) for each in value]
        case dict():
            return {key: as_read(each) for key, each in value.items()}
        case None | str():
            return value
        case _:
            return inline(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise NoYamlError(f"{value} is no number that can be written")
    return repr(value)


def _text(text: str) -> str:
    if _PLAIN_NUMBER.fullmatch(text) or (_PLAIN.fullmatch(text) and text.lower() not in _OTHER_MEANING):
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_escaped(each) for each in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Cs":
        raise NoYamlError(f"U+{ord(character):04X} is half of a character")
    return f"\\U{ord(character):08X}"


FILE = "pipe.md"

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_COLON = re.compile(r"[ \t]*:")
_COMMENT = re.compile(r"[ \t]+#[^\r\n]*")
_LINE_END = re.compile(r"\r\n|\n|\r|$")
_BLANK_LINES = re.compile(r"(?:[ \t]*(?:\r\n|\n|\r))*")
_BY_HAND = "change the file by hand"


class EditError(ConfigError):
    """A file cannot be edited by key."""


def edit_keys(text: str, changes: Mapping[str, Value]) -> str:
    """Return the file with other values for some top-level keys; None removes a key.

    A key that is not there is added below the others. One that already says so is left as it is written.

    Raises:
        EditError: The file has no usable front matter, or is written so that the key cannot be changed alone.
    """
    edited = text
    for key, value in changes.items():
        if not _KEY.fullmatch(key):
            raise EditError(f"{shown(key)} is no key of front matter", hint="use letters, digits, _ and -")
        edited = _edited(edited, key, value)
    if edited != text:
        _check(_parsed(text), edited, changes)
    return edited


def _parsed(text: str) -> FrontMatter:
    try:
        return parse(text, FILE)
    except DeclarationError as error:
        problem = error.problems[0]
        raise EditError(problem.text, hint=problem.hint, line=problem.line, column=problem.column) from None


def _edited(text: str, key: str, value: Value) -> str:
    front = _parsed(text)
    entry = next((each for each in front.header.entries if each.key == key), None)
    if front.header.flow:
        raise EditError("the front matter is written in braces, which cannot be edited by key", hint=_BY_HAND)
    if value is None:
        return text if entry is None else _removed(text, entry)
    written = _written(key, value)
    if entry is None:
        return _inserted(front, key, written)
    return text if simple(entry.value) == as_read(value) else _replaced(text, entry, written)


def _written(key: str, value: Value) -> str:
    try:
        return inline(value)
    except NoYamlError as error:
        raise EditError(f"{key} cannot be written: {error}", hint="give another value") from None


def _inserted(front: FrontMatter, key: str, written: str) -> str:
    text, sections = front.text, front.sections
    indent = ""
    if front.header.entries:
        first = front.header.entries[0].span.start
        indent = text[Lines(text).start(first) : first]
    line = f"{indent}{key}: {written}{sections.newline}"
    return text[: sections.header_end] + line + text[sections.header_end :]


def _replaced(text: str, entry: Entry, written: str) -> str:
    """Put a value in the place of another; a comment behind the key stays, even where the old value was below it."""
    colon, span = _colon_end(text, entry), entry.value.span
    gap = text[colon : span.start]
    if not gap or "\n" in gap or "\r" in gap:
        comment = _COMMENT.match(text, colon) if gap else None
        return f"{text[:colon]} {written}{comment[0] if comment else ''}{text[max(span.end, colon) :]}"
    return text[: span.start] + written + text[span.end :]


def _removed(text: str, entry: Entry) -> str:
    lines = Lines(text)
    last = lines.end(max(entry.value.span.end, _colon_end(text, entry)))
    # Blank lines below a block text are its own: left behind, they could become part of the block above.
    rest = (_BLANK_LINES if _ends_in_block(entry.value) else _LINE_END).match(text, last)
    return text[: lines.start(entry.span.start)] + text[rest.end() if rest else last :]


def _ends_in_block(node: Node) -> bool:
    if isinstance(node, Scalar):
        return node.block
    if isinstance(node, Items):
        return bool(node.items) and _ends_in_block(node.items[-1])
    return bool(node.entries) and _ends_in_block(node.entries[-1].value)


def _colon_end(text: str, entry: Entry) -> int:
    colon = _COLON.match(text, entry.span.end)
    if colon is None:
        raise EditError(f"line {entry.place.line} is not of the form {entry.key}: value", hint=_BY_HAND)
    return colon.end()


def _check(before: FrontMatter, edited: str, changes: Mapping[str, Value]) -> None:
    """Make sure that the edit did what it was to do, and nothing else."""
    after = _parsed(edited)
    wanted = {each.key: simple(each.value) for each in before.header.entries}
    wanted |= {key: as_read(value) for key, value in changes.items()}
    removed = {key for key, value in changes.items() if value is None}
    found = {each.key: simple(each.value) for each in after.header.entries}
    same_body = before.text[before.sections.body_start :] == edited[after.sections.body_start :]
    if not same_body or found != {key: value for key, value in wanted.items() if key not in removed}:
        raise EditError(f"{', '.join(changes)} cannot be changed without changing other keys", hint=_BY_HAND)
