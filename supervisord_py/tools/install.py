"""`pxctl tools new`, `add` and `remove`: write a tool to start from, copy a folder in, or take one away.

What is new or added appears under its name whole or not at all, never over something that is there, and was checked
before. Given another name, the copy declares that one. What is removed goes at once by a rename and is deleted then; of
a tool that is a link goes the link. All of it blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.config.documents import DocumentError, did_you_mean, read_document
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, PxError, UnknownUnitError
from supervisord_py.tools.catalog import EXAMPLES
from supervisord_py.tools.manifest import MANIFEST, Dialect, dialect_of, load_tool, name_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.config.settings import ToolsSettings
    from supervisord_py.tools.catalog import Catalog
    from supervisord_py.tools.manifest import ToolSpec

EXAMPLE = "example:"
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""
TEMPLATES = EXAMPLES.with_name("templates")
_LEFT_BEHIND = (".venv.*", "__pycache__", ".git")  # not copied from the top of the folder: these are not the tool


class ToolsDiskError(PxError, kind="disk", title="The tools directory cannot be written"):
    """The tools directory cannot be written."""


class Template(StrEnum):
    """What a new tool is written with; each is a folder of `templates`."""

    STDLIB = "stdlib"
    FASTAPI = "fastapi"
    NODE = "node"


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end.

    Raises ConflictError: `folder` is there, or has come to exist meanwhile; ToolsDiskError: the directory cannot be
    written.
    """
    unit, name = f"tool:{folder.name}", folder.name
    hint = f"pxctl tools remove {name}, or choose another name"
    nest = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    try:
        if os.path.lexists(folder):
            raise ConflictError(f"{folder} is there already", hint=hint, unit=unit)
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        nest.mkdir(0o700)
        yield nest / name
        if os.path.lexists(folder):
            raise ConflictError(f"{folder} is there already", hint=hint, unit=unit)
        (nest / name).rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"{folder} is there already", hint=hint, unit=unit) from None
        raise ToolsDiskError(
            f"cannot write {folder}: {error.strerror or error}", hint="pxctl doctor", unit=unit
        ) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)


def new_tool(tools_dir: Path, name: str, template: Template = Template.STDLIB) -> Path:
    """Write a new tool with its test request and return its folder.

    Raises BadRequestError: the name cannot be a tool's; ConflictError: there is something of that name already;
    ToolsDiskError: it cannot be written.
    """
    _check_name(name)
    folder = tools_dir / name
    with placed(folder) as draft:
        shutil.copytree(TEMPLATES / template.value, draft, ignore=shutil.ignore_patterns("__pycache__"))
        draft.chmod(0o700)
        shutil.copy(TEMPLATES / "test-request.json", draft)
        command = {"command": ["node", "main.js", "--port", "{port}"]} if template is Template.NODE else {}
        _declare(draft, read_document(TEMPLATES / MANIFEST).value | {"name": name} | command)
        readme = f"# {name}\n\nRepeats a text. Try it: `pxctl run {name} text=hello times=3`\n"
        (draft / "README.md").write_text(readme, encoding="utf-8")
    return folder


def _check_name(name: str) -> None:
    if trouble := name_trouble(name):
        raise BadRequestError(f"{name[:80]!r} {trouble}", hint="choose another: pxctl tools add PATH --name my-tool")


def _declare(draft: Path, manifest: dict[str, Any]) -> None:
    (draft / MANIFEST).unlink(missing_ok=True)  # the copy may be a link to the original, and read-only
    (draft / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def add_tool(
    source: str, tools_dir: Path, *, name: str | None = None, settings: ToolsSettings | None = None
) -> ToolSpec:
    """Copy a tool into `tools_dir` and return its spec.

    Args:
        source: Path of a folder, or `example:NAME`.
        tools_dir: Where it goes; made if need be.
        name: What it is called from now on, also in its copied declaration; None takes the name that it has.
        settings: As for `load_tool`.

    Raises:
        BadRequestError: The source is no tool's folder, or the name cannot be one.
        UnknownUnitError: There is no such example.
        ConflictError: There is a tool of that name.
        ConfigError: The tool is broken; nothing was added.
        ToolsDiskError: The copy failed; nothing was added.
    """
    origin = _origin(source)
    try:
        declared = read_document(origin / MANIFEST).value
    except DocumentError:
        declared = None
    declared = declared if isinstance(declared, dict) else {}  # what is broken is for `_check` to refuse
    key = "id" if dialect_of(declared) is Dialect.PIXIE else "name"
    own = declared.get(key) if key == "id" else None
    wanted = name or (own if isinstance(own, str) and not name_trouble(own) else origin.name)
    _check_name(wanted)
    folder = tools_dir.absolute() / wanted
    if folder.parent.resolve().is_relative_to(origin.resolve()):
        raise BadRequestError(f"{origin} contains the tools directory and cannot be copied into it")
    with placed(folder) as draft:
        _copy(origin, draft)
        if name is not None and isinstance(declared.get(key), str) and declared[key] != name:
            _declare(draft, declared | {key: name})
        _check(draft, origin, settings)
    return load_tool(folder, settings)


def _origin(source: str) -> Path:
    """Return the folder of a tool that is to be copied."""
    if "\0" in source or not source:
        raise BadRequestError("the source of a tool is a folder or example:NAME")
    if source.startswith(EXAMPLE):
        name = source.removeprefix(EXAMPLE)
        known = sorted(path.parent.name for path in EXAMPLES.glob(f"*/{MANIFEST}"))
        if name not in known:
            detail = f"there is no example {name[:80]!r}{did_you_mean(name, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
        return EXAMPLES / name
    path = Path(source).expanduser().absolute()
    if not path.is_dir():
        raise BadRequestError(f"{path} is no folder", hint="pxctl tools add PATH, or pxctl tools add example:NAME")
    if not (path / MANIFEST).is_file():
        raise BadRequestError(f"{path} holds no {MANIFEST}", hint="pxctl tools new NAME writes a tool to start from")
    return path


def _copy(origin: Path, draft: Path) -> None:
    """Copy a folder with its links as links; what is no file, folder or link is passed over."""
    matching = shutil.ignore_patterns(*_LEFT_BEHIND)

    def ignore(folder: str, names: list[str]) -> set[str]:
        left = set(matching(folder, names)) if folder == str(origin) else set()
        modes = {name: stat.S_IFMT((Path(folder) / name).lstat().st_mode) for name in names}
        return left | {name for name, mode in modes.items() if mode not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}}

    try:
        shutil.copytree(origin, draft, symlinks=True, ignore=ignore)
    except shutil.Error as error:
        place, _target, why = error.args[0][0]
        raise OSError(0, f"copying {place}: {why}") from None
    draft.chmod(0o700)


def _check(draft: Path, origin: Path, settings: ToolsSettings | None) -> None:
    """Load the copy; its errors name the place that it was copied from."""
    try:
        load_tool(draft, settings)
    except ConfigError as error:
        moved = msgspec.json.encode([error.detail, error.extra]).replace(str(draft).encode(), str(origin).encode())
        detail, extra = msgspec.json.decode(moved)
        raise ConfigError(
            detail, hint="mend the tool where it is, then add it again", unit=error.unit, **extra
        ) from None


def remove_tool(catalog: Catalog, name: str, tools_dir: Path, *, anywhere: bool = False) -> Path:
    """Delete a tool's folder and return where it was. The caller has made sure that it does not run.

    Raises UnknownUnitError: there is no such tool; ConflictError: it lies outside `tools_dir`, and that is all it
    may lie in; ToolsDiskError: it cannot be deleted.
    """
    folder, unit = catalog.entry(name).folder, f"tool:{name}"
    if not anywhere and folder.parent != tools_dir.absolute():
        detail = f"{folder} lies outside the tools directory {tools_dir}"
        raise ConflictError(detail, hint=f"pxctl tools remove --force {name}", unit=unit)
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            doomed = folder.parent / f"{PREFIX}removed-{secrets.token_hex(6)}"
            folder.rename(doomed)
            shutil.rmtree(doomed)
    except OSError as error:
        raise ToolsDiskError(f"cannot remove {folder}: {error.strerror or error}", unit=unit) from None
    catalog.refresh()
    return folder
