"""How long to wait before a start that failed is tried again. Pure: `now` and chance are passed in.

Law: a failure is never sticky. Each failure doubles the wait up to a cap; a period without failure, up or merely
quiet, that is as long as `reset_seconds` makes the next failure count as the first. `now` is monotonic seconds.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

_EXPONENT_MAX = 64  # beyond this the cap holds anyway; it keeps a float from overflowing


class BackoffPolicy(msgspec.Struct, frozen=True):
    """Numbers of a backoff."""

    initial_seconds: float = 0.5  # wait after the first failure
    max_seconds: float = 30.0  # no wait is longer
    factor: float = 2.0  # each wait is this many times the one before; at least 1
    reset_seconds: float = 60.0  # so long without a failure, and the next one counts as the first
    spread: float = 0.2  # share of a wait (0..1) that chance may take away, so that many do not try at the same moment

    def delay(self, failures: int, jitter: float) -> float:
        """Return the seconds to wait after that many failures in a row; `jitter` in 0..1 shortens by the spread."""
        if failures <= 0:
            return 0.0
        exponent = min(failures - 1, _EXPONENT_MAX)
        full = min(self.max_seconds, self.initial_seconds * self.factor**exponent)
        return full * (1.0 - self.spread * min(1.0, max(0.0, jitter)))


class Backoff(msgspec.Struct, frozen=True):
    """Where one thing stands that is started again and again.

    Attributes:
        calm_since: Since when there was no failure: it came up then, or the wait ended then; None before any failure.
    """

    policy: BackoffPolicy = BackoffPolicy()  # the numbers
    failures: int = 0  # failures in a row
    blocked_until: float | None = None  # when the next try is due; None when nothing holds it back
    calm_since: float | None = None

    def failed(self, now: float, jitter: float) -> Backoff:
        """Return the state after one more failure at `now`."""
        failures = self.settled(now).failures + 1
        until = now + self.policy.delay(failures, jitter)
        return replace(self, failures=failures, blocked_until=until, calm_since=until)

    def came_up(self, now: float) -> Backoff:
        """Return the state after a success at `now`: nothing is blocked, and the stable period begins."""
        if self.failures == 0:
            return self
        return replace(self, blocked_until=None, calm_since=now)

    def settled(self, now: float) -> Backoff:
        """Return the state as time alone has changed it."""
        if self.calm_since is not None and now >= self.calm_since + self.policy.reset_seconds:
            return Backoff(self.policy)
        if self.blocked_until is not None and now >= self.blocked_until:
            return replace(self, blocked_until=None)
        return self

    def wait_seconds(self, now: float) -> float:
        """Return how long the next try has to wait; 0 when it may begin now."""
        return 0.0 if self.blocked_until is None else max(0.0, self.blocked_until - now)

    def next_deadline(self) -> float | None:
        """Return when `settled` will next change something; None when never."""
        if self.blocked_until is not None:
            return self.blocked_until
        return None if self.calm_since is None else self.calm_since + self.policy.reset_seconds
