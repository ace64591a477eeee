"""Who gets a place among sessions, and who must go for it. Pure: looks at slots, changes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.sessions.session_events import Phase, WaitsFor
from supervisord_py.kernels.sessions.session_slot import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.kernels.sessions.session_slot import Slot


def count(slots: Mapping[str, Slot], *phases: Phase) -> int:
    """Return how many are in one of these phases."""
    return sum(1 for slot in slots.values() if slot.phase in phases)


def victims(slots: Mapping[str, Slot]) -> list[Slot]:
    """Return what may be evicted, the least recently used first."""
    idle = (slot for slot in slots.values() if slot.is_idle)
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


def hungry(slots: Mapping[str, Slot]) -> list[Slot]:
    """Return the sessions in which somebody waits and no kernel is even starting; who came first, first."""
    return sorted((it for it in slots.values() if it.is_hungry), key=lambda it: it.head.ticket)


def places(slots: Mapping[str, Slot]) -> Iterator[tuple[int, str, int, WaitsFor]]:
    """Yield (ticket, session, position, what it waits for) of all who wait."""
    line = [it.session for it in hungry(slots) if it.phase is Phase.COLD]
    for slot in slots.values():
        ahead = line.index(slot.session) if slot.session in line else 0
        for position, asked in enumerate(slot.line.values(), 1):
            yield asked.ticket, slot.session, ahead + position, what(slot, is_head=position == 1)
        for asker in slot.askers.values():
            yield asker.ticket, slot.session, ahead + 1, what(slot, is_head=True)


def what(slot: Slot, *, is_head: bool) -> WaitsFor:
    """Return what one who waits in a session waits for."""
    if not is_head or slot.phase is Phase.READY:
        return WaitsFor.TURN
    if slot.phase is Phase.STARTING:
        return WaitsFor.START
    if slot.phase is Phase.STOPPING or slot.after is not None:
        return WaitsFor.STOP
    return WaitsFor.PLACE
