"""Says on which line of a TOML document each key stands. Pure; tomllib itself keeps no positions.

The document is cut into statements: the fewest lines, from the end of the last statement, that tomllib accepts alone.
An open bracket or triple quote is refused by it until it is closed, so no cut can fall inside a value, and no second
grammar of TOML is needed.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

KeyPath = tuple[str, ...]

_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line (from 1) on which each table and each key of a valid document begins.

    A key that stands several times (an array of tables) keeps its first line.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement in _statements(text):
        content = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(content)
            lines.setdefault(table, number)
            continue
        for path in _paths(content):
            lines.setdefault(table + path, number)
    return lines


def error_line(error: tomllib.TOMLDecodeError, text: str) -> int:
    """Return the line that a syntax error is about; the last one when the document ends too early."""
    found = _SYNTAX_LINE.search(str(error))
    return int(found.group(1)) if found else text.rstrip("\n").count("\n") + 1


def _statements(text: str) -> Iterator[tuple[int, str]]:
    begin, held = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not held and not line.split("#", 1)[0].strip():
            continue
        begin = begin if held else number
        held += line + "\n"
        if _complete(held):
            yield begin, held
            held = ""


def _complete(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _header(content: dict[str, Any]) -> KeyPath:
    """Return the path of a lone `[a.b]` or `[[a.b]]`: the one way down through what it parsed to."""
    path: list[str] = []
    at: Any = content
    while isinstance(at, dict) and at:
        name, at = next(iter(at.items()))
        path.append(name)
    return tuple(path)


def _paths(content: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, value in content.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
