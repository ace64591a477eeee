"""Who gets a place among sessions, and who must go for it. Pure: looks at slots, changes none.

Laws: places go to whoever came first, and nobody overtakes; one that waits for the end of its own old kernel keeps its
turn. Only idle kernels go that no front end holds, the least recently used first. Stopping ones are bounded apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.sessions.session_events import Phase
from supervisord_py.kernels.sessions.session_slot import LIVE
from supervisord_py.kernels.sessions.session_waits import hungry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.kernels.sessions.session_slot import Slot


def count(slots: Mapping[str, Slot], *phases: Phase) -> int:
    """Return how many are in one of these phases."""
    return sum(1 for slot in slots.values() if slot.phase in phases)


def victims(slots: Mapping[str, Slot]) -> list[Slot]:
    """Return what may be evicted, the least recently used first."""
    idle = (slot for slot in slots.values() if slot.is_idle and not slot.held)
    return sorted(idle, key=lambda it: (it.last_used or 0.0, it.serial))


def surplus(slots: Mapping[str, Slot], limits: SessionLimits) -> list[Slot]:
    """Return what goes because there are too many, after a lower limit or an adoption."""
    return victims(slots)[: max(0, count(slots, *LIVE) - limits.max_sessions)]


def next_start(slots: Mapping[str, Slot], limits: SessionLimits) -> tuple[Slot, list[Slot]] | None:
    """Return who is to be started next and who goes for it; None when nobody can be started."""
    kept = 0
    for slot in hungry(slots):
        if slot.phase is Phase.STOPPING or slot.after is not None:
            kept += 1
            continue
        missing = max(0, count(slots, *LIVE) + kept + 1 - limits.max_sessions)
        going = victims(slots)[:missing]
        if len(going) < missing or count(slots, Phase.STOPPING) + missing > limits.max_sessions:
            return None
        return slot, going
    return None


def is_place_free(slots: Mapping[str, Slot], limits: SessionLimits) -> bool:
    """Say whether a kernel may come back though nobody waits for it: at nobody's cost."""
    return count(slots, *LIVE) + len(hungry(slots)) < limits.max_sessions
