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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.config.documents import did_you_mean, read_document
from supervisord_py.errors import BadRequestError, ConflictError, PxError, UnknownUnitError
from supervisord_py.tools.catalog import EXAMPLES
from supervisord_py.tools.manifest import MANIFEST, load_tool, name_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.config.settings import ToolsSettings
    from supervisord_py.tools.catalog import Catalog
    from supervisord_py.tools.manifest import ToolSpec

EXAMPLE = "example:"
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""
TEMPLATE = EXAMPLES.with_name("templates") / "tool"
_LEFT_BEHIND = shutil.ignore_patterns(".venv.*", "__pycache__", ".git")  # these are not the tool


class ToolsDiskError(PxError, kind="disk", title="The tools directory cannot be written"):
    """The tools directory cannot be written."""


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path that does not exist yet; the folder that is made there becomes `folder` at the end.

    Raises ConflictError: `folder` is there, or has come to exist meanwhile; ToolsDiskError: the directory cannot be
    written, or what is to be copied not read.
    """
    draft = folder.parent / f"{PREFIX}{secrets.token_hex(6)}"
    unit, hint = f"tool:{folder.name}", f"pxctl tools remove {folder.name}, or choose another name"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        yield draft
        draft.chmod(0o700)
        draft.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConflictError(f"{folder} is there already", hint=hint, unit=unit) from None
        said = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise ToolsDiskError(f"cannot write {folder}: {said}", hint="pxctl doctor", unit=unit) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def new_tool(tools_dir: Path, name: str) -> Path:
    """Write a new tool with its test request and return its folder.

    Raises BadRequestError: the name cannot be a tool's; ConflictError: there is something of that name already;
    ToolsDiskError: it cannot be written.
    """
    _check_name(name)
    with placed(tools_dir / name) as draft:
        shutil.copytree(TEMPLATE, draft, ignore=_LEFT_BEHIND)
        _declare(draft, read_document(TEMPLATE / MANIFEST).value | {"name": name})
    return tools_dir / name


def _check_name(name: str) -> None:
    if trouble := name_trouble(name):
        raise BadRequestError(f"{name[:80]!r} {trouble}", hint="choose another: pxctl tools add PATH --name my-tool")


def _declare(draft: Path, manifest: dict[str, Any]) -> None:
    (draft / MANIFEST).unlink()  # the copy may be a link to the original, and read-only
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
    spec = load_tool(origin, settings)
    wanted = name or spec.name
    _check_name(wanted)
    folder = tools_dir.absolute() / wanted
    if folder.parent.resolve().is_relative_to(origin.resolve()):
        raise BadRequestError(f"{origin} contains the tools directory and cannot be copied into it")
    top = str(origin)  # further down, in its `.venv`, all counts
    with placed(folder) as draft:
        shutil.copytree(origin, draft, symlinks=True, ignore=lambda *it: _LEFT_BEHIND(*it) if it[0] == top else set())
        if wanted != spec.name:
            _declare(draft, {**spec.manifest, "id" if spec.pixie else "name": wanted})
    return load_tool(folder, settings)


def _origin(source: str) -> Path:
    """Return the folder of a tool that is to be copied."""
    if source.startswith(EXAMPLE):
        name, known = source.removeprefix(EXAMPLE), sorted(path.parent.name for path in EXAMPLES.glob(f"*/{MANIFEST}"))
        if name not in known:
            detail = f"there is no example {name[:80]!r}{did_you_mean(name, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
        return EXAMPLES / name
    path = Path(source.replace("\0", "")).expanduser().absolute()
    if not (path / MANIFEST).is_file():
        hint = "pxctl tools add PATH or example:NAME; pxctl tools new NAME writes a tool to start from"
        raise BadRequestError(f"{path} is no folder with a {MANIFEST}", hint=hint)
    return path


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
