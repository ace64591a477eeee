"""Checks 1 to 4: what can be said of a tool's files without starting anything. All problems, not only the first."""

from __future__ import annotations

import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError
from supervisord_py.process.bounded_file import read_bounded
from supervisord_py.tools.checking.validation import Check, Status
from supervisord_py.tools.declaring.fingerprint import INCOMPLETE, MANIFEST
from supervisord_py.tools.declaring.manifest import load_tool
from supervisord_py.tools.declaring.pixie_schema import incoherences
from supervisord_py.tools.spec import Dialect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.tools.config import ToolDefaults
    from supervisord_py.tools.spec import ToolSpec

PIXIE_NEEDS = ("fastapi", "uvicorn", "pydantic", "python-dotenv")
_DISTRIBUTION = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(.*)", re.DOTALL)
_STRUCTURE = ("/entrypoint",)
_COHERENCE = re.compile(r"/(inputs?|outputs?|secrets)(/.*)?", re.DOTALL)


def check_files(folder: Path, defaults: ToolDefaults | None) -> tuple[ToolSpec | None, list[Check]]:
    """Run checks 1 to 4; the spec is None when the tool cannot be loaded."""
    try:
        spec = load_tool(folder, defaults)
    except ConfigError as error:
        return None, _broken(error.extra.get("errors", []))
    return spec, [_structure(spec), _parsed(spec), _coherent(spec), check_pyproject(spec)]


def _broken(errors: list[dict[str, Any]]) -> list[Check]:
    """Sort the problems of a tool that cannot be loaded to the checks that they belong to."""
    sorted_to: dict[str, list[str]] = {"folder_structure": [], "tool_json_parses": [], "schemas_coherent": []}
    for error in errors:
        sorted_to[_check_of(error)].append(_sentence(error))
    checks = []
    for name, sentences in sorted_to.items():
        if sentences:
            checks.append(Check(name, Status.FAIL, sentences[0], "\n".join(sentences)))
        elif name == "folder_structure" or (name == "tool_json_parses" and sorted_to["schemas_coherent"]):
            checks.append(Check(name, Status.PASS, "nothing to complain of"))
    return checks


def _check_of(error: Mapping[str, Any]) -> str:
    pointer = error["pointer"]
    if pointer in _STRUCTURE or (error["line"] is None and os.path.basename(error["file"]) == MANIFEST):
        return "folder_structure"
    return "schemas_coherent" if _COHERENCE.fullmatch(pointer) else "tool_json_parses"


def _sentence(error: Mapping[str, Any]) -> str:
    where = os.path.basename(error["file"])
    line = f", line {error['line']}" if error["line"] is not None else ""
    at = f", at {error['pointer']}" if error["pointer"] else ""
    return f"{where}{line}{at}: {error['message']}"


def _structure(spec: ToolSpec) -> Check:
    name = "folder_structure"
    if os.path.lexists(spec.folder / INCOMPLETE):
        return Check(name, Status.FAIL, f".venv is half built; run: pxctl tools sync {spec.name}")
    if spec.dialect is Dialect.PIXIE and not os.path.isfile(spec.folder / "pyproject.toml"):
        return Check(name, Status.WARN, "there is no pyproject.toml; Pixie itself would refuse the tool")
    started = " ".join(spec.command) if spec.command else spec.entrypoint
    return Check(name, Status.PASS, f"tool.json and what it starts ({started}) are there")


def _parsed(spec: ToolSpec) -> Check:
    return Check("tool_json_parses", Status.PASS, f"tool.json is sound, dialect {spec.dialect.value}")


def _coherent(spec: ToolSpec) -> Check:
    name = "schemas_coherent"
    found = incoherences(spec.pixie.inputs, len(spec.pixie.outputs)) if spec.pixie is not None else []
    if found:
        return Check(name, Status.FAIL, found[0], "\n".join(found))
    if spec.warnings:
        return Check(name, Status.WARN, spec.warnings[0], "\n".join(spec.warnings))
    return Check(name, Status.PASS, "input and output are sound schemas")


def check_pyproject(spec: ToolSpec) -> Check:
    """Check 4: pyproject.toml parses and names what a tool of its dialect imports."""
    name = "pyproject_ok"
    try:
        document = tomllib.loads(read_bounded(spec.folder / "pyproject.toml").decode("utf-8"))
    except FileNotFoundError:
        return Check(name, Status.SKIP, "there is no pyproject.toml")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        return Check(name, Status.FAIL, f"pyproject.toml: {error}")
    project = document.get("project")
    listed = project.get("dependencies", []) if isinstance(project, dict) else []
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        return Check(name, Status.FAIL, "pyproject.toml: [project] dependencies must be an array of strings")
    return _check_dependencies(spec, listed)


def _check_dependencies(spec: ToolSpec, listed: list[str]) -> Check:
    name = "pyproject_ok"
    found = {canonical(each) for each in listed}
    missing = [each for each in PIXIE_NEEDS if each not in found] if spec.dialect is Dialect.PIXIE else []
    foreign = [each for each in listed if "@" in each or "://" in each]
    if missing:
        return Check(name, Status.WARN, f"dependencies do not name {', '.join(missing)}", "\n".join(listed) or None)
    if foreign:
        return Check(name, Status.WARN, f"not from the package index: {foreign[0][:200]}", "\n".join(foreign))
    return Check(name, Status.PASS, f"{len(listed)} dependencies")


def canonical(requirement: str) -> str:
    """Return the normalised distribution name that a requirement begins with."""
    found = _DISTRIBUTION.fullmatch(requirement)
    return re.sub(r"[-_.]+", "-", found.group(1)).lower() if found else ""
