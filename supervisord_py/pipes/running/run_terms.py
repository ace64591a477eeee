"""How an agent that was started is to be read, judged and stopped: fixed at its start, kept for a successor.

Law: an edit of agents.toml changes what starts from now on, never how a run under way is judged. Keys are not in here:
they lie in the keeper's memory (`secret_store.py`), never in a file.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.values import ErrorPattern, Requirement, SuccessRule

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class RunTerms:
    """What stays the same from the start of an agent to its end.

    Attributes:
        parser: Name of its output format.
        success: When it has succeeded.
        allow_empty: No text is no failure.
        settle_seconds: Grace after it said that it is done.
        stop_seconds: From TERM to KILL.
        stop_signal: What it is asked to end with.
        patterns: Regular expressions whose matches are never stored.
    """

    parser: str = "text"
    success: SuccessRule = field(default_factory=SuccessRule)
    allow_empty: bool = False
    settle_seconds: float = 2.0
    stop_seconds: float = 5.0
    stop_signal: int | None = None
    patterns: tuple[str, ...] = ()


def save(folder: Path, terms: RunTerms) -> None:
    """Keep them beside the output. Blocking.

    Raises:
        OSError: The disk takes nothing.
    """
    fd = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, 0o600)
        file.write(json.dumps(asdict(terms)).encode())


def load(folder: Path) -> RunTerms | None:
    """Read them again; None where they are not there or not understood. Blocking."""
    try:
        members = json.loads((folder / _FILE).read_bytes())
        return replace(RunTerms(**members), success=_success(members["success"]), patterns=tuple(members["patterns"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def drop(folder: Path) -> None:
    """Forget them: the execution has ended. Blocking."""
    with suppress(OSError):
        (folder / _FILE).unlink()


def _success(members: dict[str, Any]) -> SuccessRule:
    return SuccessRule(
        exit_codes=tuple(members["exit_codes"]),
        require=Requirement(members["require"]),
        patterns=tuple(ErrorPattern(ErrorType(it["error_type"]), it["pattern"]) for it in members["patterns"]),
        scan_output=bool(members["scan_output"]),
    )
