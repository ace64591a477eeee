"""`output`: what other cells of this session have printed."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING

from .told import Text, tell  # noqa: TID252

if TYPE_CHECKING:
    from typing import Any

OUT = ".out"
LOG = ".jsonl"
NEWEST = 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STEP = re.compile(r"""\.?([A-Za-z_][\w-]*)|\[(-?\d+)\]|\["((?:[^"\\]|\\.)*)"\]|(\[\*?\])""")


def output(id: str, offset: int = 0, limit: int | None = None, *, query: str | None = None) -> Any:
    """Return what another cell of this session printed: the complete text, also where the answer was cut.

    Args:
        id: Of the cell; answers name it (`cells[].id`, and `artifact` where output was cut).
        offset: First byte that is wanted.
        limit: How many bytes; all that follow where it is not given.
        query: Take the output for JSON, and return what this path leads to: `.key`, `["any key"]`, `[0]`, `[-1]`, and
            `[]` for every element.

    Returns:
        A text, or with `query` whatever JSON holds there.

    Example:
        >>> print(output("3f9a0c55d2e14b7a", offset=0, limit=2000))
        >>> output("3f9a0c55d2e14b7a", query=".items[].name")

    Raises:
        FileNotFoundError: There is no such cell, or its files were swept away.
        ValueError: It is no JSON; the path is none; an offset or a limit is less than 0.
        LookupError: The path leads nowhere.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ValueError("offset and limit must not be less than 0")
    data = _bytes(id, offset, -1 if limit is None else limit)
    text = Text(data.decode(errors="replace"))
    found = text if query is None else follow(json.loads(text), query)
    tell("output", id=id, offset=offset, bytes=len(data), query=query, preview=str(found))
    return found


def follow(value: Any, query: str) -> Any:
    """Return what a path leads to in `value`.

    Raises:
        ValueError: It is no path.
        LookupError: It leads nowhere.
    """
    position = 1 if query == "." else 0
    while position < len(query):
        step = _STEP.match(query, position)
        if step is None:
            raise ValueError('no path from here on: "' + query[position:] + '"')
        position = step.end()
        if step[4]:
            elements = list(value.values()) if isinstance(value, dict) else value
            if not isinstance(elements, list):
                raise LookupError(query[:position] + " is about " + type(value).__name__ + ", which has no elements")
            return [follow(each, query[position:]) for each in elements]
        key = int(step[2]) if step[2] else step[1] or json.loads('"' + (step[3] or "") + '"')
        value = _step(value, key, query[:position])
    return value


def _step(value: Any, key: str | int, where: str) -> Any:
    fits = isinstance(value, list) if isinstance(key, int) else isinstance(value, dict)
    if not fits:
        raise LookupError(where + " leads nowhere: there is " + type(value).__name__)
    try:
        return value[key]
    except LookupError:
        there = ", ".join(list(value)[:NEWEST]) if isinstance(value, dict) else str(len(value)) + " elements"
        raise LookupError(where + " leads nowhere; there is: " + there) from None


def _bytes(name: str, offset: int, limit: int) -> bytes:
    folder = _folder()
    if not _NAME.fullmatch(name) or not os.path.exists(os.path.join(folder, name + LOG)):
        raise FileNotFoundError('there is no cell "' + name + '"; the newest are: ' + ", ".join(_newest(folder)))
    try:
        with open(os.path.join(folder, name + OUT), "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""  # it printed nothing


def _folder() -> str:
    streams = sys.modules.get((__package__ or "") + ".streams")
    folder: str | None = None if streams is None else streams.WIRING.cells.folder
    if folder is None:
        raise FileNotFoundError("this kernel has not run a cell whose output is kept in files")
    return folder


def _newest(folder: str) -> list[str]:
    cells = [entry for entry in os.scandir(folder) if entry.name.endswith(LOG)]
    cells.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    return [entry.name[: -len(LOG)] for entry in cells[:NEWEST]]
