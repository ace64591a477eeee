"""Backoff: waits double up to a cap, forget after a calm period, and never stick."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.process.backoff import Backoff, BackoffPolicy

POLICY = BackoffPolicy(initial_seconds=1.0, max_seconds=10.0, factor=2.0, reset_seconds=60.0, spread=0.5)


def test_waits_double_up_to_the_cap() -> None:
    backoff, waits = Backoff(POLICY), []
    for _ in range(6):
        backoff = backoff.failed(0.0, jitter=0.0)
        waits.append(backoff.wait_seconds(0.0))
    assert waits == [1, 2, 4, 8, 10, 10]


def test_chance_only_shortens_and_only_by_the_spread() -> None:
    assert POLICY.delay(2, 0.0) == 2.0
    assert POLICY.delay(2, 1.0) == 1.0
    assert POLICY.delay(2, 5.0) == 1.0
    assert POLICY.delay(2, -5.0) == 2.0
    assert POLICY.delay(0, 0.0) == 0.0
    assert POLICY.delay(10_000, 0.0) == 10.0


def test_nothing_is_blocked_before_a_failure_or_after_the_wait() -> None:
    backoff = Backoff(POLICY)
    assert backoff.wait_seconds(5.0) == 0.0
    assert backoff.next_deadline() is None
    failed = backoff.failed(5.0, 0.0)
    assert failed.wait_seconds(5.25) == 0.75
    assert failed.next_deadline() == 6.0
    assert failed.settled(5.5) == failed
    assert failed.wait_seconds(6.0) == 0.0
    tried = failed.settled(6.0)
    assert (tried.blocked_until, tried.failures) == (None, 1)
    assert tried.next_deadline() == 66.0


def test_a_calm_period_makes_the_next_failure_the_first() -> None:
    three = Backoff(POLICY).failed(0.0, 0.0).failed(0.0, 0.0).failed(0.0, 0.0)
    up = three.came_up(10.0)
    assert up.wait_seconds(10.0) == 0.0
    assert up.failed(69.0, 0.0).failures == 4
    assert up.failed(70.0, 0.0).failures == 1
    assert up.settled(70.0) == Backoff(POLICY)
    assert three.failed(64.0, 0.0).failures == 1  # quiet for the whole period, though it never came up


def test_success_without_a_failure_before_changes_nothing() -> None:
    assert Backoff(POLICY).came_up(5.0) == Backoff(POLICY)


@given(st.integers(1, 100), st.integers(1, 100), st.floats(0, 1))
def test_more_failures_never_wait_less(first: int, second: int, jitter: float) -> None:
    low, high = sorted((first, second))
    assert POLICY.delay(low, jitter) <= POLICY.delay(high, jitter)
