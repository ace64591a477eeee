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

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

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


class Over(NamedTuple):
    """The ladder has ended. `abandoned`: KILL was not enough in its time, and the process may still be there."""

    variables: Variables
    abandoned: bool = False


class Ladder(Struct):
    """One climb."""

    times: LadderTimes  # when rungs come, as seconds after the first
    began_at: float  # when it was decided that the cell must end
    taken_at: tuple[float, ...] = ()  # when each rung was begun, in their order
    steps: tuple[Step, ...] = ()  # what they did, for the result
    hurried: int = 0  # cancels that are to be obeyed still: each makes one rung due at once

    @property
    def is_fatal(self) -> bool:
        """True once something was sent that the kernel does not survive."""
        return len(self.taken_at) > RUNGS.index(Rung.TERMINATE)

    def decide(self, now: float, *, cell_ended: bool = False, gone: bool = False) -> Rung | float | Over:
        """Return the rung to take now (note it with `took`), until when to wait, or the end.

        Args:
            now: As all times here.
            cell_ended: Its reply and the end of its output came.
            gone: The process is gone.
        """
        if gone:
            return Over(Variables.LOST)
        if cell_ended and not self.is_fatal:
            return Over(Variables.KEPT)
        is_last = len(self.taken_at) == len(RUNGS)
        due = self.taken_at[-1] if self.taken_at and self.hurried and not is_last else self._unhurried()
        if now < due:
            return due
        return Over(Variables.LOST, abandoned=True) if is_last else RUNGS[len(self.taken_at)]

    def took(self, at: float, action: str, detail: str | None = None) -> Step:
        """Note that the next rung was taken, begun at that time; `action` as the handle named it, and what it met."""
        self.hurried -= self.hurried > 0 and at < self._unhurried()
        self.taken_at = (*self.taken_at, at)
        step = Step(action, round(at - self.taken_at[0], 3), detail)
        self.steps = (*self.steps, step)
        return step

    def _unhurried(self) -> float:
        count = len(self.taken_at)
        if count == 0:
            return self.began_at
        if count == len(RUNGS):
            return self.taken_at[-1] + ABANDON_SECONDS
        offsets = (0.0, self.times.again_seconds, self.times.terminate_seconds, self.times.kill_seconds)
        return self.taken_at[-1] + max(0.0, offsets[count] - offsets[count - 1])
