"""Names that every cell finds: small helpers for work with files, commands and other cells' output.

`man px-prelude` tells more. Every helper says what it did in a status event, a display of the type
`application/x-px-status+json`, that a client may show. They are ordinary names: what user code assigns stays, and
`%reset` brings them back.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from IPython.display import display

from .cell_writer import RECORDS, STREAMS  # noqa: TID252
from .shell import Lines, Text, clipped, run, tell  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["append", "diff", "display", "env", "find", "grep", "output", "read", "run", "tree", "write"]
_NEWEST = 20
_KINDS = ("file", "folder", "any")


# -- files -------------------------------------------------------------------------------------------------------------


def read(path: str | Path, offset: int = 1, limit: int | None = None) -> Text:
    """Return the text of a file, or `limit` lines of it from line `offset` on; lines count from 1.

    Bytes that are no UTF-8 come out as U+FFFD. `~` is the home directory, here and in the other helpers.
    """
    if offset < 1 or (limit is not None and limit < 0):
        raise ValueError("lines count from 1: offset must be at least 1, and limit at least 0")
    place = Path(path).expanduser()
    with place.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = list(islice(file, offset - 1, None if limit is None else offset - 1 + limit))
    text = Text("".join(lines))
    tell("read", path=str(place), offset=offset, lines=len(lines), chars=len(text), preview=text)
    return text


def write(path: str | Path, content: str | bytes) -> Path:
    """Write a text (as UTF-8) or bytes in place of what was in a file; return its path. Missing folders are made."""
    return _put("write", "wb", path, content)


def append(path: str | Path, content: str | bytes) -> Path:
    """Write as `write` does, at the end of the file."""
    return _put("append", "ab", path, content)


def _put(op: str, mode: str, path: str | Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else bytes(content)
    place = Path(path).expanduser()
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open(mode) as file:
        file.write(data)
    tell(op, path=str(place), bytes=len(data), preview=content if isinstance(content, str) else "")
    return place


def diff(old: str | Path, new: str | Path) -> Text:
    """Return the differences of two files as a unified diff; empty where there are none."""
    import difflib

    names = [str(old), str(new)]
    before, after = (
        Path(name).expanduser().read_text(encoding="utf-8", errors="replace").splitlines() for name in names
    )
    changes = list(difflib.unified_diff(before, after, names[0], names[1], lineterm=""))
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
    pattern: str = "*", path: str | Path = ".", *, kind: str = "file", hidden: bool = False, limit: int = 1000
) -> Lines:
    """Return the paths below a folder that match a pattern, sorted; `kind` is `file`, `folder` or `any`.

    `*.py` is about names; a pattern with a slash about paths below `path`: `src/**/test_*.py`. With `hidden` also what
    has a leading dot or is ignored by git.
    """
    if kind not in _KINDS:
        raise ValueError("kind must be one of " + ", ".join(_KINDS))
    root = _folder(path)
    wanted = (
        _joined(root, relative)
        for relative, is_folder in _walk(root, hidden=hidden)
        if (kind == "any" or (kind == "folder") == is_folder) and _matches(relative, pattern)
    )
    found = Lines(islice(wanted, limit))
    tell("find", pattern=pattern, path=root, count=len(found), capped=len(found) >= limit, matches=found)
    return found


def grep(
    pattern: str,
    path: str | Path = ".",
    *,
    glob: str = "*",
    ignore_case: bool = False,
    hidden: bool = False,
    limit: int = 200,
) -> Lines:
    """Return the lines that match a regular expression, as `Match(path, line, text)`. Binary files are left out.

    `path` is a file or a folder; of a folder the files that match `glob` are searched, as `find` would find them.
    """
    wanted = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    root = os.path.expanduser(str(path))
    if not os.path.exists(root):
        raise FileNotFoundError("there is no " + root)
    places = iter([root])
    if os.path.isdir(root):
        files = (relative for relative, is_folder in _walk(root, hidden=hidden) if not is_folder)
        places = (_joined(root, relative) for relative in files if _matches(relative, glob))
    hits = (Match(place, number, line) for place in places for number, line in _lines(place) if wanted.search(line))
    found = Lines(islice(hits, limit))
    tell("grep", pattern=pattern, path=root, count=len(found), capped=len(found) >= limit, matches=found)
    return found


def tree(path: str | Path = ".", depth: int = 3, *, hidden: bool = False, limit: int = 200) -> Text:
    """Return a drawing of a folder: one name a line, indented, folders with a slash; at most `limit` lines."""
    root = _folder(path)
    lines = [root.rstrip("/") + "/"]
    for relative, is_folder in _walk(root, hidden=hidden):
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


def _walk(root: str, *, hidden: bool, known: set[str] | None = None) -> Iterator[tuple[str, bool]]:
    """Yield relative path and whether it is a folder, sorted. Folders behind links are not entered.

    `known`: what git does not ignore, empty where git knows nothing; each repository is asked once.
    """
    if known is None or os.path.exists(os.path.join(root, ".git")):
        known = set() if hidden else _known_to_git(root)
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name, is_folder = entry.name, entry.is_dir(follow_symlinks=False)
        if name == ".git" or (not hidden and (name[0] == "." or (known and entry.path not in known))):
            continue
        yield name, is_folder
        if is_folder:
            below = _walk(entry.path, hidden=hidden, known=known)
            yield from ((name + "/" + relative, is_one) for relative, is_one in below)


def _known_to_git(root: str) -> set[str]:
    """Return the paths below a folder that git does not ignore, folders on the way included."""
    command = ("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    known = {path.rstrip("/") for path in os.fsdecode(listed).split("\0") if path}
    known |= {str(folder) for path in known for folder in Path(path).parents}
    return {os.path.join(root, path) for path in known}


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
    """Return a variable of the environment (None where there is none), after setting it where a value is given.

    Without a name, the names of all are returned, one a line.
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
    """Return what another cell of this session printed, complete also where the answer was cut; answers name the id.

    `offset` and `limit` are bytes.
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
    paths = [Path(folder, name + STREAMS[stream]) for stream in ("stdout", "stderr")]
    out, err = (path.read_bytes() if path.exists() else b"" for path in paths)
    found = (json.loads(line) for line in records.read_bytes().split(b"\n") if line.endswith(b"}"))
    pieces, at, err_at = [], 0, 0
    for record in (*found, {"at": len(out), "err_at": len(err)}):  # before each record there is stderr, then stdout
        pieces += [err[err_at : record.get("err_at", 0)], out[at : record["at"]]]
        at, err_at = max(at, record["at"]), max(err_at, record.get("err_at", 0))
    return b"".join(pieces)
