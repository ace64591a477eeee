"""The set of sessions: corners that the state machine does not aim at."""

from __future__ import annotations

from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session_set import Ask, Refusal, Refuse, SessionSet, Want

NOW = 1000.0


def test_a_closed_set_starts_nothing() -> None:
    sessions = SessionSet(SessionLimits())
    sessions.close(NOW)
    for want in (Want.START, Want.RESTART):
        sessions.ask(NOW, Ask(1, "a", NOW + 9, want))
        (refused,) = sessions.decide(NOW)
        assert isinstance(refused, Refuse)
        assert (refused.session, refused.refusal) == ("a", Refusal.CLOSING)


def test_what_is_told_of_what_is_not_there_changes_nothing() -> None:
    sessions = SessionSet(SessionLimits())
    sessions.ended(NOW, 7)
    sessions.succeeded(NOW, 7)
    sessions.used(NOW, "a", NOW)
    sessions.works_for_others(NOW, "a", busy=True)
    assert sessions.decide(NOW) == ()
