"""The words of the set of sessions: events go in, instructions come out. Values only.

A *ticket* is a number that stands for one call (or one request to start or restart), a *serial* for one kernel's life;
both grow, so that their order is the order of arrival. A *session* is the id of a SessionKey. Times are seconds on one
clock that never goes back and counts suspend (DESIGN law 10).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.process.model import Reason


class Phase(StrEnum):
    """Where the one kernel of a session is. Busy is not a phase: it is `READY` with a call on it."""

    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Refusal(StrEnum):
    """Why a call gets no kernel."""

    QUEUE_FULL = "queue_full"
    OWN_SESSION = "own_session"
    HARD_FAILURE = "hard_failure"
    DEADLINE = "deadline"
    STOPPED = "stopped"
    CLOSING = "closing"


class WaitsFor(StrEnum):
    """What a call waits for: its turn in the session, a free place among sessions, a start, or the end of a kernel."""

    TURN = "turn"
    PLACE = "place"
    START = "start"
    STOP = "stop"


class StartCause(StrEnum):
    """Why a kernel is started: `RESTARTED` by itself after a death, `RETRIED` after a lack of descriptors."""

    CALL = "call"
    ASKED = "asked"
    REPLACED = "replaced"
    RESTARTED = "restarted"
    RECYCLED = "recycled"
    RETRIED = "retried"


class Fault(StrEnum):
    """Whose fault a failed start is. Only its own ones count towards a hard failure."""

    OWN = "own"
    NO_DESCRIPTORS = "no_descriptors"
    FOREIGN = "foreign"


class Death(StrEnum):
    """How a ready kernel ended.

    Attributes:
        CRASHED: Unasked; also by a memory limit, or its server says that its state is lost.
        EXITED: By exit() in a cell, or because a Jupyter client shut it down.
        KILLED: By our own ladder, for a timeout or a cancel.
    """

    CRASHED = "crashed"
    EXITED = "exited"
    KILLED = "killed"


class FailureKind(StrEnum):
    """Why a session is not started any more until somebody asks for it."""

    DEATHS = "deaths"
    STARTS = "starts"


class Failure(Struct, frozen=True):
    """A hard failure: deaths in a row, or failed starts within the window; `problem` is of the last."""

    kind: FailureKind
    count: int
    problem: Mapping[str, object] | None = None


class Asked(Struct, frozen=True):
    """A call came.

    Attributes:
        deadline: After which it does not wait any more. Once it runs, time is the caller's matter.
        reset: Replace the kernel before it; counts as an explicit request.
        per_call: The session is this call's own and ends with it.
        caller: Serial of the kernel whose cell makes this call, None where it is none of ours.
    """

    ticket: int
    session: str
    deadline: float
    reset: bool = False
    per_call: bool = False
    caller: int | None = None


class StartAsked(Struct, frozen=True):
    """Somebody wants the session's kernel up; answered by Up, at once where it is. Clears a hard failure."""

    ticket: int
    session: str
    deadline: float


class RestartAsked(Struct, frozen=True):
    """Somebody wants a fresh kernel now, busy or not; answered by Up. Clears a hard failure. Calls in line stay."""

    ticket: int
    session: str
    deadline: float


class GaveUp(Struct, frozen=True):
    """Whoever asked does not wait any more. Of a call that was told Run in this moment: it sent nothing."""

    ticket: int


class Succeeded(Struct, frozen=True):
    """A cell of a running call ended well: earlier deaths are forgotten."""

    ticket: int


class Ended(Struct, frozen=True):
    """A running call is over and its last cell has ended in the kernel: the next one may run."""

    ticket: int


class StopAsked(Struct, frozen=True):
    """Somebody wants the session's kernel stopped now, busy or not; who waits for it is refused."""

    session: str
    reason: Reason


class BecameReady(Struct, frozen=True):
    """A kernel answers."""

    session: str
    serial: int


class StartFailed(Struct, frozen=True):
    """A kernel never became ready. What is left of it is still to be stopped."""

    session: str
    serial: int
    fault: Fault = Fault.OWN
    problem: Mapping[str, object] | None = None


class Died(Struct, frozen=True):
    """A ready kernel ended by itself, or by the ladder. What is left of its tree is still to be stopped."""

    session: str
    serial: int
    how: Death = Death.CRASHED
    problem: Mapping[str, object] | None = None


class Gone(Struct, frozen=True):
    """Nothing of a kernel is left, or nothing more can be done about it."""

    session: str
    serial: int


class Used(Struct, frozen=True):
    """A client that is not ours used the kernel, at that moment; the kernel is not fresh any more."""

    session: str
    at: float


class ForeignBusy(Struct, frozen=True):
    """The kernel works, or does not work any more, for a client that is not ours. While it does it is not evicted."""

    session: str
    busy: bool


class RecycleAsked(Struct, frozen=True):
    """The kernel is over its soft memory limit: it is replaced once the running call, if any, has ended."""

    session: str
    serial: int


class Adopted(Struct, frozen=True):
    """A kernel of an earlier control plane is held.

    Attributes:
        ticket: Stands for a cell in flight, which is followed; say Ended at its end. None when there is none.
    """

    session: str
    serial: int
    last_used: float
    ticket: int | None = None
    per_call: bool = False


class Bounded(Struct, frozen=True):
    """The limits were changed."""

    limits: SessionLimits


class Closed(Struct, frozen=True):
    """The daemon stops: refuse everything, stop everything."""


class TimePassed(Struct, frozen=True):
    """`next_deadline()` was reached."""


Asking = Asked | StartAsked | RestartAsked
Event = (
    Asking
    | GaveUp
    | Succeeded
    | Ended
    | StopAsked
    | BecameReady
    | StartFailed
    | Died
    | Gone
    | Adopted
    | Used
    | ForeignBusy
    | RecycleAsked
    | Bounded
    | Closed
    | TimePassed
)


# -- instructions ------------------------------------------------------------------------------------------------------


class Start(Struct, frozen=True):
    """Start a kernel and report BecameReady or StartFailed."""

    session: str
    serial: int
    cause: StartCause


class Stop(Struct, frozen=True):
    """Stop what is there of a kernel and report Gone. `reason` is None when it ended by itself.

    A call on it loses it: its variables are gone, its cell is never run again, and Ended is not awaited.
    """

    session: str
    serial: int
    reason: Reason | None


class Run(Struct, frozen=True):
    """The call has the kernel until it says Ended. `cold`: it waited for this kernel's start."""

    ticket: int
    session: str
    serial: int
    cold: bool


class Up(Struct, frozen=True):
    """The kernel that was asked for is ready. `cold`: it was started meanwhile."""

    ticket: int
    session: str
    serial: int
    cold: bool


class Refuse(Struct, frozen=True):
    """The call gets nothing.

    Attributes:
        waits_for: What it waited for in vain, where it waited.
        failure: The hard failure that stands, for that refusal.
    """

    ticket: int
    session: str
    refusal: Refusal
    waits_for: WaitsFor | None = None
    failure: Failure | None = None


class Fail(Struct, frozen=True):
    """The call waited for this start, which failed."""

    ticket: int
    session: str
    serial: int


class Placed(Struct, frozen=True):
    """Where a call stands now; told at its arrival if it has to wait, and at each change. `position` 1 is next."""

    ticket: int
    session: str
    position: int
    waits_for: WaitsFor


Instruction = Start | Stop | Run | Up | Refuse | Fail | Placed
