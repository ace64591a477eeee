"""What a call may ask for, and the sentences that it is answered with: each says what is true."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels import call_rules, messages
from supervisord_py.kernels.call_rules import NAME
from supervisord_py.kernels.cell import Cell, CellStatus, Step, Variables
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig
from supervisord_py.kernels.messages import Stopped

HERE = Path("/x")
CONFIG = KernelsConfig(HERE, HERE, HERE, HERE, GatewayConfig(HERE))


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
    assert timeout.clamped
    assert words in (timeout.notice or "")


@pytest.mark.parametrize("asked", [math.inf, -math.inf, math.nan])
def test_what_is_no_time_is_refused_and_the_field_named(asked: float) -> None:
    with pytest.raises(InvalidInputError, match="timeout must be a number of seconds from 1 to 600") as caught:
        call_rules.timeout_of(asked, CONFIG)
    assert caught.value.extra["errors"][0]["pointer"] == "/timeout"
    assert "30 s" in (caught.value.hint or "")


@given(st.floats())
def test_a_timeout_in_force_is_always_within_the_bounds(asked: float) -> None:
    try:
        timeout = call_rules.timeout_of(asked, CONFIG)
    except InvalidInputError:
        assert not math.isfinite(asked)
    else:
        assert CONFIG.timeout_min_seconds <= timeout.seconds <= CONFIG.timeout_max_seconds
        assert timeout.clamped is (timeout.seconds != asked)


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


def test_a_call_without_cells_is_refused() -> None:
    call_rules.check_cells([Cell("1")])
    with pytest.raises(InvalidInputError, match="at least one cell") as caught:
        call_rules.check_cells([])
    assert caught.value.extra["errors"][0]["pointer"] == "/cells"


# -- sentences ---------------------------------------------------------------------------------------------------------


def test_a_single_cell_that_failed_says_just_that() -> None:
    assert messages.failed(Stopped(0, 1), "ValueError") == "The cell failed (ValueError)."
    assert messages.failed(Stopped(0, 1), None) == "The cell failed."


def test_a_failed_cell_among_others_is_named_with_what_is_kept_and_what_was_not_run() -> None:
    assert messages.failed(Stopped(2, 5, "load  the\ndata"), "KeyError") == (
        "Cell 3 of 5 (load the data) failed (KeyError). Cells 4 to 5 were not run. The 2 cells before it succeeded; "
        "what they set is kept. Repair cell 3 and send from there on."
    )
    assert messages.failed(Stopped(1, 3), "E") == (
        "Cell 2 of 3 failed (E). Cell 3 was not run. The cell before it succeeded; what it set is kept. "
        "Repair cell 2 and send from there on."
    )
    assert messages.failed(Stopped(0, 2), "E") == (
        "Cell 1 of 2 failed (E). Cell 2 was not run. Repair cell 1 and send from there on."
    )


def test_nothing_is_said_to_be_kept_when_the_kernel_is_gone() -> None:
    sentence = messages.failed(Stopped(2, 3), "SystemError", Variables.LOST)
    assert sentence == "Cell 3 of 3 failed (SystemError). The kernel is gone: all variables are lost."


def test_a_cut_off_cell_says_when_how_and_what_became_of_the_variables() -> None:
    steps = (Step("sigint", 0.0),)
    assert messages.cut_off(Stopped(0, 1), CellStatus.TIMED_OUT, 30.04, Variables.KEPT, steps) == (
        "The cell ran out of time: interrupted after 30 s, by sigint; variables are kept."
    )
    killed = (*steps, Step("sigterm", 3.0), Step("sigkill", 4.0))
    assert messages.cut_off(Stopped(0, 2), CellStatus.CANCELLED, 4.25, Variables.LOST, killed) == (
        "Cell 1 of 2 was cancelled: the kernel was killed after 4.2 s, by sigkill; all variables are lost. "
        "Cell 2 was not run."
    )
    assert ", by" not in messages.cut_off(Stopped(0, 1), CellStatus.CANCELLED, 1, Variables.KEPT)


def test_of_a_session_that_is_the_calls_own_nothing_is_said_to_be_kept() -> None:
    own = Stopped(1, 3, is_own=True)
    gone = "Cell 3 was not run. The session was this call's own: its variables are gone with it."
    assert messages.failed(own, "ValueError") == f"Cell 2 of 3 failed (ValueError). {gone}"
    assert messages.cut_off(own, CellStatus.TIMED_OUT, 3.3, Variables.KEPT) == (
        f"Cell 2 of 3 ran out of time: interrupted after 3.3 s. {gone}"
    )
    assert "the kernel was killed" in messages.cut_off(own, CellStatus.TIMED_OUT, 3.3, Variables.LOST)
    assert "The kernel is gone" in messages.failed(own, None, Variables.LOST)


def test_of_shell_cells_nothing_is_said_of_variables() -> None:
    shell = Stopped(1, 3, is_stateless=True)
    assert messages.failed(shell, "ExitCode") == (
        "Cell 2 of 3 failed (ExitCode). Cell 3 was not run. Repair cell 2 and send from there on."
    )
    killed = (Step("sigint", 0.0), Step("sigkill", 4.0))
    assert messages.cut_off(shell, CellStatus.TIMED_OUT, 9.0, Variables.KEPT, killed) == (
        "Cell 2 of 3 ran out of time: ended after 9 s, by sigkill. Cell 3 was not run."
    )
