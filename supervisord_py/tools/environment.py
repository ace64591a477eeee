"""With what is a tool started, and what may its process see?

The interpreter is the tool's own `python`, that of its `.venv`, the settings', the daemon's; in this order. Of the
environment later layers win: an allow-list of the daemon's, the virtual environment, `.env`, the tool's `env`, what the
start itself needs. The daemon's own settings (`PX_…`) never pass from its environment; a tool may set `PX_…` names of
its own, but not the marks by which the daemon knows its children. Values never appear in a `repr`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from dotenv.variables import parse_variables

from supervisord_py.config.settings import TOOLS_ENV
from supervisord_py.errors import StartFailedError
from supervisord_py.process.child_environment import DEFAULT_PATH, MARKS, Environment, passed, read_dotenv
from supervisord_py.tools.manifest import DOTENV, VENV

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisord_py.tools.manifest import ToolSpec


_log = structlog.get_logger(__name__)


def build_environment(
    spec: ToolSpec,
    source: Mapping[str, str],
    *,
    allow: Sequence[str] = TOOLS_ENV,
    artefacts_root: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Environment:
    """Build the environment of an instance.

    Args:
        spec: The tool.
        source, allow: The daemon's environment, and the names that may pass from it; a trailing `*` is a prefix.
        artefacts_root: Where a Pixie tool's runs may leave files (`artefacts_root/<tool>/<run>`).
        extra: What the start needs (NOTIFY_SOCKET, LISTEN_FDS); wins over everything.

    Raises StartFailedError: A secret that the tool declares as required is nowhere set.
    """
    values = passed(source, allow)
    values.setdefault("PATH", DEFAULT_PATH)
    venv = spec.folder / VENV
    if (venv / "pyvenv.cfg").is_file():
        values |= {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{values['PATH']}"}
    values["PYTHONUNBUFFERED"] = "1"
    if spec.pixie is not None:
        values["PIXIE_TOOL_ID"] = spec.name
        if artefacts_root is not None:
            values["PIXIE_ARTEFACTS_ROOT"] = str(artefacts_root)
    dotenv, doubts = read_dotenv(spec.folder / DOTENV)
    for doubt in doubts:
        _log.warning("dotenv_odd", unit=spec.unit, detail=doubt)
    for name, text in dotenv.items():  # ${NAME} stands for what the tool would see by then, ${NAME:-x} has a default
        values[name] = "".join(part.resolve(values) for part in parse_variables(text))
    values |= {name: text for name, text in spec.env.items() if name not in MARKS}
    secrets = spec.pixie.secrets if spec.pixie is not None else ()
    missing = [secret.key for secret in secrets if secret.required and not values.get(secret.key)]
    if missing:
        detail = f"{spec.unit} needs secrets that its .env does not set: {', '.join(missing)}"
        raise start_failed(spec, detail, f"add {missing[0]}=… to {spec.folder / DOTENV} (mode 600)", "environment")
    return Environment(values | dict(extra or {}))


def find_interpreter(spec: ToolSpec, settings_python: str | None = None, *, path: str | None = None) -> Path:
    """Return the interpreter of a Python tool, never resolved: a virtual environment is known by its path.

    Args:
        spec: The tool.
        settings_python: `tools.python` of the settings, None for the daemon's own.
        path: PATH to look bare names up on; None is the daemon's.

    Raises StartFailedError: it is missing or cannot be executed (reason spawn_failed, stage interpreter).
    """

    def written(python: str) -> Path:  # by a person: `~`, relative to the tool's folder, or a name on PATH
        expanded = str(Path(python).expanduser()) if python.startswith("~") else python
        if "/" in expanded:
            return Path(os.path.normpath(spec.folder / expanded))
        return Path(shutil.which(expanded, path=path) or expanded)

    venv = spec.folder / VENV
    if spec.python:
        found, origin = written(spec.python), "`python` of the tool"
    elif os.path.lexists(venv):
        found, origin = venv / "bin" / "python", "its .venv"
    elif settings_python is not None:
        found, origin = written(settings_python), "`tools.python` of the settings"
    else:
        found, origin = Path(sys.executable), "the daemon's"
    if found.is_file() and os.access(found, os.X_OK):
        return found
    why = "is not executable" if found.exists() else "is not there"
    raise start_failed(spec, f"the interpreter {found} of {spec.unit} ({origin}) {why}")


def start_failed(spec: ToolSpec, detail: str, hint: str | None = None, stage: str = "interpreter") -> StartFailedError:
    """Return the error of a tool that there is nothing to start with."""
    hint = hint or f"pxctl tools sync {spec.name}"
    return StartFailedError(detail, hint=hint, unit=spec.unit, reason="spawn_failed", stage=stage)
