"""A refused call learns what stood in the way, by kind and in words, and what clears it."""

from __future__ import annotations

import pytest

from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.messages import refusal_error
from supervisord_py.kernels.session_set import Failure, FailureKind, Refusal, Refuse, WaitsFor

LIMITS = SessionLimits(max_sessions=4, queue_max=64)
UNIT = "kernel:default-3fa9c1"


def problem(refuse: Refuse) -> dict[str, object]:
    found = refusal_error(refuse, LIMITS, UNIT).problem()
    assert found["unit"] == UNIT
    assert found["hint"]
    return found


@pytest.mark.parametrize(
    ("refusal", "kind", "status"),
    [
        (Refusal.QUEUE_FULL, "overloaded", 429),
        (Refusal.OWN_SESSION, "conflict", 409),
        (Refusal.HARD_FAILURE, "start_failed", 503),
        (Refusal.DEADLINE, "timed_out", 504),
        (Refusal.STOPPED, "cancelled", 409),
        (Refusal.CLOSING, "shutdown", 503),
    ],
)
def test_every_refusal_has_its_kind(refusal: Refusal, kind: str, status: int) -> None:
    found = problem(Refuse(1, "default-3fa9c1", refusal, None, Failure(FailureKind.STARTS, 3)))
    assert (found["kind"], found["status"]) == (kind, status)


@pytest.mark.parametrize("waits_for", [*WaitsFor, None])
def test_a_deadline_names_what_was_waited_for_and_that_nothing_was_run(waits_for: WaitsFor | None) -> None:
    found = problem(Refuse(1, "s", Refusal.DEADLINE, waits_for))
    assert "nothing was run" in str(found["detail"])
    assert found["waited_for"] == waits_for
    assert found["retry_after_seconds"] == 1


def test_every_wait_has_words_of_its_own() -> None:
    details = {problem(Refuse(1, "s", Refusal.DEADLINE, it))["detail"] for it in (*WaitsFor, None)}
    assert len(details) == len(WaitsFor) + 1


def test_a_full_queue_says_when_to_come_back() -> None:
    found = problem(Refuse(1, "s", Refusal.QUEUE_FULL))
    assert "64 calls" in str(found["detail"])
    assert found["retry_after_seconds"] == 1


def test_a_hard_failure_after_deaths_tells_the_last_one_and_the_command() -> None:
    last = {"detail": "killed by signal 11", "signal": 11, "reason": "signal", "status": 500}
    found = problem(Refuse(1, "s", Refusal.HARD_FAILURE, None, Failure(FailureKind.DEATHS, 2, last)))
    assert "died 2 times with no cell that succeeded in between" in str(found["detail"])
    assert str(found["detail"]).endswith("Last: killed by signal 11")
    assert (found["signal"], found["reason"], found["failures"]) == (11, "signal", 2)
    assert found["status"] == 503, "the evidence does not overwrite the document"
    assert "pxctl kernel restart default-3fa9c1" in str(found["hint"])
