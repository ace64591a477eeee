"""`pxctl tools new`, `add` and `remove`: write a tool to start from, copy a folder in, or take one away.

What is new or added appears under its name whole or not at all, never over something that is there, and was checked
before. Given another name, the copy declares that one. A `.venv` comes along: `bin/python` in it finds its base from
wherever it lies; only its other scripts know their old path. What is removed goes at once by a rename and is deleted
then; links are never followed, so a tool that is a link loses the link only. All of it blocks: call it in a thread.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.config.documents import DocumentError, did_you_mean, read_document
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, PxError, UnknownUnitError
from supervisord_py.tools.catalog import EXAMPLES
from supervisord_py.tools.manifest import MANIFEST, VENV, Dialect, dialect_of, load_tool, name_trouble
from supervisord_py.tools.sync import lacks_bytecode, needs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.tools.catalog import Catalog
    from supervisord_py.tools.config import ToolDefaults
    from supervisord_py.tools.manifest import ToolSpec

EXAMPLE = "example:"
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a dot in front."""
TEMPLATES = EXAMPLES.with_name("templates")
REQUEST = {"text": "hello", "times": 3}
_LEFT_BEHIND = (".venv.*", "__pycache__", ".git")
"""Not copied from the top of the folder: these are not the tool."""


class DiskError(PxError):
    """The tools directory cannot be written."""

    kind = "disk"
    title = "The tools directory cannot be written"


class Template(StrEnum):
    """What a new tool is written with; each is a folder of `templates`."""

    STDLIB = "stdlib"
    FASTAPI = "fastapi"
    NODE = "node"


class RemovalScope(StrEnum):
    """How far `remove_tool` may reach."""

    OWN = "own"
    ANYWHERE = "anywhere"


class Added(NamedTuple):
    """A tool that was added.

    Attributes:
        spec: The tool as it now is.
        needs_sync: It asks for packages and has no `.venv`.
        needs_compile: Its `.venv` holds packages without bytecode; `Builder.compile_bytecode` makes it.
    """

    spec: ToolSpec
    needs_sync: bool
    needs_compile: bool


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Path]:
    """Give a path of the same last name that does not exist yet; what is put there becomes `folder` at the end.

    Raises:
        ConflictError: `folder` is there, or has come to exist meanwhile.
        DiskError: The directory cannot be written.
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
        raise DiskError(f"cannot write {folder}: {error.strerror or error}", hint="pxctl doctor", unit=unit) from None
    finally:
        shutil.rmtree(nest, ignore_errors=True)


def new_tool(tools_dir: Path, name: str, template: Template = Template.STDLIB) -> Path:
    """Write a new tool with its test request and return its folder.

    Raises:
        BadRequestError: The name cannot be a tool's.
        ConflictError: There is something of that name already.
        DiskError: It cannot be written.
    """
    if trouble := name_trouble(name):
        raise BadRequestError(f"{name[:80]!r} {trouble}", hint="pxctl tools new my-tool")
    folder = tools_dir / name
    with placed(folder) as draft:
        shutil.copytree(TEMPLATES / template.value, draft, ignore=shutil.ignore_patterns("__pycache__"))
        draft.chmod(0o700)
        words = {
            MANIFEST: json.dumps(_manifest(name, template), indent=2) + "\n",
            "test-request.json": json.dumps(REQUEST) + "\n",
            "README.md": f"# {name}\n\nRepeats a text. Try it: `pxctl run {name} text=hello times=3`\n",
        }
        for file, content in words.items():
            (draft / file).write_text(content, encoding="utf-8")
    return folder


def _manifest(name: str, template: Template) -> dict[str, Any]:
    command = {"command": ["node", "main.js", "--port", "{port}"]} if template is Template.NODE else {}
    return {
        "name": name,
        "version": "0.1.0",
        "description": "Repeats a text",
        **command,
        "input": {
            "type": "object",
            "properties": {
                "text": {"description": "What to repeat", "type": "string", "maxLength": 10000},
                "times": {"description": "How often", "type": "integer", "minimum": 1, "maximum": 100, "default": 2},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        "output": {
            "type": "object",
            "properties": {"result": {"type": "string"}, "length": {"type": "integer"}},
            "required": ["result", "length"],
        },
    }


def add_tool(
    source: str, tools_dir: Path, *, examples_dir: Path, name: str | None = None, defaults: ToolDefaults | None = None
) -> Added:
    """Copy a tool into `tools_dir`.

    Args:
        source: Path of a folder, or `example:NAME`.
        tools_dir: Where it goes; made if need be.
        examples_dir: Where the examples of the package lie.
        name: What it is called from now on, also in its copied declaration; None takes the name that it has.
        defaults: As for `load_tool`.

    Raises:
        BadRequestError: The source is no tool's folder, or the name cannot be one.
        UnknownUnitError: There is no such example.
        ConflictError: There is a tool of that name.
        ConfigError: The tool is broken; nothing was added.
        DiskError: The copy failed; nothing was added.
    """
    origin = _origin(source, examples_dir)
    declared, key = _declared(origin)
    own = declared.get(key) if key == "id" else None
    wanted = name or (own if isinstance(own, str) and not name_trouble(own) else origin.name)
    if trouble := name_trouble(wanted):
        raise BadRequestError(f"{wanted[:80]!r} {trouble}", hint="name the tool: pxctl tools add PATH --name my-tool")
    folder = tools_dir.absolute() / wanted
    if folder.parent.resolve().is_relative_to(origin.resolve()):
        raise BadRequestError(f"{origin} contains the tools directory and cannot be copied into it")
    with placed(folder) as draft:
        _copy(origin, draft)
        if name is not None and isinstance(declared.get(key), str) and declared[key] != name:
            (draft / MANIFEST).unlink()  # a file of its own: the copy may be a link to the original, and read-only
            text = json.dumps(declared | {key: name}, indent=2, ensure_ascii=False) + "\n"
            (draft / MANIFEST).write_text(text, encoding="utf-8")
        _check(draft, folder, defaults)
    spec = load_tool(folder, defaults)
    return Added(spec, needs_sync=_needs_sync(spec), needs_compile=lacks_bytecode(folder / VENV))


def _declared(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a declaration and the key of its name; one that cannot be read is for `_check` to refuse."""
    try:
        value = read_document(folder / MANIFEST).value
    except DocumentError:
        value = {}
    value = value if isinstance(value, dict) else {}
    return value, "id" if dialect_of(value) is Dialect.PIXIE else "name"


def _needs_sync(spec: ToolSpec) -> bool:
    if spec.python is not None or os.path.lexists(spec.folder / VENV):
        return False
    try:
        return needs_of(spec) is not None
    except ConfigError:
        return True


def _origin(source: str, examples_dir: Path) -> Path:
    """Return the folder of a tool that is to be copied."""
    if "\0" in source or not source:
        raise BadRequestError("the source of a tool is a folder or example:NAME")
    if source.startswith(EXAMPLE):
        name = source.removeprefix(EXAMPLE)
        known = sorted(path.parent.name for path in examples_dir.glob(f"*/{MANIFEST}"))
        if name not in known:
            detail = f"there is no example {name[:80]!r}{did_you_mean(name, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known) or 'none'}")
        return examples_dir / name
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
        modes = {name: (Path(folder) / name).lstat().st_mode for name in names}
        odd = {
            name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
        }
        return left | odd

    try:
        shutil.copytree(origin, draft, symlinks=True, ignore=ignore)
    except shutil.Error as error:
        place, _target, why = error.args[0][0]
        raise OSError(0, f"copying {place}: {why}") from None
    draft.chmod(0o700)


def _check(draft: Path, folder: Path, defaults: ToolDefaults | None) -> None:
    """Load the copy; its errors name the place where it would have been."""

    def moved(text: str) -> str:
        return text.replace(str(draft), str(folder))

    try:
        load_tool(draft, defaults)
    except ConfigError as error:
        errors = [each | {"file": moved(each["file"])} for each in error.extra["errors"]]
        extra = {**error.extra, "file": moved(error.extra["file"]), "errors": errors}
        hint = "mend the tool where it is, then add it again"
        raise ConfigError(moved(error.detail), hint=hint, unit=error.unit, **extra) from None


def remove_tool(catalog: Catalog, name: str, tools_dir: Path, scope: RemovalScope = RemovalScope.OWN) -> Path:
    """Delete a tool's folder and return where it was. The caller has made sure that it does not run.

    Raises:
        UnknownUnitError: There is no such tool.
        ConflictError: It lies outside `tools_dir` and the scope is its own.
        DiskError: It cannot be deleted.
    """
    folder, unit = catalog.entry(name).folder, f"tool:{name}"
    if scope is RemovalScope.OWN and folder.parent != tools_dir.absolute():
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
        raise DiskError(f"cannot remove {folder}: {error.strerror or error}", unit=unit) from None
    catalog.refresh()
    return folder
