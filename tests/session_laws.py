"""The laws of the set of sessions as questions to it: what must hold after every event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.session_events import Phase
from supervisord_py.kernels.session_slot import LIVE, count, hungry, victims

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.kernels.session_set import SessionSet
    from supervisord_py.kernels.session_slot import Slot


def check(sessions: SessionSet) -> None:
    """Fail with every law that is broken, and all sessions."""
    slots = sessions._slots
    broken = [f"{slot.session}: {law}" for slot in slots.values() for law in _of_one(slot, slots)]
    broken += _of_all(slots, sessions._holders, sessions.limits)
    assert not broken, [*broken, *slots.values()]


def _of_one(slot: Slot, slots: Mapping[str, Slot]) -> Iterator[str]:
    laws = {
        "runs without a kernel": slot.running is not None and slot.phase is not Phase.READY,
        "waits for a free kernel": slot.running is None and bool(slot.line) and slot.phase is Phase.READY,
        "asks for what is up": bool(slot.askers) and slot.phase is Phase.READY,
        "waits for a hard failure": slot.is_awaited and slot.failure is not None,
        "failed hard and comes back": slot.revival is not None and slot.failure is not None,
        "is out of order": list(slot.line) != sorted(slot.line),
        "is fresh and used": slot.fresh and slot.running is not None,
        "outlives its only call": slot.per_call and slot.phase in LIVE and not slot.running and not slot.is_awaited,
        "starts for nobody": slot.phase is Phase.STARTING and slot.is_given_up,
        "waits for the end of nothing": slot.after is not None and not _is_stopping(slots, *slot.after),
        "is kept for nothing": slot.is_forgettable,
    }
    return (law for law, is_broken in laws.items() if is_broken)


def _is_stopping(slots: Mapping[str, Slot], session: str, serial: int) -> bool:
    slot = slots.get(session)
    return slot is not None and slot.phase is Phase.STOPPING and slot.serial == serial


def _of_all(slots: Mapping[str, Slot], holders: Mapping[int, Slot], limits: SessionLimits) -> list[str]:
    present = [slot.present for slot in slots.values() if slot.present is not None]
    live, idle = count(slots, *LIVE), len(victims(slots))
    missing = max(0, live + 1 - limits.max_sessions)
    first = next(iter(hungry(slots)), None)
    is_held_up = first is not None and first.phase is Phase.COLD and first.after is None
    has_room = missing <= idle and count(slots, Phase.STOPPING) + missing <= limits.max_sessions
    laws = {
        "two kernels have one serial": len(present) != len(set(present)),
        "too many kernels, and an idle one among them": live > limits.max_sessions and idle > 0,
        "somebody waits for a place that is there": is_held_up and has_room,
        "tickets are not where they belong": dict(holders) != _tickets(slots),
    }
    return [law for law, is_broken in laws.items() if is_broken]


def _tickets(slots: Mapping[str, Slot]) -> dict[int, Slot]:
    waiting = {asked.ticket: slot for slot in slots.values() for asked in slot.waiting()}
    return waiting | {slot.running.ticket: slot for slot in slots.values() if slot.running is not None}
