"""What a tool's process may see: an allow-list of the daemon's environment, `.env`, `env`; nothing else (DESIGN §4).

Later layers win: allow-list, the virtual environment, `.env`, the tool's `env`, what the start itself needs. The
daemon's own settings (`PX_…`) never pass from its environment, even where the allow-list names them; a tool may set
`PX_…` names of its own, but not the marks by which the daemon knows its children.
Values never appear in a `repr`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dotenv.parser import parse_stream

from supervisord_py.errors import StartFailedError
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW
from supervisord_py.tools.declaring.fingerprint import DOTENV, VENV, read_bounded
from supervisord_py.tools.declaring.own_settings import ENV_NAME, MARKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisord_py.tools.spec import ToolSpec

DENIED_PREFIX = "PX_"
DENIED = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "CREDENTIALS_DIRECTORY",
        "RUNTIME_DIRECTORY",
        "STATE_DIRECTORY",
        "LOGS_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
    }
)
"""What a service manager tells the daemon, and the daemon alone."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Environment(Mapping[str, str]):
    """A complete environment. Its `repr` shows names, never values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Environment({', '.join(sorted(self._values))})"


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


def passed(source: Mapping[str, str], allow: Sequence[str]) -> dict[str, str]:
    """Return what may pass from the daemon's environment; what is denied wins over what is allowed."""
    exact = {name for name in allow if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in allow if name.endswith("*"))
    return {
        name: value
        for name, value in source.items()
        if (name in exact or (prefixes and name.startswith(prefixes)))
        and name not in DENIED
        and not name.upper().startswith(DENIED_PREFIX)
    }


def _venv(spec: ToolSpec, path: str) -> dict[str, str]:
    """Return what activating the tool's virtual environment would set, if it has one."""
    venv = spec.folder / VENV
    if not os.path.isfile(venv / "pyvenv.cfg"):
        return {}
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{path}"}


def read_dotenv(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read a `.env` file: no interpolation, no effect on this process.

    Returns:
        The variables, and one sentence for each line that cannot be used. Sentences quote no values.
    """
    try:
        text = read_bounded(path).decode("utf-8-sig")
    except FileNotFoundError:
        return {}, ()
    except UnicodeDecodeError as error:
        return {}, (f"{path}: not UTF-8 at byte {error.start}; the file is ignored",)
    except OSError as error:
        return {}, (f"{path}: {error.strerror or error}; the file is ignored",)
    values: dict[str, str] = {}
    warnings: list[str] = []
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.line + len(_leading_breaks(binding.original.string))
        trouble = _binding_trouble(binding.key, binding.value, broken=binding.error)
        if trouble:
            warnings.append(f"{path}, line {line}: {trouble}; the line is ignored")
        elif binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values, tuple(warnings)


def _leading_breaks(original: str) -> list[str]:
    """Return the line breaks before a binding; the parser counts them to it."""
    return re.findall(r"\r\n|\n|\r", original[: len(original) - len(original.lstrip())])


def _binding_trouble(key: str | None, value: str | None, *, broken: bool) -> str | None:
    if broken:
        return "is no NAME=value"
    if key is None:
        return None
    if not ENV_NAME.fullmatch(key):
        return "the name is none that an environment can have"
    if key in MARKS:
        return f"{key} is the daemon's own mark"
    if value is None:
        return f"{key} has no value"
    return "the value holds a NUL" if "\0" in value else None


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
