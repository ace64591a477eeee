"""The words of the warm set: events go in, instructions come out. Values only.

A *ticket* is a number that stands for one request, a *serial* for one instance; both grow, so that their order is the
order of arrival. Times are seconds on one clock that never goes back and counts suspend (DESIGN law 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from supervisord_py.process.backoff import BackoffPolicy

if TYPE_CHECKING:
    from supervisord_py.process.spec import Reason


_FOR_EVER = -1.0


class Pin(StrEnum):
    """How far a tool is exempt: `LRU` from eviction for capacity, `FOREVER` from age as well."""

    NONE = "none"
    LRU = "lru"
    FOREVER = "forever"


class Phase(StrEnum):
    """Where the one instance of a tool is. Busy is not a phase: it is `READY` with requests in flight."""

    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Refusal(StrEnum):
    """Why a request gets no instance."""

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    DEADLINE_STARTING = "deadline_starting"
    ALL_PINNED = "all_pinned"
    FAILING = "failing"
    STOPPED = "stopped"
    REMOVED = "removed"
    CLOSING = "closing"


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """Bounds of the whole pool.

    Attributes:
        warm_keep_max: Instances that may be starting, ready or busy at a time. Those that are on their way out count
            apart: at most as many again. At least 1.
        memory_budget_bytes: Sum of the trees' resident memory, or None.
        queue_max: Requests of one tool that may wait beyond what its instance takes.
        backoff: How long a start is put off after one that failed. Short: somebody waits for it.
    """

    warm_keep_max: int = 5
    memory_budget_bytes: int | None = None
    queue_max: int = 512
    backoff: BackoffPolicy = field(default_factory=partial(BackoffPolicy, initial_seconds=0.25, max_seconds=2.0))


@dataclass(frozen=True, slots=True)
class Rules:
    """What the set knows of a tool: an instance started under another `digest` is stale."""

    digest: str
    concurrency: int
    keep_seconds: float


@dataclass(frozen=True, slots=True)
class Asked:
    """A request came. `keep_alive`: seconds to keep the instance after it, 0 not at all, -1 for ever, None as usual."""

    ticket: int
    tool: str
    rules: Rules
    deadline: float
    keep_alive: float | None = None

    def keep_after(self, rules: Rules) -> float:
        """Return how long an unpinned instance is kept once this request has ended."""
        if self.keep_alive is None:
            return rules.keep_seconds
        return math.inf if self.keep_alive == _FOR_EVER else self.keep_alive


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Whoever asked does not wait any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Released:
    """A granted request has ended."""

    ticket: int


@dataclass(frozen=True, slots=True)
class BecameReady:
    """An instance may take work."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """An instance never became ready. What is left of it is still to be stopped."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class Died:
    """The leader of a ready instance ended unasked. What is left of its tree is still to be stopped."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class Doomed:
    """A ready instance is about to be stopped for a fault of its own: it gets no new request."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing of an instance is left, or nothing more can be done about it."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Resident memory of whole trees: (tool, bytes)."""

    sizes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PinSet:
    """A tool's pin was set to this."""

    tool: str
    pin: Pin


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a tool was read again."""

    tool: str
    rules: Rules


@dataclass(frozen=True, slots=True)
class Forgotten:
    """There is no such tool any more."""

    tool: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the tool's instance stopped now, busy or not."""

    tool: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Adopted:
    """An instance of an earlier control plane is held; `is_ready` or still starting."""

    tool: str
    serial: int
    rules: Rules
    digest: str
    last_used: float
    phase: Phase


@dataclass(frozen=True, slots=True)
class Bounded:
    """The bounds of the pool were changed."""

    bounds: PoolBounds


@dataclass(frozen=True, slots=True)
class Closed:
    """The daemon stops: refuse everything, stop everything."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline()` was reached."""


Event = (
    Asked
    | GaveUp
    | Released
    | BecameReady
    | StartFailed
    | Died
    | Doomed
    | Gone
    | Measured
    | PinSet
    | Declared
    | Forgotten
    | StopAsked
    | Adopted
    | Bounded
    | Closed
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Start:
    """Spawn an instance and report BecameReady or StartFailed."""

    tool: str
    serial: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop what is there of an instance and report Gone. `reason` is None when it ended by itself."""

    tool: str
    serial: int
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Grant:
    """The request has the instance until it is released. `cold`: it waited for the start."""

    ticket: int
    tool: str
    serial: int
    cold: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request gets nothing; `retry_after` seconds is when asking again makes sense."""

    ticket: int
    tool: str
    refusal: Refusal
    retry_after: float


@dataclass(frozen=True, slots=True)
class Fail:
    """The request waited for this start, which failed."""

    ticket: int
    tool: str
    serial: int


Instruction = Start | Stop | Grant | Refuse | Fail
