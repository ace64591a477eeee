"""What a child may see of the daemon's environment, and what a `.env` file beside its declaration
adds.

The daemon's own settings (`PX_…`) never pass from its environment, even where an allow-list names
them; a `.env` may set `PX_…` names of its own, but not the marks by which the daemon knows its
children (DESIGN D11). Values never appear in a `repr`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dotenv.parser import parse_stream

from supervisord_py.config.documents import read_bounded

MARKS = frozenset({"PX_INSTANCE", "PX_UNIT"})
"""How the daemon recognises its children (DESIGN D11); no user's file may set them."""

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DENIED_PREFIX = "PX_"
DENIED = frozenset(
    (
        *(
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
        ),
        *(
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "CREDENTIALS_DIRECTORY",
            "RUNTIME_DIRECTORY",
            "STATE_DIRECTORY",
        ),
        *("LOGS_DIRECTORY", "CONFIGURATION_DIRECTORY"),
    )
)
"""What a service manager tells the daemon, and the daemon alone."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Environment(dict[str, str]):
    """A complete environment, not to be changed. Its `repr` shows names, never values."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"Environment({', '.join(sorted(self))})"


def passed(source: Mapping[str, str], allow: Sequence[str]) -> dict[str, str]:
    """Return what may pass from the daemon's environment; what is denied wins over what is
    allowed.
    """
    prefixes = tuple(name[:-1] for name in allow if name.endswith("*"))
    allowed = {
        name: value for name, value in source.items() if name in allow or name.startswith(prefixes)
    }
    denied = {name for name in allowed if name in DENIED or name.upper().startswith(DENIED_PREFIX)}
    return {name: value for name, value in allowed.items() if name not in denied}


def read_dotenv(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read a `.env` file, without interpolation: the variables, and a sentence, without values,
    for each bad line.
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
        original = binding.original.string
        # The parser counts the line breaks before a binding to it.
        breaks = re.findall(r"\r\n|\n|\r", original[: len(original) - len(original.lstrip())])
        line = binding.original.line + len(breaks)
        trouble = _binding_trouble(binding.key, binding.value, broken=binding.error)
        if trouble:
            warnings.append(f"{path}, line {line}: {trouble}; the line is ignored")
        elif binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values, tuple(warnings)


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
