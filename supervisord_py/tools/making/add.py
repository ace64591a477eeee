"""`pxctl tools add` and `remove`: copy a folder into the tools directory, or take one away.

What is added is checked before it appears under its name. Given another name, the copy declares that one. A `.venv`
comes along: `bin/python` in it finds its base from
wherever it lies; only its other scripts know their old path. What is removed goes at once by a rename and is deleted
then; links are never followed, so a tool that is a link loses the link only. Both block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, PxError, UnknownUnitError
from supervisord_py.process.bounded_file import read_bounded
from supervisord_py.tools.declaring.declaration import name_trouble
from supervisord_py.tools.declaring.fingerprint import MANIFEST, VENV
from supervisord_py.tools.declaring.json_positions import JsonSyntaxError, parse_bytes
from supervisord_py.tools.declaring.manifest import dialect_of, load_tool
from supervisord_py.tools.declaring.problems import did_you_mean
from supervisord_py.tools.making.requirements import needs_of
from supervisord_py.tools.making.sync import lacks_bytecode
from supervisord_py.tools.spec import Dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from supervisord_py.tools.config import ToolDefaults
    from supervisord_py.tools.declaring.catalog import Catalog, Entry
    from supervisord_py.tools.spec import ToolSpec

EXAMPLE = "example:"
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""
_LEFT_BEHIND = (".venv.*", "__pycache__", ".git")
"""Not copied from the top of the folder: these are not the tool."""


class DiskError(PxError):
    """The tools directory cannot be written."""

    kind = "disk"
    title = "The tools directory cannot be written"


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end.

    Raises:
        ConflictError: `folder` has come to exist meanwhile.
        DiskError: The directory cannot be written.
    """
    unit = f"tool:{folder.name}"
    nest = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    try:
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        os.mkdir(nest, 0o700)
        draft = nest / folder.name
        yield draft
        if os.path.lexists(folder):
            raise ConflictError(f"{folder} is there already", unit=unit)
        os.rename(draft, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"{folder} is there already", unit=unit) from None
        raise DiskError(f"cannot write {folder}: {error.strerror or error}", hint="pxctl doctor", unit=unit) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)


class RemovalScope(StrEnum):
    """How far `remove_tool` may reach."""

    OWN = "own"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Added:
    """A tool that was added.

    Attributes:
        spec: The tool as it now is.
        needs_sync: It asks for packages and has no `.venv`.
        needs_compile: Its `.venv` holds packages without bytecode; `sync.compile_bytecode` makes it.
    """

    spec: ToolSpec
    needs_sync: bool
    needs_compile: bool


def add_tool(
    source: str, tools_dir: Path, *, examples_dir: Path, name: str | None = None, defaults: ToolDefaults | None = None
) -> Added:
    """Copy a tool into `tools_dir`.

    Args:
        source: Path of a folder, or `example:NAME`.
        tools_dir: Where it goes; made if need be.
        examples_dir: Where the examples of the package lie.
        name: What it is called from now on, also in its copied declaration; None takes the name of the folder.
        defaults: As for `load_tool`.

    Raises:
        BadRequestError: The source is no tool's folder, or the name cannot be one.
        UnknownUnitError: There is no such example.
        ConflictError: There is a tool of that name.
        ConfigError: The tool is broken; nothing was added.
        DiskError: The copy failed; nothing was added.
    """
    origin = _origin(source, examples_dir)
    wanted = name or origin.name
    trouble = name_trouble(wanted)
    if trouble:
        raise BadRequestError(f"{wanted[:80]!r} {trouble}", hint="name the tool: pxctl tools add PATH --name my-tool")
    folder = Path(os.path.abspath(tools_dir)) / wanted
    if os.path.lexists(folder):
        raise ConflictError(f"{folder} is there already", hint=f"pxctl tools remove {wanted}", unit=f"tool:{wanted}")
    if (os.path.realpath(folder.parent) + os.sep).startswith(os.path.realpath(origin) + os.sep):
        raise BadRequestError(f"{origin} contains the tools directory and cannot be copied into it")
    with placed(folder) as draft:
        _copy(origin, draft)
        if name is not None:
            _rename(draft, name)
        _checked(draft, folder, defaults)
    spec = load_tool(folder, defaults)
    return Added(spec, needs_sync=_needs_sync(spec), needs_compile=lacks_bytecode(folder / VENV))


def _needs_sync(spec: ToolSpec) -> bool:
    if spec.python is not None or os.path.lexists(spec.folder / VENV):
        return False
    try:
        return needs_of(spec) is not None
    except ConfigError:
        return True


def _origin(source: str, examples_dir: Path) -> Path:
    if "\0" in source or not source:
        raise BadRequestError("the source of a tool is a folder or example:NAME")
    if source.startswith(EXAMPLE):
        return _example(source.removeprefix(EXAMPLE), examples_dir)
    path = Path(os.path.abspath(os.path.expanduser(source)))
    if not os.path.isdir(path):
        raise BadRequestError(f"{path} is no folder", hint="pxctl tools add PATH, or pxctl tools add example:NAME")
    if not os.path.isfile(path / MANIFEST):
        raise BadRequestError(f"{path} holds no {MANIFEST}", hint="pxctl tools new NAME writes a tool to start from")
    return path


def _example(name: str, examples_dir: Path) -> Path:
    try:
        known = sorted(each.name for each in os.scandir(examples_dir) if os.path.isfile(Path(each.path) / MANIFEST))
    except OSError:
        known = []
    if name not in known:
        detail = f"there is no example {name[:80]!r}{did_you_mean(name, known)}"
        raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
    return examples_dir / name


def _copy(origin: Path, draft: Path) -> None:
    """Copy a folder with its links as links; what is no file, folder or link is refused."""
    try:
        shutil.copytree(origin, draft, symlinks=True, ignore=_ignored(origin), copy_function=_copy_file)
    except shutil.Error as error:
        _source, _target, why = error.args[0][0]
        raise OSError(0, f"copying {_source}: {why}") from None
    os.chmod(draft, 0o700)


def _ignored(origin: Path) -> Callable[[str, list[str]], set[str]]:
    matching = shutil.ignore_patterns(*_LEFT_BEHIND)

    def ignore(folder: str, names: list[str]) -> set[str]:
        left = set(matching(folder, names)) if folder == str(origin) else set()
        return left | {name for name in names if not _copyable(os.path.join(folder, name))}

    return ignore


def _copyable(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _copy_file(source: str, target: str) -> str:
    return str(shutil.copy2(source, target, follow_symlinks=False))


def _rename(draft: Path, name: str) -> None:
    """Have the copied declaration give `name`. One that cannot be read, or gives none, is for `_checked` to refuse."""
    path = draft / MANIFEST
    try:
        document = parse_bytes(read_bounded(path))
    except (OSError, JsonSyntaxError):
        return
    declared = document.value if isinstance(document.value, dict) else {}
    key = "id" if dialect_of(declared) is Dialect.PIXIE else "name"
    if not isinstance(declared.get(key), str) or declared[key] == name:
        return
    # A file of its own: the copy may be a link to the original, and may be read-only.
    os.unlink(path)
    path.write_text(json.dumps(declared | {key: name}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _checked(draft: Path, folder: Path, defaults: ToolDefaults | None) -> None:
    """Load the copy; its errors name the place where it would have been."""
    try:
        load_tool(draft, defaults)
    except ConfigError as error:
        extra = dict(error.extra)
        extra["file"] = _moved(extra["file"], draft, folder)
        extra["errors"] = [each | {"file": _moved(each["file"], draft, folder)} for each in extra["errors"]]
        detail, hint = _moved(error.detail, draft, folder), "mend the tool where it is, then add it again"
        raise ConfigError(detail, hint=hint, unit=error.unit, **extra) from None


def _moved(text: str, draft: Path, folder: Path) -> str:
    return text.replace(str(draft), str(folder))


def remove_tool(catalog: Catalog, name: str, tools_dir: Path, scope: RemovalScope = RemovalScope.OWN) -> Path:
    """Delete a tool's folder and return where it was. The caller has made sure that it does not run.

    Raises:
        UnknownUnitError: There is no such tool.
        ConflictError: It lies outside `tools_dir` and the scope is its own.
        DiskError: It cannot be deleted.
    """
    entry: Entry = catalog.entry(name)
    folder = entry.folder
    if scope is RemovalScope.OWN and folder.parent != Path(os.path.abspath(tools_dir)):
        raise ConflictError(
            f"{folder} lies outside the tools directory {tools_dir}",
            hint=f"pxctl tools remove --force {name}",
            unit=f"tool:{name}",
        )
    try:
        _delete(folder)
    except OSError as error:
        raise DiskError(f"cannot remove {folder}: {error.strerror or error}", unit=f"tool:{name}") from None
    catalog.refresh()
    return folder


def _delete(folder: Path) -> None:
    if os.path.islink(folder):
        os.unlink(folder)
        return
    doomed = folder.parent / f"{PREFIX}removed-{secrets.token_hex(6)}"
    os.rename(folder, doomed)
    shutil.rmtree(doomed)
