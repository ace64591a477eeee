"""What does a tool's virtual environment need?

`requirements.txt`, else `pyproject.toml` (its dependencies, not the project; `uv.lock` beside it counts where there is
uv), else the PEP 723 metadata in the entrypoint.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec

_OPEN = "# /// script"
_CLOSE = "# ///"


class Source(StrEnum):
    """Where the needs are written down."""

    REQUIREMENTS = "requirements.txt"
    LOCK = "uv.lock"
    PYPROJECT = "pyproject.toml"
    SCRIPT = "PEP 723 metadata"


@dataclass(frozen=True, slots=True)
class Needs:
    """What to install. `requirements` are lines for an installer; empty where it reads the source by itself."""

    source: Source
    requirements: tuple[str, ...] = ()


def needs_of(spec: ToolSpec) -> Needs | None:
    """Return what the tool asks for, or None when it asks for nothing at all.

    Raises:
        ConfigError: The file that should say so is broken.
    """
    folder = spec.folder
    if os.path.isfile(folder / Source.REQUIREMENTS):
        return Needs(Source.REQUIREMENTS)
    if os.path.isfile(folder / Source.PYPROJECT):
        project = _section(_toml(folder / Source.PYPROJECT, spec), "project", folder / Source.PYPROJECT, spec)
        wanted = _dependencies(project, folder / Source.PYPROJECT, spec)
        return Needs(Source.LOCK if os.path.isfile(folder / Source.LOCK) else Source.PYPROJECT, wanted)
    if spec.command is None:
        return _script_needs(folder / spec.entrypoint, spec)
    return None


def _script_needs(entrypoint: Path, spec: ToolSpec) -> Needs | None:
    try:
        text = read_bounded(entrypoint).decode("utf-8", "replace")
    except OSError as error:
        raise _broken(entrypoint, error.strerror or str(error), spec) from None
    block = script_block(text)
    if block is None:
        return None
    return Needs(Source.SCRIPT, _dependencies(_parse(block, entrypoint, spec), entrypoint, spec))


def script_block(text: str) -> str | None:
    """Return the TOML of a `# /// script` block (PEP 723), or None when there is none that is closed."""
    content: list[str] | None = None
    for line in text.splitlines():
        if content is None:
            content = [] if line == _OPEN else None
        elif line == _CLOSE:
            return "\n".join(content)
        elif line == "#" or line.startswith("# "):
            content.append(line[2:])
        else:
            content = None
    return None


def _toml(path: Path, spec: ToolSpec) -> dict[str, Any]:
    try:
        return _parse(read_bounded(path).decode("utf-8"), path, spec)
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(path, str(error), spec) from None


def _parse(text: str, path: Path, spec: ToolSpec) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _broken(path, f"is no TOML: {error}", spec) from None


def _section(document: dict[str, Any], key: str, path: Path, spec: ToolSpec) -> dict[str, Any]:
    section = document.get(key, {})
    if not isinstance(section, dict):
        raise _broken(path, f"[{key}] must be a table", spec)
    return section


def _dependencies(table: dict[str, Any], path: Path, spec: ToolSpec) -> tuple[str, ...]:
    """Read `dependencies`; a line that an installer would take for an option is refused."""
    found = table.get("dependencies", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _broken(path, "dependencies must be an array of strings", spec)
    for each in found:
        if not each.strip() or each.lstrip().startswith("-") or "\n" in each or "\r" in each:
            raise _broken(path, f"{each[:100]!r} is no dependency", spec)
    return tuple(found)


def _broken(path: Path, message: str, spec: ToolSpec) -> ConfigError:
    return ConfigError(
        f"{path}: {message}",
        hint=f"mend the file, then: pxctl tools sync {spec.name}",
        unit=spec.unit,
        file=str(path),
        errors=[{"file": str(path), "line": None, "column": None, "pointer": "", "message": message}],
    )
