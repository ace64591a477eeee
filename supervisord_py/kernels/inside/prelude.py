"""Names that every cell finds: small helpers for work with files, commands and other cells' output.

`help(read)` and `man px-prelude` tell more. Every helper says what it did in a status event, a display of the type
`application/x-px-status+json`, that a client may show. They are ordinary names: what user code assigns stays, and
`%reset` brings them back.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from IPython.display import display

from .cell_writer import RECORDS, STREAMS, in_order  # noqa: TID252
from .search import find, grep, tree  # noqa: TID252
from .shell import run  # noqa: TID252
from .status import Text, tell  # noqa: TID252

__all__ = ["append", "diff", "display", "env", "find", "grep", "output", "read", "run", "tree", "write"]
_NEWEST = 20


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
    place = Path(path).expanduser()
    lines = []
    with place.open(encoding=encoding, errors="replace", newline="") as file:
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


def _put(op: str, mode: str, path: str | Path, content: str | bytes, encoding: str) -> Path:
    data = content.encode(encoding) if isinstance(content, str) else bytes(content)
    place = Path(path).expanduser()
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open(mode) as file:
        file.write(data)
    tell(op, path=str(place), bytes=len(data), preview=content if isinstance(content, str) else "")
    return place


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
        sides = [Path(side).expanduser().read_text(encoding=encoding, errors="replace") for side in sides]
    before, after = (side.splitlines() for side in sides)
    changes = list(difflib.unified_diff(before, after, names[0], names[1], lineterm="", n=context))
    text = Text("\n".join(changes))
    added, removed = (sum(line.startswith(sign) for line in changes[2:]) for sign in "+-")
    tell("diff", old=names[0], new=names[1], added=added, removed=removed, preview=text)
    return text


def env(name: str | None = None, value: str | None = None) -> str | None:
    """Return a variable of the environment, set one, or list the names of all.

    Values never get into status events.

    Args:
        name: Which; with none, the names of all are returned, one a line.
        value: Set it to this, for this process and for the commands that it runs.

    Returns:
        The value; None where there is no such variable.

    Example:
        >>> env("PATH")
        >>> env("MODE", "test")
    """
    if name is None:
        names = sorted(os.environ)
        tell("env", action="list", count=len(names), names=names)
        return Text("\n".join(names))
    if value is not None:
        os.environ[name] = value
    tell("env", action="get" if value is None else "set", name=name, found=name in os.environ)
    return os.environ.get(name)


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
    data = _printed(id)[offset : None if limit is None else offset + limit]
    text = Text(data.decode(errors="replace"))
    tell("output", id=id, offset=offset, bytes=len(data), preview=text)
    return text


def _printed(name: str) -> bytes:
    """Return all that a cell printed, both streams in order."""
    streams = sys.modules.get((__package__ or "") + ".streams")
    folder = None if streams is None else streams.CELLS.folder
    if folder is None:
        raise FileNotFoundError("this kernel has not run a cell whose output is kept in files")
    records = Path(folder, name + RECORDS)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or not records.exists():
        cells = sorted(Path(folder).glob("*" + RECORDS), key=lambda path: path.stat().st_mtime, reverse=True)
        newest = ", ".join(path.stem for path in cells[:_NEWEST])
        raise FileNotFoundError('there is no cell "' + name + '"; the newest are: ' + newest)
    paths = {stream: Path(folder, name + ending) for stream, ending in STREAMS.items()}
    whole = {stream: path.read_bytes() if path.exists() else b"" for stream, path in paths.items()}
    if not whole["stderr"]:
        return whole["stdout"]
    found = [json.loads(line) for line in records.read_bytes().split(b"\n") if line.endswith(b"}")]
    places = [(each["at"], each.get("err_at", 0)) for each in found]
    pieces = in_order(places, len(whole["stdout"]), len(whole["stderr"]))
    return b"".join(whole[stream][start:end] for stream, start, end in pieces)
