"""How an agent that was started is to be read, judged and stopped: fixed at its start, kept in its row. Pure.

Law: an edit of agents.toml changes what starts from now on, never how a run under way is judged. Keys are not in here:
who goes on with a run looks them up again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import msgspec

from supervisord_py.pipes.outcome import Cause, ErrorPattern, SuccessRule


class RunTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stays the same from the start of an agent to its end.

    Attributes:
        parser: Name of its output format.
        success, errors: When it has succeeded, and what its errors look like.
        allow_empty: No text is no failure.
        settle_seconds: Grace after it said that it is done.
        stop_seconds: From TERM to KILL.
        stop_signal: What it is asked to end with.
        patterns: Regular expressions whose matches are never stored.
    """

    parser: str = "text"
    success: SuccessRule = SuccessRule()
    errors: tuple[ErrorPattern, ...] = ()
    allow_empty: bool = False
    settle_seconds: float = 2.0
    stop_seconds: float = 5.0
    stop_signal: int | None = None
    patterns: tuple[str, ...] = ()


def encode(terms: RunTerms) -> str:
    """Return the text for the row."""
    return msgspec.json.encode(terms).decode()


def decode(text: str | None) -> RunTerms | None:
    """Read them again; None where there are none, or they are not understood."""
    try:
        return msgspec.json.decode(text or "", type=RunTerms)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


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
