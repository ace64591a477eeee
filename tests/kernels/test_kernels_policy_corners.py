"""The set of sessions: corners that the state machine does not aim at."""

from __future__ import annotations

from supervisord_py.kernels import session_events as ev
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session_events import Refusal
from supervisord_py.kernels.session_set import SessionSet

NOW = 1000.0


def test_a_closed_set_starts_nothing() -> None:
    sessions = SessionSet(SessionLimits())
    sessions.apply(ev.Closed(), NOW)
    for asked in (ev.StartAsked(1, "a", NOW + 9), ev.RestartAsked(1, "a", NOW + 9)):
        (refused,) = sessions.apply(asked, NOW)
        assert isinstance(refused, ev.Refuse)
        assert (refused.session, refused.refusal) == ("a", Refusal.CLOSING)


def test_what_is_told_of_a_call_that_is_over_changes_nothing() -> None:
    sessions = SessionSet(SessionLimits())
    assert sessions.apply(ev.Ended(7), NOW) == ()
    assert sessions.apply(ev.Succeeded(7), NOW) == ()


def test_a_use_of_a_kernel_that_is_not_there_changes_nothing() -> None:
    sessions = SessionSet(SessionLimits())
    assert sessions.apply(ev.Used("a", NOW), NOW) == ()
    assert sessions.apply(ev.ForeignBusy("a", busy=True), NOW) == ()
