"""`output`: what other cells of this session have printed."""

from __future__ import annotations

import os
import re
import sys

from .told import Text, tell  # noqa: TID252

OUT = ".out"
LOG = ".jsonl"
NEWEST = 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def output(id: str, offset: int = 0, limit: int | None = None) -> Text:
    """Return what another cell of this session printed: the complete text, also where the answer was cut.

    Args:
        id: Of the cell; answers name it (`cells[].id`, and `artifact` where output was cut).
        offset: First byte that is wanted.
        limit: How many bytes; all that follow where it is not given.

    Example:
        >>> print(output("3f9a0c55d2e14b7a", offset=0, limit=2000))
        >>> json.loads(output("3f9a0c55d2e14b7a"))["items"]

    Raises:
        FileNotFoundError: There is no such cell, or its files were swept away.
        ValueError: An offset or a limit is less than 0.
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ValueError("offset and limit must not be less than 0")
    data = _bytes(id, offset, -1 if limit is None else limit)
    text = Text(data.decode(errors="replace"))
    tell("output", id=id, offset=offset, bytes=len(data), preview=text)
    return text


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
