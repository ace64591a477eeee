"""`read`, `write`, `append`, `diff`: files as text."""

from __future__ import annotations

import os
from pathlib import Path

from .told import Text, tell  # noqa: TID252


def read(path: str | Path, offset: int = 1, limit: int | None = None, *, encoding: str = "utf-8") -> Text:
    """Return the text of a file, or some of its lines.

    Bytes that are not text in this encoding come out as U+FFFD. `~` is the home directory.

    Args:
        path: Which file.
        offset: First line that is wanted; lines count from 1.
        limit: How many lines; all that follow where it is not given.
        encoding: Of the file.

    Example:
        >>> print(read("setup.cfg", offset=10, limit=5))

    Raises:
        OSError: It cannot be read.
        ValueError: `offset` is less than 1, or `limit` less than 0.
    """
    if offset < 1 or (limit is not None and limit < 0):
        raise ValueError("lines count from 1: offset must be at least 1, and limit at least 0")
    place = _place(path)
    with open(place, encoding=encoding, errors="replace", newline="") as file:
        lines = []
        for number, line in enumerate(file, 1):
            if limit is not None and number >= offset + limit:
                break
            if number >= offset:
                lines.append(line)
    text = Text("".join(lines))
    tell("read", path=str(place), offset=offset, lines=len(lines), chars=len(text), preview=text)
    return text


def write(path: str | Path, content: str | bytes, *, encoding: str = "utf-8") -> Path:
    """Write a file, in place of what was there; return its path. Folders that are missing are made.

    Args:
        path: Which file; `~` is the home directory.
        content: Text, or bytes as they are.
        encoding: Of the text.

    Raises:
        OSError: It cannot be written.
    """
    return _put("write", "wb", path, content, encoding)


def append(path: str | Path, content: str | bytes, *, encoding: str = "utf-8") -> Path:
    """Write at the end of a file, which is made where there is none; return its path. Arguments are those of `write`.

    Raises:
        OSError: It cannot be written.
    """
    return _put("append", "ab", path, content, encoding)


def diff(old: str | Path, new: str | Path, *, context: int = 3, texts: bool = False, encoding: str = "utf-8") -> Text:
    """Return the differences of two files as a unified diff; empty where there are none.

    Args:
        old: A file, or a text if `texts` is set.
        new: What it became.
        context: Lines that are shown around each difference.
        texts: Compare these texts themselves.
        encoding: Of the files.

    Example:
        >>> diff("config.toml.orig", "config.toml")
        >>> diff(before, after, texts=True)

    Raises:
        OSError: One of them cannot be read.
    """
    import difflib

    sides = [str(old), str(new)]
    names = ["old", "new"] if texts else sides
    if not texts:
        sides = [_place(side).read_text(encoding=encoding, errors="replace") for side in sides]
    before, after = (side.splitlines() for side in sides)
    changes = list(difflib.unified_diff(before, after, names[0], names[1], lineterm="", n=context))
    text = Text("\n".join(changes))
    added = sum(1 for line in changes[2:] if line.startswith("+"))
    removed = sum(1 for line in changes[2:] if line.startswith("-"))
    tell("diff", old=names[0], new=names[1], added=added, removed=removed, preview=text)
    return text


def _put(op: str, mode: str, path: str | Path, content: str | bytes, encoding: str) -> Path:
    data = content.encode(encoding) if isinstance(content, str) else bytes(content)
    place = _place(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, mode) as file:
        file.write(data)
    preview = content if isinstance(content, str) else ""
    tell(op, path=str(place), bytes=len(data), preview=preview)
    return place


def _place(path: str | Path) -> Path:
    return Path(os.path.expanduser(str(path)))
