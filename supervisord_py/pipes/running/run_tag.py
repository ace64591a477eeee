"""The note that the keeper holds with each agent: enough for a later control plane to know whose it is. Pure.

Law: a tag of another version is not understood, and nothing is guessed. The deadline is read off the clock that counts
suspend, which is the same for every process of one boot.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from supervisord_py.pipes.judging.values import Cause

VERSION = 1


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
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":"))


def decode(text: str) -> RunTag | None:
    """Read a tag; None when it is none of ours or of another version."""
    try:
        members = json.loads(text)
        if members.pop("v") != VERSION:
            return None
        tag = RunTag(int(members["execution"]), float(members["deadline"]), str(members["cause"]), members["detail"])
        Cause(tag.cause)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    return tag
