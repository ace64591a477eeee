"""How long to wait before a start that failed is tried again. Pure: `now`, monotonic seconds, is passed in.

Law: a failure is never sticky. Each failure doubles the wait up to a cap; a period without failure, up or merely
quiet, that is as long as `reset_seconds` makes the next failure count as the first.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

_EXPONENT_MAX = 64  # beyond this the cap holds anyway; it keeps a float from overflowing


class BackoffPolicy(msgspec.Struct, frozen=True):
    initial_seconds: float = 0.5  # wait after the first failure; each is twice the one before
    max_seconds: float = 30.0  # no wait is longer
    reset_seconds: float = 60.0  # so long without a failure, and the next one counts as the first


class Backoff(msgspec.Struct, frozen=True):
    policy: BackoffPolicy = BackoffPolicy()
    failures: int = 0  # in a row
    blocked_until: float | None = None  # when the next try is due; None when nothing holds it back
    calm_since: float | None = None  # when it came up, or the wait ends; None before any failure

    def failed(self, now: float) -> Backoff:
        failures = self.settled(now).failures + 1
        wait = self.policy.initial_seconds * 2.0 ** min(failures - 1, _EXPONENT_MAX)
        until = now + min(self.policy.max_seconds, wait)
        return replace(self, failures=failures, blocked_until=until, calm_since=until)

    def came_up(self, now: float) -> Backoff:
        """Return the state after a success at `now`: nothing is blocked, and the stable period begins."""
        return replace(self, blocked_until=None, calm_since=now) if self.failures else self

    def settled(self, now: float) -> Backoff:
        if self.calm_since is not None and now >= self.calm_since + self.policy.reset_seconds:
            return Backoff(self.policy)
        if self.blocked_until is not None and now >= self.blocked_until:
            return replace(self, blocked_until=None)
        return self

    def wait_seconds(self, now: float) -> float:
        """Return how long the next try has to wait; 0 when it may begin now."""
        return 0.0 if self.blocked_until is None else max(0.0, self.blocked_until - now)
