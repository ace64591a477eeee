"""Who waits for whom among sessions: places in line, and calls that would wait for themselves. Pure.

Law: a call that can only go on when it has ended itself is refused at its arrival. A waits for B when A's session is
occupied by B, or when B was made by a cell of A; the second is assumed of every call that names its caller, because
nobody can see whether a cell awaits what it asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.sessions.session_events import Phase, WaitsFor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels.sessions import session_events as ev
    from supervisord_py.kernels.sessions.session_slot import Slot


def waits_for_itself(asked: ev.Asked, slots: Mapping[str, Slot]) -> bool:
    """Say whether the session that is asked for is occupied, directly or through others, by the cell that asks."""
    mine = next((it for it in slots.values() if it.running and it.serial == asked.caller), None)
    if mine is None:
        return False
    seen: set[str] = set()
    ahead = [asked.session]
    while ahead:
        session = ahead.pop()
        if session == mine.session:
            return True
        seen.add(session)
        ahead += [it for it in _occupied_through(session, slots) if it not in seen]
    return False


def _occupied_through(session: str, slots: Mapping[str, Slot]) -> Iterator[str]:
    """Yield the sessions in which calls of this session's running cell wait or run."""
    slot = slots.get(session)
    if slot is None or slot.running is None:
        return
    for other in slots.values():
        callers = [asked.caller for asked in other.line.values()]
        if other.running is not None:
            callers.append(other.running.caller)
        if slot.serial in callers:
            yield other.session


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
