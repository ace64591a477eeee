"""How an agent that was started is to be read, judged and stopped: fixed at its start, kept in its row. Pure.

Law: an edit of agents.toml changes what starts from now on, never how a run under way is judged. Keys are not in here:
they lie in the keeper's memory (`secret_store.py`), never in a file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.values import Cause, ErrorPattern, Requirement, SuccessRule


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


def encode(terms: RunTerms) -> str:
    """Return the text for the row."""
    return json.dumps(_members(terms), default=_members, separators=(",", ":"))


def _members(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def decode(text: str | None) -> RunTerms | None:
    """Read them again; None where there are none, or they are not understood."""
    try:
        members = json.loads(text or "")
        return replace(RunTerms(**members), success=_success(members["success"]), patterns=tuple(members["patterns"]))
    except (ValueError, TypeError, KeyError):
        return None


def _success(members: dict[str, Any]) -> SuccessRule:
    return SuccessRule(
        exit_codes=tuple(members["exit_codes"]),
        require=Requirement(members["require"]),
        patterns=tuple(ErrorPattern(ErrorType(it["error_type"]), it["pattern"]) for it in members["patterns"]),
        scan_output=bool(members["scan_output"]),
    )


TAG_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunTag:
    """What is known of an agent's process.

    Attributes:
        execution: Id of its row.
        deadline: When its timeout is over.
        cause: Why it is being stopped; `nobody` while it is not.
        detail: In words.
    """

    execution: int
    deadline: float
    cause: str = Cause.NOBODY.value
    detail: str | None = None

    def encode(self) -> str:
        """Return the text for the keeper."""
        return json.dumps({"v": TAG_VERSION, **asdict(self)}, separators=(",", ":"))


def decode_tag(text: str) -> RunTag | None:
    """Read a tag; None when it is none of ours or of another version."""
    try:
        members = json.loads(text)
        if members.pop("v") != TAG_VERSION:
            return None
        tag = RunTag(int(members["execution"]), float(members["deadline"]), str(members["cause"]), members["detail"])
        Cause(tag.cause)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    return tag
