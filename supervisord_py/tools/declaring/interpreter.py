"""With what is a tool started? The tool's own `python`, its `.venv`, the settings', the daemon's; in this order."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.tools.declaring.fingerprint import VENV

if TYPE_CHECKING:
    from supervisord_py.tools.spec import ToolSpec

PORT = "{port}"


def find_interpreter(spec: ToolSpec, settings_python: str | None = None, *, path: str | None = None) -> Path:
    """Return the interpreter of a Python tool, never resolved: a virtual environment is known by its path.

    Args:
        spec: The tool.
        settings_python: `tools.python` of the settings, None for the daemon's own.
        path: PATH to look bare names up on; None is the daemon's.

    Raises:
        StartFailedError: It is missing or cannot be executed (reason spawn_failed, stage interpreter).
    """
    venv = spec.folder / VENV
    if spec.python is not None:
        return _checked(spec, _resolve(spec, spec.python, path), "`python` of the tool")
    if os.path.lexists(venv / "bin" / "python"):
        return _checked(spec, venv / "bin" / "python", "its .venv")
    if os.path.isfile(venv / "pyvenv.cfg"):
        raise _failed(spec, f"the virtual environment {venv} of {spec.unit} has no bin/python")
    if settings_python is not None:
        return _checked(spec, _resolve(spec, settings_python, path), "`tools.python` of the settings")
    return _checked(spec, Path(sys.executable), "the daemon's")


def argv_for(spec: ToolSpec, port: int, interpreter: Path | None) -> tuple[str, ...]:
    """Return the argument vector of an instance.

    Args:
        spec: The tool.
        port: Where it is to listen.
        interpreter: As `find_interpreter` found it; needed unless the tool has a `command`.

    Raises:
        StartFailedError: The entrypoint is not there, or no interpreter was given for a Python tool.
    """
    if spec.command is not None:
        return tuple(each.replace(PORT, str(port)) for each in spec.command)
    if interpreter is None:
        raise _failed(spec, f"{spec.unit} is a Python tool and there is no interpreter for it")
    if not os.path.isfile(spec.folder / spec.entrypoint):
        raise _failed(spec, f"the entrypoint {spec.folder / spec.entrypoint} of {spec.unit} is not there", hint="")
    return (str(interpreter), spec.entrypoint, "--port", str(port))


def _resolve(spec: ToolSpec, python: str, path: str | None) -> Path:
    """Turn what a person wrote into a path: `~`, relative to the tool's folder, or a name on PATH."""
    expanded = os.path.expanduser(python)
    if "/" in expanded:
        return Path(os.path.normpath(spec.folder / expanded))
    return Path(shutil.which(expanded, path=path) or expanded)


def _checked(spec: ToolSpec, interpreter: Path, origin: str) -> Path:
    if os.path.isfile(interpreter) and os.access(interpreter, os.X_OK):
        return interpreter
    if os.path.islink(interpreter) and not os.path.exists(interpreter):
        why = f"is a link to {os.readlink(interpreter)}, which is not there"
    elif not os.path.exists(interpreter):
        why = "is not there"
    else:
        why = "is not executable"
    raise _failed(spec, f"the interpreter {interpreter} of {spec.unit} ({origin}) {why}")


def _failed(spec: ToolSpec, detail: str, *, hint: str | None = None) -> StartFailedError:
    return StartFailedError(
        detail,
        hint=f"pxctl tools sync {spec.name}" if hint is None else f"pxctl tools validate {spec.name}",
        unit=spec.unit,
        reason="spawn_failed",
        stage="interpreter",
    )
