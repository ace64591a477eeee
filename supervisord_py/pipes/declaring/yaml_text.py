"""Values written as YAML of one line, quoted wherever another reader could take them for something else. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TypeAlias, Union

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
