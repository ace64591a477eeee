"""Names that every cell finds: small helpers for work with files, commands and other cells' output.

`man px-prelude` tells more. Every helper says what it did in a status event, a display of the type
`application/x-px-status+json`, that a client may show. They are ordinary names: what user code
assigns stays, and `%reset` brings them back.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
# IPython is typed in parts only.
import contextlib
import difflib
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple

from IPython.display import display, publish_display_data

from .cell_writer import RECORDS, STATUS_MIME, STREAMS, read_stream  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

__all__ = ["diff", "display", "env", "find", "grep", "output", "read", "run", "tree", "write"]
GRACE = 2.0  # seconds between SIGINT and SIGKILL of a command's group
_PREVIEW, _LISTED = 500, 20


class Text(str):
    """A str that shows itself as it is when it is the value of a cell, without quotes and
    escapes.
    """

    def __repr__(self) -> str:
        return str(self)


def _tell(op: str, **fields: Any) -> None:
    publish_display_data(
        {STATUS_MIME: {"op": op, **{name: _small(value) for name, value in fields.items()}}}
    )


def _small(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_small(str(entry)) for entry in value[:_LISTED]]
    return value[:_PREVIEW] if isinstance(value, str) else value


def read(path: str | Path) -> Text:
    """Return the text of a file; `~` is the home directory.

    Bytes that are no UTF-8 come out as U+FFFD.
    """
    place = Path(path).expanduser()
    text = Text(place.read_bytes().decode(errors="replace"))
    _tell("read", path=str(place), chars=len(text), preview=text)
    return text


def write(path: str | Path, content: str | bytes) -> Path:
    """Write a text (as UTF-8) or bytes in place of what was in a file; return its path.

    Missing folders are made.
    """
    data = content.encode() if isinstance(content, str) else bytes(content)
    place = Path(path).expanduser()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    _tell("write", path=str(place), bytes=len(data), preview=data.decode(errors="replace"))
    return place


def diff(old: str | Path, new: str | Path) -> Text:
    """Return the differences of two files as a unified diff; empty where there are none."""
    before, after = (
        Path(name).expanduser().read_text("utf-8", "replace").splitlines() for name in (old, new)
    )
    text = Text("\n".join(difflib.unified_diff(before, after, str(old), str(new), lineterm="")))
    _tell("diff", old=str(old), new=str(new), preview=text)
    return text


class Match(NamedTuple):
    """One line that `grep` found; lines count from 1."""

    path: str
    line: int
    text: str

    def __repr__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def find(pattern: str = "*", path: str | Path = ".") -> list[str]:
    """Return the files below a folder that match a pattern, sorted.

    `*.py` is about names; a pattern with a slash about paths below `path`: `src/**/test_*.py`,
    where a star is within one name. Names with a leading dot are left out, and what git ignores.
    """
    root = Path(path).expanduser()
    found = [str(root / file) for file in _files(root) if _matches(file, pattern)]
    _tell("find", pattern=pattern, path=str(root), count=len(found), matches=found)
    return found


def grep(pattern: str, path: str | Path = ".", *, glob: str = "*") -> list[Match]:
    """Return the lines that match a regular expression, as `Match(path, line, text)`. Binary files
    are left out.

    `path` is a file or a folder; of a folder the files that match `glob` are searched, as `find`
    would find them.
    """
    wanted, root = re.compile(pattern), Path(path).expanduser()
    found: list[Match] = []
    for place in (
        [root] if root.is_file() else [root / file for file in _files(root) if _matches(file, glob)]
    ):
        data = b"\0"
        with contextlib.suppress(OSError):
            data = place.read_bytes()
        if b"\0" not in data[:8192]:
            lines = enumerate(data.decode(errors="replace").splitlines(), 1)
            found += [
                Match(str(place), number, line) for number, line in lines if wanted.search(line)
            ]
    _tell("grep", pattern=pattern, path=str(root), count=len(found), matches=found)
    return found


def tree(path: str | Path = ".", depth: int = 3) -> Text:
    """Return a drawing of a folder: one name a line, indented, folders with a slash."""
    root = Path(path).expanduser()
    lines, last = [f"{root}/"], [""]
    for file in _files(root):
        names = file.split("/")
        for level, name in enumerate(names[:depth], 1):
            if names[:level] != last[:level]:
                lines.append("  " * level + name + ("/" if level < len(names) else ""))
        last = names
    text = Text("\n".join(lines))
    _tell("tree", path=str(root), depth=depth, preview=text)
    return text


def _files(root: Path) -> list[str]:
    if not root.is_dir():
        raise NotADirectoryError(f"there is no folder {root}")
    command = (
        "git",
        "-C",
        str(root),
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
    )
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
        found = [file for file in os.fsdecode(listed).split("\0") if (root / file).is_file()]
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository
        found = []
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".")]
            found += [str(Path(folder, name).relative_to(root)) for name in names]
    return sorted(
        {file for file in found if not any(name.startswith(".") for name in file.split("/"))}
    )


def _matches(file: str, pattern: str) -> bool:
    if "/" not in pattern:
        return fnmatch.fnmatchcase(os.path.basename(file), pattern)
    return _path_expression(pattern).fullmatch(file) is not None


def _path_expression(pattern: str) -> re.Pattern[str]:
    """Return what a path must match: `**/` is any folders or none, `*` and `?` are within one
    name.
    """
    if pattern.startswith("./"):
        pattern = pattern[2:]
    expression = ""
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", pattern):
        if piece == "**/":
            expression += "(?:[^/]+/)*"
        elif piece == "**":
            expression += ".*"
        elif piece == "*":
            expression += "[^/]*"
        elif piece == "?":
            expression += "[^/]"
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            # One character of a class, which is never the slash between two names.
            members = piece[1:-1].replace("\\", "\\\\")
            negated = members[1:] if members.startswith("!") else None
            expression += "(?!/)[" + (members if negated is None else "^" + negated) + "]"
        else:
            expression += re.escape(piece)
    return re.compile(expression, re.DOTALL)


# -- commands --------------------------------------------------------------------------------------


class CommandResult(NamedTuple):
    """What came of a command; true where it went well. `returncode` -N: signal N."""

    returncode: int
    stdout: str
    stderr: str

    def __bool__(self) -> bool:
        return self.returncode == 0

    def __repr__(self) -> str:
        texts = [text.rstrip("\n") for text in (self.stdout, self.stderr) if text]
        return "\n".join(
            [*texts, f"[exit code {self.returncode}]"] if self.returncode or not texts else texts
        )


def run(
    command: str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> CommandResult:
    """Run a command with `bash -c` in a session of its own; return its exit code and output. `env`
    is added to ours.

    When the cell is interrupted, or after `timeout` seconds (subprocess.TimeoutExpired, with the
    output), its group gets SIGINT, and SIGKILL two seconds later. What it leaves in the background
    (`server &`) goes on.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # Files, not pipes: what is left in the background holds them open, and must not hold us.
        around: dict[str, Any] = {"cwd": None if cwd is None else Path(cwd).expanduser()}
        around.update(
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        code, is_late = run_to_end(
            [shutil.which("bash") or "/bin/sh", "-c", command], timeout, **around
        )
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    done = CommandResult(code, *texts)
    _tell("run", command=command, returncode=code, timed_out=is_late, preview=repr(done))
    if is_late:
        raise subprocess.TimeoutExpired(command, timeout or 0, *texts)
    return done


def run_to_end(
    arguments: Sequence[str], timeout: float | None = None, **options: Any
) -> tuple[int, bool]:
    """Run a command in a session of its own; any exception ends it.

    Returns its exit code, and if it is late.
    """
    # an interrupt in the middle of the start, which would leave nobody who knows the process
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1)) if is_main else None
    try:
        process = subprocess.Popen(arguments, start_new_session=True, **options)
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    try:
        if came:
            raise KeyboardInterrupt
        return process.wait(timeout), False
    except BaseException as error:
        if process.returncode is None:
            _end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            return process.returncode, True
        raise


def _end_group(process: subprocess.Popen[Any]) -> None:
    """SIGINT to the group, SIGKILL when the leader is gone or two seconds have passed; a second
    interrupt hurries.
    """
    try:
        deadline = time.monotonic() + GRACE
        os.killpg(process.pid, signal.SIGINT)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
    finally:
        # macOS: EPERM where only zombies are left
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def env(name: str | None = None, value: str | None = None) -> str | None:
    """Return a variable (None: there is none), after setting it where a value is given; without
    a name, all names.
    """
    if value is not None and name is not None:
        os.environ[name] = value
    _tell("env", name=name, is_set=value is not None)
    return Text("\n".join(sorted(os.environ))) if name is None else os.environ.get(name)


def output(id: str) -> Text:
    """Return what another cell of this session printed, stdout, then stderr, all of it; answers
    name the id.
    """
    streams = sys.modules.get((__package__ or "") + ".streams")
    folder = Path(getattr(streams and streams.CELLS, "folder", None) or os.devnull)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", id) or not (folder / (id + RECORDS)).exists():
        raise FileNotFoundError(f"there is no cell {id!r} of this session whose output is kept")
    data = b"".join(read_stream(str(folder / id), ending) for ending in STREAMS.values())
    text = Text(data.decode(errors="replace"))
    _tell("output", id=id, bytes=len(data), preview=text)
    return text


# -- modules ---------------------------------------------------------------------------------------


def offered(folders: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the names that user code finds, and what is to be told: the prelude's, and those of
    all modules there.

    `x.py` is imported as `px_module_x`, to hide no installed one; the last folder's counts where
    several have the same.
    """
    names, news = _public(sys.modules[__name__]), ""
    files: dict[str, Path] = {}
    for folder in folders:
        files.update((path.stem, path) for path in Path(folder).glob("*.py"))
    for name, path in sorted(files.items()):
        spec: Any = spec_from_file_location("px_module_" + name, path)
        sys.modules[spec.name] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            names.update(_public(module))
        except (Exception, SystemExit) as error:
            del sys.modules[spec.name]
            lines = [
                frame.lineno
                for frame in extract_tb(error.__traceback__)
                if frame.filename == str(path)
            ]
            if isinstance(error, SyntaxError) and error.filename == str(path):
                lines.append(error.lineno)
            news += (
                f"px: {path}:{lines[-1] if lines else 1}: {type(error).__name__}: {error} (its "
                "names are missing)\n"
            )
    return names, news


def _public(module: ModuleType) -> dict[str, Any]:
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {name: getattr(module, name) for name in names}
