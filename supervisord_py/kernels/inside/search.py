"""`find`, `grep`, `tree`: what lies in folders, without what git ignores."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from .ignored import translated, walk  # noqa: TID252
from .told import Lines, Text, clipped, tell  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from re import Pattern

BINARY_PROBE = 8192
SHOWN_CHARACTERS = 500
KINDS = ("file", "folder", "any")


class Match(NamedTuple):
    """One line that `grep` found: `path`, `line` (from 1), `text`; shown as `path:line: text`."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {clipped(self.text, SHOWN_CHARACTERS)}"


def find(
    pattern: str = "*",
    path: str | Path = ".",
    *,
    kind: str = "file",
    hidden: bool = False,
    ignored: bool = False,
    limit: int = 1000,
) -> Lines:
    """Return the paths below a folder whose names match a pattern, sorted.

    Args:
        pattern: `*.py` is about names; one with a slash about paths below `path`: `src/**/test_*.py`.
        path: Where to look.
        kind: `file`, `folder` or `any`.
        hidden: Also what has a leading dot in its name.
        ignored: Also what `.gitignore` excludes.
        limit: At most so many.

    Example:
        >>> find("*.toml")
        >>> len(find("src/**/*.py", limit=10_000))

    Raises:
        NotADirectoryError: `path` is no folder.
        ValueError: `kind` is none of the three.
    """
    if kind not in KINDS:
        raise ValueError("kind must be one of " + ", ".join(KINDS))
    root = _folder(path)
    matches = _glob(pattern)
    found = Lines()
    for relative, entry in walk(root, hidden=hidden, ignored=ignored):
        fits = kind == "any" or (kind == "folder") == entry.is_dir(follow_symlinks=False)
        if fits and matches.fullmatch(relative):
            if len(found) >= limit:
                break
            found.append(_joined(root, relative))
    tell("find", pattern=pattern, path=root, count=len(found), capped=len(found) >= limit, matches=list(found))
    return found


def grep(
    pattern: str,
    path: str | Path = ".",
    *,
    glob: str = "*",
    ignore_case: bool = False,
    literal: bool = False,
    hidden: bool = False,
    ignored: bool = False,
    limit: int = 200,
) -> Lines:
    """Return the lines that match a regular expression, as `Match(path, line, text)`.

    Files with a NUL byte near their beginning are taken for binary and left out.

    Args:
        pattern: Of Python's module `re`.
        path: A folder, or one file.
        glob: Which files of a folder; as in `find`.
        ignore_case: Whether A is a.
        literal: Whether `pattern` is plain text.
        hidden: Also files with a leading dot in their name.
        ignored: Also what `.gitignore` excludes.
        limit: At most so many.

    Example:
        >>> grep("^class .*Error", "src", glob="*.py")
        >>> {match.path for match in grep("TODO", literal=True)}

    Raises:
        FileNotFoundError: There is no such folder or file.
        re.error: The pattern is none.
    """
    wanted = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
    root = os.path.expanduser(str(path))
    found = Lines()
    files = 0
    for place in _files(root, glob, hidden=hidden, ignored=ignored):
        files += 1
        for number, line in _lines(place):
            if wanted.search(line):
                found.append(Match(place, number, line))
                if len(found) >= limit:
                    break
        if len(found) >= limit:
            break
    capped = len(found) >= limit
    tell("grep", pattern=pattern, path=root, files=files, count=len(found), capped=capped, matches=list(found))
    return found


def tree(
    path: str | Path = ".", depth: int = 3, *, hidden: bool = False, ignored: bool = False, limit: int = 200
) -> Text:
    """Return a drawing of a folder: one name a line, indented, folders with a slash.

    Args:
        path: Which folder.
        depth: How many levels of it.
        hidden: Also names with a leading dot.
        ignored: Also what `.gitignore` excludes.
        limit: At most so many lines; a last line says how many there would be more.

    Example:
        >>> tree("src", depth=2)

    Raises:
        NotADirectoryError: `path` is no folder.
    """
    root = _folder(path)
    lines = [root.rstrip("/") + "/"]
    more = 0
    for relative, entry in walk(root, hidden=hidden, ignored=ignored):
        level = relative.count("/") + 1
        if level > depth:
            continue
        if len(lines) > limit:
            more += 1
            continue
        lines.append("  " * level + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""))
    if more:
        lines.append(f"… and {more} more")
    text = Text("\n".join(lines))
    tell("tree", path=root, depth=depth, count=len(lines) - 1 - bool(more), more=more, preview=text)
    return text


def _folder(path: str | Path) -> str:
    folder = os.path.expanduser(str(path))
    if not os.path.isdir(folder):
        raise NotADirectoryError("there is no folder " + folder)
    return folder


def _glob(pattern: str) -> Pattern[str]:
    """Return what relative paths must match: the whole path where the pattern has a slash, else the name."""
    return re.compile(("" if "/" in pattern else "(?:.*/)?") + translated(pattern), re.DOTALL)


def _files(root: str, glob: str, *, hidden: bool, ignored: bool) -> Iterator[str]:
    if not os.path.isdir(root):
        if not os.path.exists(root):
            raise FileNotFoundError("there is no " + root)
        yield root
        return
    matches = _glob(glob)
    for relative, entry in walk(root, hidden=hidden, ignored=ignored):
        if entry.is_file() and matches.fullmatch(relative):
            yield _joined(root, relative)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; none of a binary file, nor of one that may not be read."""
    try:
        with open(path, "rb") as probed:
            if b"\0" in probed.read(BINARY_PROBE):
                return
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\n")
    except OSError:
        return


def _joined(root: str, relative: str) -> str:
    return relative if root == "." else os.path.join(root, relative)
