"""What a tool's process may see: an allow-list of the daemon's environment, `.env`, `env`; nothing else (DESIGN §4).

Later layers win: allow-list, the virtual environment, `.env`, the tool's `env`, what the start itself needs. The
daemon's own settings (`PX_…`) never pass from its environment, even where the allow-list names them; a tool may set
`PX_…` names of its own, but not the marks by which the daemon knows its children.
Values never appear in a `repr`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import StartFailedError
from supervisord_py.process.child_environment import DEFAULT_PATH, MARKS, Environment, passed, read_dotenv
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW
from supervisord_py.tools.declaring.fingerprint import DOTENV, VENV

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """An environment and what was doubtful while it was built (sentences without values)."""

    env: Environment
    warnings: tuple[str, ...] = ()


def build_environment(
    spec: ToolSpec,
    source: Mapping[str, str],
    *,
    allow: Sequence[str] = DEFAULT_ENV_ALLOW,
    artefacts_root: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> BuiltEnvironment:
    """Build the environment of an instance.

    Args:
        spec: The tool.
        source: The daemon's environment.
        allow: Names that may pass from it; a trailing `*` is a prefix.
        artefacts_root: Where a Pixie tool's runs may leave files (`artefacts_root/<tool>/<run>`).
        extra: What the start needs (NOTIFY_SOCKET, LISTEN_FDS); wins over everything.

    Raises:
        StartFailedError: A secret that the tool declares as required is nowhere set.
    """
    dotenv, warnings = read_dotenv(spec.folder / DOTENV)
    values = passed(source, allow)
    values.setdefault("PATH", DEFAULT_PATH)
    values |= _venv(spec, values["PATH"]) | {"PYTHONUNBUFFERED": "1"}
    if spec.pixie is not None:
        values["PIXIE_TOOL_ID"] = spec.name
        if artefacts_root is not None:
            values["PIXIE_ARTEFACTS_ROOT"] = str(artefacts_root)
    own = {**dotenv, **spec.env}
    values |= {name: value for name, value in own.items() if name not in MARKS}
    _require_secrets(spec, values)
    return BuiltEnvironment(Environment(values | dict(extra or {})), warnings)


def _venv(spec: ToolSpec, path: str) -> dict[str, str]:
    """Return what activating the tool's virtual environment would set, if it has one."""
    venv = spec.folder / VENV
    if not os.path.isfile(venv / "pyvenv.cfg"):
        return {}
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{path}"}


def _require_secrets(spec: ToolSpec, values: Mapping[str, str]) -> None:
    if spec.pixie is None:
        return
    missing = [secret.key for secret in spec.pixie.secrets if secret.required and not values.get(secret.key)]
    if missing:
        raise StartFailedError(
            f"{spec.unit} needs the secret{'s' if len(missing) > 1 else ''} {', '.join(missing)}, which its .env "
            "does not set",
            hint=f"add {missing[0]}=… to {spec.folder / DOTENV} (mode 600)",
            unit=spec.unit,
            reason="spawn_failed",
            stage="environment",
        )
