"""What a call may ask for, and the sentences that it is answered with: each says what is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cell_folder import config_in
from supervisord_py.config.settings import KernelsSettings
from supervisord_py.errors import InvalidInputError, PxError
from supervisord_py.kernels import call_rules, messages
from supervisord_py.kernels.call_rules import NAME, CellOutcome, Stopped, sentence
from supervisord_py.kernels.cell import CellError, CellStatus, Step, Variables
from supervisord_py.kernels.session_set import HardFailure, WaitsFor, WhyRefused

HERE = Path("/x")
CONFIG = config_in(HERE)


@pytest.mark.parametrize(
    ("asked", "seconds", "words"),
    [
        (0, 1.0, "timeout 0 s was raised to 1 s, the least there is: 0 does not mean for ever."),
        (-5, 1.0, "timeout -5 s was raised to 1 s, the least there is: -5 does not mean for ever."),
        (0.5, 1.0, "timeout 0.5 s was raised to 1 s"),
        (601, 600.0, "timeout 601 s was cut to 600 s"),
        (1e30, 600.0, "kernels.timeout_max_seconds"),
    ],
)
def test_a_timeout_outside_is_clamped_and_that_is_told(asked: float, seconds: float, words: str) -> None:
    timeout = call_rules.timeout_of(asked, CONFIG)
    assert timeout.seconds == seconds
    assert words in (timeout.notice or "")


@given(st.floats(allow_nan=False))
def test_a_timeout_in_force_is_always_within_the_bounds(asked: float) -> None:
    timeout = call_rules.timeout_of(asked, CONFIG)
    assert CONFIG.timeout_min_seconds <= timeout.seconds <= CONFIG.timeout_max_seconds
    assert (timeout.notice is not None) is (timeout.seconds != asked)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("", "default"),
        ("-x", "x"),
        ("my session", "my-session"),
        ("a/b", "a-b"),
        ("été", "t"),
        ("...", "default"),
        ("x" * 65, "x" * 64),
        ("x\n", "x"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidInputError, match="name must be 1 to 64") as caught:
        call_rules.session_name(name)
    assert caught.value.extra["errors"][0]["pointer"] == "/name"
    assert (caught.value.hint or "").endswith(f": {nearest}")
    assert len(caught.value.detail) < 300


@given(st.text(max_size=200))
def test_the_nearest_name_is_always_a_valid_one_and_a_valid_name_its_own(text: str) -> None:
    nearest = call_rules.nearest_name(text)
    assert NAME.fullmatch(nearest)
    assert call_rules.nearest_name(nearest) in {nearest, nearest.rstrip("-")}


# -- sentences ---------------------------------------------------------------------------------------------------------

KEPT, LOST = Variables.KEPT, Variables.LOST
INT, KILL = Step("sigint", 0.0), Step("sigkill", 4.0)
OWN_GONE = "The session was this call's own: its variables are gone with it."


def failed(where: Stopped, name: str | None, variables: Variables = KEPT) -> str | None:
    error = CellError(name, "") if name else None
    return sentence(where, CellOutcome(variables=variables, status=CellStatus.ERROR, error=error), None, 0.0)


def cut(where: Stopped, status: CellStatus, after: float, variables: Variables, *steps: Step) -> str | None:
    stateless = where.is_stateless
    end = CellOutcome(cut=status, variables=variables, steps=steps, is_stateless=stateless, status=status)
    return sentence(where, end, None, after)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (failed(Stopped(0, 1), "ValueError"), "The cell failed (ValueError)."),
        (failed(Stopped(0, 1), None), "The cell failed."),
        (
            failed(Stopped(2, 5, "load  the\ndata"), "KeyError"),
            "Cell 3 of 5 (load the data) failed (KeyError). Cells 4 to 5 were not run. What the cells before it set is "
            "kept. Repair cell 3 and send from there on.",
        ),
        (
            failed(Stopped(0, 2), "E"),
            "Cell 1 of 2 failed (E). Cell 2 was not run. Repair cell 1 and send from there on.",
        ),
        (
            failed(Stopped(2, 3), "SystemError", LOST),
            "Cell 3 of 3 failed (SystemError). The kernel is gone: all variables are lost.",
        ),
        (
            cut(Stopped(0, 1), CellStatus.TIMED_OUT, 30.04, KEPT, INT),
            "The cell ran out of time: interrupted after 30 s, by sigint; variables are kept.",
        ),
        (
            cut(Stopped(0, 2), CellStatus.CANCELLED, 4.25, LOST, INT, KILL),
            "Cell 1 of 2 was cancelled: the kernel was killed after 4.2 s, by sigkill; all variables are lost. "
            "Cell 2 was not run.",
        ),
        (
            cut(Stopped(0, 1), CellStatus.CANCELLED, 1, KEPT),
            "The cell was cancelled: interrupted after 1 s; variables are kept.",
        ),
        (
            failed(Stopped(1, 3, is_own=True), "ValueError"),
            f"Cell 2 of 3 failed (ValueError). Cell 3 was not run. {OWN_GONE}",
        ),
        (
            cut(Stopped(1, 3, is_own=True), CellStatus.TIMED_OUT, 3.3, KEPT),
            f"Cell 2 of 3 ran out of time: interrupted after 3.3 s. Cell 3 was not run. {OWN_GONE}",
        ),
        (
            failed(Stopped(1, 3, is_stateless=True), "ExitCode"),
            "Cell 2 of 3 failed (ExitCode). Cell 3 was not run. Repair cell 2 and send from there on.",
        ),
        (
            cut(Stopped(1, 3, is_stateless=True), CellStatus.TIMED_OUT, 9.0, KEPT, INT, KILL),
            "Cell 2 of 3 ran out of time: ended after 9 s, by sigkill. Cell 3 was not run.",
        ),
    ],
)
def test_a_call_that_stopped_says_where_why_and_what_is_kept(said: str, expected: str) -> None:
    assert said == expected


# -- refusals ----------------------------------------------------------------------------------------------------------

UNIT = "kernel:default-3fa9c1"
LIMITS = KernelsSettings(max_sessions=4, queue_max=64)


@pytest.mark.parametrize(
    ("error", "kind", "status", "words"),
    [
        (messages.refusal(WhyRefused.QUEUE_FULL, UNIT, LIMITS), "overloaded", 429, "64 calls"),
        (messages.refusal(WhyRefused.STOPPED, UNIT, LIMITS), "cancelled", 409, "stopped while the call waited"),
        (messages.refusal(WhyRefused.CLOSING, UNIT, LIMITS), "shutdown", 503, "stopping"),
        (messages.own_session(UNIT), "conflict", 409, "neither would ever end"),
        (messages.waited_in_vain(UNIT, WaitsFor.TURN, LIMITS), "timed_out", 504, "came first"),
        (messages.waited_in_vain(UNIT, WaitsFor.START, LIMITS), "timed_out", 504, "still starting"),
        (messages.waited_in_vain(UNIT, WaitsFor.STOP, LIMITS), "timed_out", 504, "on its way out"),
        (messages.waited_in_vain(UNIT, WaitsFor.PLACE, LIMITS), "timed_out", 504, "All 4 places"),
    ],
)
def test_who_gets_no_kernel_learns_what_stood_in_the_way(error: PxError, kind: str, status: int, words: str) -> None:
    found = error.problem()
    assert (found["kind"], found["status"], found["unit"]) == (kind, status, UNIT)
    assert words in str(found["detail"])
    assert found["hint"]
    assert (found.get("retry_after_seconds") == 1) is (kind in {"overloaded", "timed_out"})


def test_a_hard_failure_tells_the_last_death_and_the_command() -> None:
    last = {"detail": "killed by signal 11", "signal": 11, "reason": "signal", "status": 500}
    found = messages.hard_failure(HardFailure(2, last), UNIT).problem()
    assert "died 2 times with no cell that succeeded in between" in str(found["detail"])
    assert str(found["detail"]).endswith("Last: killed by signal 11")
    assert (found["signal"], found["reason"], found["failures"]) == (11, "signal", 2)
    assert found["status"] == 503, "the evidence does not overwrite the document"
    assert "pxctl kernel restart default-3fa9c1" in str(found["hint"])
