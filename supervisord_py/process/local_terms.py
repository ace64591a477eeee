"""What the control plane tells its placement beside the calls themselves: how long to wait, how much to replace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RestartScope(StrEnum):
    """What a restart replaces: the control plane alone, or everything with all children stopped first."""

    CONTROL = "control"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines in seconds.

    Attributes:
        call: For an answer of the keeper to anything but the two below.
        spawn: For an answer to `spawn`: exec of a large program from a slow disk.
        kill: How long the keeper goes on killing after the grace of a stop, before it names what is left.
        slack: What a stop may take beyond grace and kill until it counts as unanswered.
    """

    call: float = 15.0
    spawn: float = 30.0
    kill: float = 10.0
    slack: float = 15.0
