"""What follows a failed execution: another try of the same, the next preset at once, or nothing.

Law: only what can pass by itself is tried again; a preset that failed gives way to the next one in the pipe's list for
every reason but those that no other model can cure. A provider's own word on when to come back wins over the backoff.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import ErrorType

if TYPE_CHECKING:
    from supervisord_py.pipes.config import RetryLimits
    from supervisord_py.pipes.execution import Outcome, Plan, Preset
    from supervisord_py.pipes.models import RetryRules

PASSING = frozenset((ErrorType.RATE_LIMITED, ErrorType.NETWORK, ErrorType.PROVIDER_ERROR))
"""What can pass by itself; a timeout can where the pipe says so."""
ANOTHER_MODEL_HELPS = frozenset(
    (
        ErrorType.TIMEOUT,
        ErrorType.RATE_LIMITED,
        ErrorType.QUOTA_EXHAUSTED,
        ErrorType.MODEL_NOT_FOUND,
        ErrorType.AUTH_FAILED,
        ErrorType.NETWORK,
        ErrorType.CONTEXT_OVERFLOW,
        ErrorType.PREFLIGHT_FAILED,
        ErrorType.MISSING_OUTPUT,
        ErrorType.PROVIDER_ERROR,
        ErrorType.UNKNOWN,
    )
)


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try the same again after a delay, with this plan."""

    delay_seconds: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class FallBack:
    """Try the next preset at once, with this plan."""

    preset: Preset
    plan: Plan


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing follows; `why` for the log."""

    why: str


NextTry = RetryIn | FallBack | Done


def is_retryable(error_type: ErrorType | None, rules: RetryRules) -> bool:
    """Say whether a failure of this type can pass by itself."""
    return error_type in PASSING or (error_type is ErrorType.TIMEOUT and rules.on_timeout)


def next_try(
    outcome: Outcome, plan: Plan, retry_count: int, *, limits: RetryLimits, rules: RetryRules, chance: float
) -> NextTry:
    """Decide what follows an execution.

    Args:
        outcome: How it ended.
        plan: What it was run with: how many retries and which presets are left.
        retry_count: How many tries came before it.
        limits: Backoff of the daemon.
        rules: What the pipe says; its delay wins over the first of the backoff.
        chance: In [0, 1): where in the jitter's range the delay falls.
    """
    error_type = outcome.error_type
    if error_type is None:
        return Done("it completed")
    if plan.fallbacks and error_type in ANOTHER_MODEL_HELPS:
        preset, *rest = plan.fallbacks
        return FallBack(preset, replace(plan, fallbacks=tuple(rest)))
    if not is_retryable(error_type, rules):
        return Done(f"{error_type} does not pass by itself")
    if plan.retries <= 0:
        return Done("no retries are left")
    delay = _delay(outcome.retry_after_seconds, retry_count, limits, rules, chance)
    return RetryIn(delay, replace(plan, retries=plan.retries - 1))


def _delay(hint: float | None, retry_count: int, limits: RetryLimits, rules: RetryRules, chance: float) -> float:
    """Return seconds: the provider's word, or the backoff; jitter only ever adds, so that nobody comes too early."""
    first = limits.initial_seconds if rules.delay_seconds is None else rules.delay_seconds
    backoff = min(limits.max_seconds, first * limits.growth ** min(retry_count, 64))
    wanted = backoff if hint is None else min(hint, max(limits.max_seconds, backoff))
    return wanted * (1 + limits.jitter * chance)
