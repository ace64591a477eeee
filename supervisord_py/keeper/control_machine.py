"""What to do about the control plane's process, decided from what happened and what time it is.

    ABSENT ──> BACKOFF ──> STARTING ──> SERVING ──> LEAVING ──> ABSENT
                  │            └───────────────────────^
                  └──> ABSENT (none is needed any more)

The machine starts nothing and kills nothing: `step` returns the action that is due, and
control_process.py performs it and reports what came of it. While a control plane is needed, every
state has a deadline or a living process, so that nothing can be forgotten. Times are monotonic
seconds.
"""

from __future__ import annotations

from enum import Enum, auto

START_SECONDS = 60.0
"""A control plane that has not said hello by then never will."""
LEAVE_SECONDS = 5.0
"""How long one that is to be replaced may take to finish its answers."""
KILL_AGAIN_SECONDS = 1.0
"""SIGKILL is sent again this often: a process may be stuck in the kernel, and one signal may
fail.
"""
HEALTHY_SECONDS = 60.0
"""A life of at least this proves health: the next death counts as the first."""
FREE_FAILURES = 3
"""So many deaths in a row are answered at once; only then do the pauses begin."""


class ControlState(Enum):
    ABSENT = auto()
    """There is no process, and no time is set for the next one."""
    BACKOFF = auto()
    """There is no process; the next one is started at the deadline."""
    STARTING = auto()
    """The process runs and has not said hello."""
    SERVING = auto()
    """It said hello and is asked for signs of life."""
    LEAVING = auto()
    """It is on its way out, asked or not; at the deadline it is killed."""


TRANSITIONS: dict[ControlState, frozenset[ControlState]] = {
    ControlState.ABSENT: frozenset({ControlState.BACKOFF}),
    ControlState.BACKOFF: frozenset(
        {ControlState.ABSENT, ControlState.BACKOFF, ControlState.STARTING}
    ),
    ControlState.STARTING: frozenset(
        {ControlState.SERVING, ControlState.LEAVING, ControlState.ABSENT}
    ),
    ControlState.SERVING: frozenset({ControlState.LEAVING, ControlState.ABSENT}),
    ControlState.LEAVING: frozenset({ControlState.ABSENT}),
}
WITH_PROCESS = frozenset({ControlState.STARTING, ControlState.SERVING, ControlState.LEAVING})


class Action(Enum):
    START = auto()
    PING = auto()
    KILL_UNSTARTED = auto()
    """It never said hello."""
    KILL_HUNG = auto()
    """It answered no ping for too long."""
    KILL_LATE = auto()
    """It was to leave and did not."""


def pause_after(failures: int, initial: float, cap: float) -> float:
    """Return the seconds to wait before the next start, after so many failures in a row."""
    if failures <= FREE_FAILURES:
        return 0.0
    # The exponent is bounded: 2.0 ** 2000 would overflow after a night of failures.
    return min(max(initial, cap), initial * 2.0 ** min(failures - FREE_FAILURES - 1, 60))


class ControlMachine:
    """`ping_seconds`: between two questions for a sign of life (0: none is asked); `hang_seconds`:
    of silence that is too long.
    """

    def __init__(
        self,
        *,
        ping_seconds: float,
        hang_seconds: float,
        backoff_initial_seconds: float,
        backoff_max_seconds: float,
    ) -> None:
        self.state = ControlState.ABSENT
        self.deadline: float | None = None
        """When `step` has something to do; None: only an event changes anything."""
        self.failures = 0  # in a row
        self.restarts = 0  # how often one was started again
        self.pause_seconds = 0.0  # before the start that is due next
        self._ping_seconds = ping_seconds
        self._hang_seconds = hang_seconds
        self._backoff_initial_seconds = backoff_initial_seconds
        self._backoff_max_seconds = backoff_max_seconds
        self._started_at = 0.0
        self._answered_at = 0.0
        # Pings since the last answer. A keeper that was stopped itself has sent none meanwhile, so
        # this, not the clock, tells how long the control plane has been silent.
        self._unanswered = 0
        self._is_planned = False  # the process was asked to leave: its end is no failure
        self.is_greeted = False  # this process has said hello: it understands events

    @property
    def has_process(self) -> bool:
        return self.state in WITH_PROCESS

    def silent_seconds(self, now: float) -> float:
        return now - self._answered_at

    def lived_seconds(self, now: float) -> float:
        return now - self._started_at

    @property
    def is_planned(self) -> bool:
        return self._is_planned

    # -- time ------------------------------------------------------------------------------------

    def step(self, now: float, *, is_needed: bool) -> Action | None:
        """Return what is due now. Call it again at `deadline`, and after each event."""
        if self.state is ControlState.ABSENT:
            if not is_needed:
                return None
            self.pause_seconds = self._pause()
            self._move(ControlState.BACKOFF, now + self.pause_seconds)
        if self.state is ControlState.BACKOFF and not is_needed:
            self._move(ControlState.ABSENT, None)
            return None
        if self.deadline is None or now < self.deadline:
            return None
        if self.state is ControlState.BACKOFF:
            return Action.START
        if self.state is ControlState.STARTING:
            self._move(ControlState.LEAVING, now + KILL_AGAIN_SECONDS)
            return Action.KILL_UNSTARTED
        if self.state is ControlState.LEAVING:
            self.deadline = now + KILL_AGAIN_SECONDS
            return Action.KILL_LATE
        if self._unanswered and self._unanswered * self._ping_seconds >= self._hang_seconds:
            self._move(ControlState.LEAVING, now + KILL_AGAIN_SECONDS)
            return Action.KILL_HUNG
        self._unanswered += 1
        # The next one at a multiple of the period: whoever is asked is most often awake then.
        half = self._ping_seconds / 2
        self.deadline = now + 3 * half - (now + half) % self._ping_seconds
        return Action.PING

    def _pause(self) -> float:
        if self._is_planned:
            return 0.0
        return pause_after(self.failures, self._backoff_initial_seconds, self._backoff_max_seconds)

    # -- events ----------------------------------------------------------------------------------

    def started(self, now: float) -> None:
        """A process was forked."""
        self._started_at = now
        self._answered_at = now
        self._unanswered = 0
        self._is_planned = False
        self.is_greeted = False
        # A slow machine may need twice the time that counts as hung.
        self._move(ControlState.STARTING, now + max(START_SECONDS, 2 * self._hang_seconds))

    def start_failed(self, now: float) -> None:
        """No process could be forked: the next try comes after a pause, also after a planned
        end.
        """
        self.failures += 1
        self._is_planned = False
        self.pause_seconds = max(self._pause(), self._backoff_initial_seconds)
        self._move(ControlState.BACKOFF, now + self.pause_seconds)

    def said_hello(self, now: float) -> None:
        self.answered(now)
        self.is_greeted = True
        if self.state is ControlState.STARTING:
            self._move(
                ControlState.SERVING, now + self._ping_seconds if self._ping_seconds else None
            )

    def answered(self, now: float) -> None:
        """A sign of life."""
        self._answered_at = now
        self._unanswered = 0

    def leaving(self, now: float, *, is_planned: bool, seconds: float = LEAVE_SECONDS) -> None:
        """It will end by itself within `seconds`, or is killed then."""
        if not self.has_process:
            return
        self._is_planned = self._is_planned or is_planned
        deadline = now + seconds
        if self.state is ControlState.LEAVING:
            assert self.deadline is not None
            self.deadline = min(self.deadline, deadline)
        else:
            self._move(ControlState.LEAVING, deadline)

    def ended(self, now: float) -> None:
        """The process was reaped."""
        if self._is_planned:
            self.failures = 0
        elif self.lived_seconds(now) >= HEALTHY_SECONDS:
            self.failures = 1
        else:
            self.failures += 1
        self.restarts += 1
        self.is_greeted = False
        self._move(ControlState.ABSENT, None)

    def _move(self, state: ControlState, deadline: float | None) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state
        self.deadline = deadline
