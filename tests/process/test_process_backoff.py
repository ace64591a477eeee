"""Backoff: waits double up to a cap, forget after a calm period, and never stick."""

from __future__ import annotations

from supervisord_py.process.backoff import Backoff, BackoffPolicy

POLICY = BackoffPolicy(initial_seconds=1.0, max_seconds=10.0, reset_seconds=60.0)


def test_waits_double_up_to_the_cap() -> None:
    backoff, waits = Backoff(POLICY), []
    for _ in range(100):
        backoff = backoff.failed(0.0)
        waits.append(backoff.wait_seconds(0.0))
    assert waits == [1, 2, 4, 8, *([10] * 96)]


def test_nothing_is_blocked_before_a_failure_or_after_the_wait() -> None:
    assert Backoff(POLICY).wait_seconds(5.0) == 0.0
    assert Backoff(POLICY).came_up(5.0) == Backoff(POLICY)
    failed = Backoff(POLICY).failed(5.0)
    assert failed.wait_seconds(5.25) == 0.75
    assert failed.settled(5.5) == failed
    assert failed.wait_seconds(6.0) == 0.0
    tried = failed.settled(6.0)
    assert (tried.blocked_until, tried.failures) == (None, 1)


def test_a_calm_period_makes_the_next_failure_the_first() -> None:
    three = Backoff(POLICY).failed(0.0).failed(0.0).failed(0.0)
    up = three.came_up(10.0)
    assert up.wait_seconds(10.0) == 0.0
    assert up.failed(69.0).failures == 4
    assert up.failed(70.0).failures == 1
    assert up.settled(70.0) == Backoff(POLICY)
    assert three.failed(64.0).failures == 1  # quiet for the whole period, though it never came up
