"""`find`, `grep`, `tree`: what lies in folders, without what git ignores."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .status import Lines, Text, clipped, tell  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator

BINARY_PROBE = 8192
SHOWN_CHARACTERS = 500
KINDS = ("file", "folder", "any")
_LIST = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")


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
        ignored: Also what git ignores, in a repository.
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
    found = Lines()
    for relative, is_folder in _walk(root, hidden=hidden, ignored=ignored):
        if (kind == "any" or (kind == "folder") == is_folder) and _matches(relative, pattern):
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
        ignored: Also what git ignores, in a repository.
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
        ignored: Also what git ignores, in a repository.
        limit: At most so many lines; a last line says how many there would be more.

    Example:
        >>> tree("src", depth=2)

    Raises:
        NotADirectoryError: `path` is no folder.
    """
    root = _folder(path)
    lines = [root.rstrip("/") + "/"]
    for relative, is_folder in _walk(root, hidden=hidden, ignored=ignored):
        level = relative.count("/") + 1
        if level <= depth:
            lines.append("  " * level + os.path.basename(relative) + ("/" if is_folder else ""))
    more = len(lines) - 1 - limit
    if more > 0:
        lines[limit + 1 :] = [f"… and {more} more"]
    text = Text("\n".join(lines))
    tell("tree", path=root, depth=depth, count=len(lines) - 1 - (more > 0), more=max(0, more), preview=text)
    return text


def _folder(path: str | Path) -> str:
    folder = os.path.expanduser(str(path))
    if not os.path.isdir(folder):
        raise NotADirectoryError("there is no folder " + folder)
    return folder


def _walk(root: str, *, hidden: bool, ignored: bool) -> Iterator[tuple[str, bool]]:
    """Yield relative path and whether it is a folder, sorted. Folders behind links are not entered."""
    known = None if ignored else _known_to_git(root)
    ahead = [""]
    while ahead:
        relative = ahead.pop()
        place = os.path.join(root, relative)
        if relative:
            is_folder = os.path.isdir(place) and not os.path.islink(place)
            yield relative, is_folder
            if not is_folder:
                continue
            if os.path.exists(os.path.join(place, ".git")):
                inner = _walk(place, hidden=hidden, ignored=ignored)
                yield from ((os.path.join(relative, below), is_one) for below, is_one in inner)
                continue
        try:
            names = sorted(os.listdir(place), reverse=True)
        except OSError:
            continue
        shown = (os.path.join(relative, name) for name in names if name != ".git" and (hidden or name[0] != "."))
        ahead += [each for each in shown if known is None or each in known]


def _known_to_git(root: str) -> set[str] | None:
    """Return what git does not ignore below a folder, folders on the way included; None where git knows nothing."""
    try:
        listed = subprocess.run(["git", "-C", root, *_LIST], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    known = {path.rstrip("/") for path in os.fsdecode(listed).split("\0") if path}
    return known | {str(folder) for path in known for folder in Path(path).parents} or None


def _matches(relative: str, pattern: str) -> bool:
    """Say whether a path matches: all of it where the pattern has a slash, else its name."""
    if "/" not in pattern:
        return fnmatch.fnmatchcase(os.path.basename(relative), pattern)
    return _fits(relative.split("/"), pattern.split("/"))


def _fits(names: list[str], globs: list[str]) -> bool:
    """Compare name by name; `**` stands for any number of folders, at the end for all that is below."""
    if not globs:
        return not names
    if globs[0] == "**":
        return any(_fits(names[at:], globs[1:]) for at in range(len(names) + (len(globs) == 1)))
    return bool(names) and fnmatch.fnmatchcase(names[0], globs[0]) and _fits(names[1:], globs[1:])


def _files(root: str, glob: str, *, hidden: bool, ignored: bool) -> Iterator[str]:
    if not os.path.isdir(root):
        if not os.path.exists(root):
            raise FileNotFoundError("there is no " + root)
        yield root
        return
    for relative, _ in _walk(root, hidden=hidden, ignored=ignored):
        place = _joined(root, relative)
        if _matches(relative, glob) and os.path.isfile(place):
            yield place


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
