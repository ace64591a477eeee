"""The laws of the set of sessions as questions to it: what must hold after every event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.session_set import LIVE, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels.session_set import SessionSet, Slot


def check(sessions: SessionSet) -> None:
    """Fail with every law that is broken, and all sessions."""
    slots = sessions.slots
    broken = [f"{slot.session}: {law}" for slot in slots.values() for law in _of_one(slot)]
    broken += _of_all(sessions)
    assert not broken, [*broken, *slots.values()]


def _of_one(slot: Slot) -> Iterator[str]:
    laws = {
        "runs without a kernel": slot.running is not None and slot.phase is not Phase.READY,
        "waits for a free kernel": slot.running is None and bool(slot.line) and slot.phase is Phase.READY,
        "asks for what is up": bool(slot.askers) and slot.phase is Phase.READY,
        "waits for a hard failure": slot.is_awaited and slot.failure is not None,
        "failed hard and comes back": slot.revival is not None and slot.failure is not None,
        "is out of order": list(slot.line) != sorted(slot.line),
        "is fresh and used": slot.fresh and slot.running is not None,
        "outlives its only call": slot.per_call and slot.phase in LIVE and not slot.running and not slot.is_awaited,
        "starts for nobody": slot.phase is Phase.STARTING and not slot.stays and not slot.is_awaited,
        "is kept for nothing": slot.is_forgettable,
    }
    return (law for law, is_broken in laws.items() if is_broken)


def _of_all(sessions: SessionSet) -> list[str]:
    slots, most = sessions.slots, sessions.limits.max_sessions
    present = [slot.present for slot in slots.values() if slot.present is not None]
    live, idle = sessions.count(*LIVE), len(sessions.victims())
    missing = max(0, live + 1 - most)
    first = next(iter(sessions.hungry()), None)
    is_held_up = first is not None and first.phase is Phase.COLD
    has_room = missing <= idle and sessions.count(Phase.STOPPING) + missing <= most
    laws = {
        "two kernels have one serial": len(present) != len(set(present)),
        "too many kernels, and an idle one among them": live > most and idle > 0,
        "somebody waits for a place that is there": is_held_up and has_room,
        "tickets are not where they belong": dict(sessions._holders) != _tickets(slots),
    }
    return [law for law, is_broken in laws.items() if is_broken]


def _tickets(slots: Mapping[str, Slot]) -> dict[int, Slot]:
    waiting = {asked.ticket: slot for slot in slots.values() for asked in slot.waiting()}
    return waiting | {slot.running: slot for slot in slots.values() if slot.running is not None}
