"""How a cell that must end is ended: rung by rung, and what that costs. Pure: `now` and what is seen are passed in.

Laws:

- Rungs are taken in order, each once, none before its time: INTERRUPT, AGAIN, TERMINATE, KILL. Each gives the cell the
  time up to the next one, counted from when it was really taken, so that a late or hurried rung shortens no other.
- Each further cancel makes one more rung due at once, also one that comes while a rung is being taken.
- A kernel that is starting gets no SIGINT, which would kill it and look like a crash: it begins at TERMINATE.
- Variables are kept only if the cell ended, the kernel lives, and nothing worse than an interrupt was sent. After
  TERMINATE the kernel is lost, whatever the cell says, and the ladder ends when the process is gone.
- The ladder ends: `ABANDON_SECONDS` after KILL nobody waits any more; the keeper goes on killing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.kernels.cell import Step, Variables

if TYPE_CHECKING:
    from supervisord_py.kernels.config import LadderTimes

ABANDON_SECONDS = 2.0
"""After KILL: a process that takes longer to die sits in the operating system, and no call should wait for that."""


class Rung(StrEnum):
    """What is done: `handle.interrupt()` for the first two, then `terminate()`, `kill()`."""

    INTERRUPT = "interrupt"
    AGAIN = "again"
    TERMINATE = "terminate"
    KILL = "kill"


RUNGS = tuple(Rung)


@dataclass(frozen=True, slots=True)
class Take:
    """Take this rung now, and note it with `took`."""

    rung: Rung


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before then, unless something is seen or a cancel comes."""

    until: float


@dataclass(frozen=True, slots=True)
class Over:
    """The ladder has ended. `abandoned`: KILL was not enough in its time, and the process may still be there."""

    variables: Variables
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Ladder:
    """One climb.

    Attributes:
        times: When rungs come, as seconds after the first.
        began_at: When it was decided that the cell must end.
        taken: Rungs and when they were taken.
        steps: What they did, for the result.
        hurried: Cancels that are to be obeyed still: each makes one rung due at once.
    """

    times: LadderTimes
    began_at: float
    taken: tuple[tuple[Rung, float], ...] = ()
    steps: tuple[Step, ...] = ()
    hurried: int = 0

    @property
    def is_fatal(self) -> bool:
        """True once something was sent that the kernel does not survive."""
        return any(rung in {Rung.TERMINATE, Rung.KILL} for rung, _ in self.taken)

    @property
    def next_rung(self) -> Rung | None:
        """The next one, None when all were taken."""
        return RUNGS[len(self.taken)] if len(self.taken) < len(RUNGS) else None

    def _unhurried(self) -> float:
        if not self.taken:
            return self.began_at
        rung, (last, at) = self.next_rung, self.taken[-1]
        if rung is None:
            return at + ABANDON_SECONDS
        return at + max(0.0, self._offset(rung) - self._offset(last))

    def decide(self, now: float, *, cell_ended: bool = False, gone: bool = False) -> Take | Wait | Over:
        """Return what comes next, by what is seen: the cell ended (reply and end of output), the process is gone."""
        if gone:
            return Over(Variables.LOST)
        if cell_ended and not self.is_fatal:
            return Over(Variables.KEPT)
        due = self.taken[-1][1] if self.taken and self.hurried and self.next_rung is not None else self._unhurried()
        if now < due:
            return Wait(due)
        return Over(Variables.LOST, abandoned=True) if self.next_rung is None else Take(self.next_rung)

    def took(self, rung: Rung, at: float, action: str, detail: str | None = None) -> Ladder:
        """Return the ladder after a rung.

        Args:
            rung: The next one.
            at: When it was begun.
            action: As the handle named it.
            detail: What it met.

        Raises:
            ValueError: It was not its turn: a defect of the caller.
        """
        if rung is not self.next_rung:
            raise ValueError(f"{rung} is not the next rung of {self}")
        step = Step(action, round(at - (self.taken[0][1] if self.taken else at), 3), detail)
        hurried = self.hurried - (self.hurried > 0 and at < self._unhurried())
        return replace(self, taken=(*self.taken, (rung, at)), steps=(*self.steps, step), hurried=hurried)

    def hurry(self) -> Ladder:
        """Return the ladder after one more cancel."""
        return replace(self, hurried=self.hurried + 1)

    def _offset(self, rung: Rung) -> float:
        return {
            Rung.INTERRUPT: 0.0,
            Rung.AGAIN: self.times.again_seconds,
            Rung.TERMINATE: self.times.terminate_seconds,
            Rung.KILL: self.times.kill_seconds,
        }[rung]
