"""A set of sessions with a clock and a ticket counter, held to its laws after every event."""

from __future__ import annotations

import session_laws
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions.session_set import SessionSet

NOW = 1000.0
PATIENCE = 50.0


class Room:
    """A set with a clock and a ticket counter; held to its laws after every event."""

    def __init__(self, **limits: object) -> None:
        self.set = SessionSet(SessionLimits(**limits))  # type: ignore[arg-type]
        self.now = NOW
        self.ticket = 0

    def send(self, event: ev.Event) -> tuple[ev.Instruction, ...]:
        instructions = self.set.apply(event, self.now)
        session_laws.check(self.set)
        return instructions

    def ask(
        self,
        session: str = "a",
        *,
        patience: float = PATIENCE,
        reset: bool = False,
        per_call: bool = False,
        caller: int | None = None,
    ) -> tuple[ev.Instruction, ...]:
        self.ticket += 1
        return self.send(ev.Asked(self.ticket, session, self.now + patience, reset, per_call, caller))

    def start(self, session: str = "a") -> tuple[ev.Instruction, ...]:
        self.ticket += 1
        return self.send(ev.StartAsked(self.ticket, session, self.now + PATIENCE))

    def restart(self, session: str = "a") -> tuple[ev.Instruction, ...]:
        self.ticket += 1
        return self.send(ev.RestartAsked(self.ticket, session, self.now + PATIENCE))

    def busy(self, session: str = "a") -> tuple[int, int]:
        """Bring a session to run a call; return (ticket, serial)."""
        started = [it for it in self.ask(session) if isinstance(it, ev.Start)]
        ticket = self.ticket
        if started:
            self.send(ev.BecameReady(session, started[0].serial))
        standing = self.standing(session)
        assert standing.running == ticket
        assert standing.serial is not None
        return ticket, standing.serial

    def idle(self, session: str = "a") -> int:
        """Bring a session's kernel up by a call that ends at once; return its serial."""
        ticket, serial = self.busy(session)
        self.send(ev.Succeeded(ticket))
        self.send(ev.Ended(ticket))
        return serial

    def standing(self, session: str = "a") -> ev.Standing:
        standing = self.set.standing(session)
        assert standing is not None
        return standing

    def standings(self) -> list[ev.Standing]:
        return [slot.standing() for slot in self.set._slots.values()]

    def fail_starts(self, count: int, session: str = "a") -> tuple[ev.Instruction, ...]:
        """Let that many starts fail, each asked for by a call; return what the last failure gave."""
        found: tuple[ev.Instruction, ...] = ()
        for _ in range(count):
            start = next(it for it in self.ask(session) if isinstance(it, ev.Start))
            found = self.send(ev.StartFailed(session, start.serial, problem={"detail": "no such file"}))
            self.send(ev.Gone(session, start.serial))
        return found
