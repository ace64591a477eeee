"""Names that every cell finds: small helpers for work with files, commands and other cells' output.

`help(read)` and `man px-prelude` tell more. Every helper says what it did in a status event, a display of the type
`application/x-px-status+json`, that a client may show. They are ordinary names: what user code assigns stays, and
`%reset` brings them back.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from IPython.display import display

from .cell_writer import RECORDS, STREAMS, in_order  # noqa: TID252
from .shell import Lines, Text, clipped, run, tell  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["append", "diff", "display", "env", "find", "grep", "output", "read", "run", "tree", "write"]
_NEWEST = 20
_KINDS = ("file", "folder", "any")
_LIST = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")


# -- files -------------------------------------------------------------------------------------------------------------


def read(path: str | Path, offset: int = 1, limit: int | None = None, *, encoding: str = "utf-8") -> Text:
    """Return the text of a file, or some of its lines.

    Bytes that are not text in this encoding come out as U+FFFD. `~` is the home directory.

    Args:
        path: Which file.
        offset: First line that is wanted; lines count from 1.
        limit: How many lines; all that follow where it is not given.
        encoding: Of the file.
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
    """
    return _put("write", "wb", path, content, encoding)


def append(path: str | Path, content: str | bytes, *, encoding: str = "utf-8") -> Path:
    """Write at the end of a file, which is made where there is none. Arguments are those of `write`."""
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


# -- searches ----------------------------------------------------------------------------------------------------------


class Match(NamedTuple):
    """One line that `grep` found: `path`, `line` (from 1), `text`; shown as `path:line: text`."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {clipped(self.text)}"


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
    """
    if kind not in _KINDS:
        raise ValueError("kind must be one of " + ", ".join(_KINDS))
    root = _folder(path)
    found = Lines()
    for relative, is_folder in _walk(root, hidden=hidden, ignored=ignored):
        if (kind == "any" or (kind == "folder") == is_folder) and _matches(relative, pattern):
            if len(found) >= limit:
                break
            found.append(_joined(root, relative))
    tell("find", pattern=pattern, path=root, count=len(found), capped=len(found) >= limit, matches=found)
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
    """Return the lines that match a regular expression, as `Match(path, line, text)`. Binary files are left out.

    Args:
        pattern: Of Python's module `re`.
        path: A folder, or one file.
        glob: Which files of a folder; as in `find`.
        ignore_case: Whether A is a.
        literal: Whether `pattern` is plain text.
        hidden: Also files with a leading dot in their name.
        ignored: Also what git ignores, in a repository.
        limit: At most so many.
    """
    wanted = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
    root = os.path.expanduser(str(path))
    if not os.path.exists(root):
        raise FileNotFoundError("there is no " + root)
    places = [root]
    if os.path.isdir(root):
        names = (relative for relative, _ in _walk(root, hidden=hidden, ignored=ignored) if _matches(relative, glob))
        places = [place for place in (_joined(root, relative) for relative in names) if os.path.isfile(place)]
    found = Lines()
    files = 0
    for place in places:
        if len(found) >= limit:
            break
        files += 1
        lines = (Match(place, number, line) for number, line in _lines(place) if wanted.search(line))
        found.extend(itertools.islice(lines, limit - len(found)))
    tell("grep", pattern=pattern, path=root, files=files, count=len(found), capped=len(found) >= limit, matches=found)
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
    """
    root = _folder(path)
    lines = [root.rstrip("/") + "/"]
    for relative, is_folder in _walk(root, hidden=hidden, ignored=ignored):
        level = relative.count("/") + 1
        if level <= depth:
            lines.append("  " * level + os.path.basename(relative) + ("/" if is_folder else ""))
    more = max(0, len(lines) - 1 - limit)
    if more:
        lines[limit + 1 :] = [f"… and {more} more"]
    text = Text("\n".join(lines))
    tell("tree", path=root, depth=depth, count=len(lines) - 1 - (more > 0), more=more, preview=text)
    return text


def _folder(path: str | Path) -> str:
    folder = os.path.expanduser(str(path))
    if not os.path.isdir(folder):
        raise NotADirectoryError("there is no folder " + folder)
    return folder


def _joined(root: str, relative: str) -> str:
    return relative if root == "." else os.path.join(root, relative)


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


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line; none of a file with a NUL near its beginning, or that may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if "\0" in file.read(8192):
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\n")
    except OSError:
        return


# -- environment and cells ---------------------------------------------------------------------------------------------


def env(name: str | None = None, value: str | None = None) -> str | None:
    """Return a variable of the environment, set one, or list the names of all. None where there is no such variable.

    Args:
        name: Which; with none, the names of all are returned, one a line.
        value: Set it to this, for this process and for the commands that it runs.
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
    """
    if offset < 0 or (limit is not None and limit < 0):
        raise ValueError("offset and limit must not be less than 0")
    data = _printed(id)[offset : None if limit is None else offset + limit]
    text = Text(data.decode(errors="replace"))
    tell("output", id=id, offset=offset, bytes=len(data), preview=text)
    return text


def _printed(name: str) -> bytes:
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
    found = (json.loads(line) for line in records.read_bytes().split(b"\n") if line.endswith(b"}"))
    places = [(each["at"], each.get("err_at", 0)) for each in found]
    pieces = in_order(places, len(whole["stdout"]), len(whole["stderr"]))
    return b"".join(whole[stream][start:end] for stream, start, end in pieces)
