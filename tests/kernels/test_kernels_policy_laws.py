"""The set of sessions notices when it contradicts its own laws: each law, broken by hand, is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions import session_laws
from supervisord_py.kernels.sessions.session_events import Failure, FailureKind, Phase, StartCause
from supervisord_py.kernels.sessions.session_laws import LawBrokenError
from supervisord_py.kernels.sessions.session_set import SessionSet
from supervisord_py.kernels.sessions.session_slot import Running, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMITS = SessionLimits(max_sessions=1)
FAILURE = Failure(FailureKind.DEATHS, 2, 1.0, 1)


def asked(ticket: int, session: str = "a") -> ev.Asked:
    return ev.Asked(ticket, session, 10.0)


def check(*slots: Slot, holders: Mapping[int, Slot] | None = None) -> None:
    known = {slot.session: slot for slot in slots}
    mine = {ticket: slot for slot in slots for ticket in (*slot.line, *slot.askers)}
    mine |= {slot.running.ticket: slot for slot in slots if slot.running}
    session_laws.check(known, mine if holders is None else holders, LIMITS)


@pytest.mark.parametrize(
    ("law", "slots"),
    [
        ("runs without a kernel", [Slot("a", running=Running(1))]),
        ("waits for a free kernel", [Slot("a", Phase.READY, line={1: asked(1)})]),
        ("asks for what is up", [Slot("a", Phase.READY, askers={1: ev.StartAsked(1, "a", 10.0)})]),
        ("waits for a hard failure", [Slot("a", line={1: asked(1)}, failure=FAILURE)]),
        ("failed hard and comes back", [Slot("a", revival=StartCause.RESTARTED, failure=FAILURE)]),
        ("is out of order", [Slot("a", Phase.STARTING, line={2: asked(2), 1: asked(1)})]),
        ("is fresh and used", [Slot("a", Phase.READY, running=Running(1), fresh=True)]),
        ("outlives its only call", [Slot("a", Phase.READY, per_call=True)]),
        ("starts for nobody", [Slot("a", Phase.STARTING)]),
        ("waits for the end of nothing", [Slot("a", after=("b", 1), line={1: asked(1)})]),
        (
            "waits for the end of nothing",
            [Slot("a", after=("b", 1), line={1: asked(1)}), Slot("b", Phase.STOPPING, serial=2)],
        ),
        ("is kept for nothing", [Slot("a")]),
        ("two kernels have one serial", [Slot("a", Phase.STARTING, 1), Slot("b", Phase.STOPPING, 1)]),
        ("too many kernels, and an idle one", [Slot("a", Phase.STARTING, 1), Slot("b", Phase.READY, 2)]),
        ("waits for a place that is there", [Slot("a", line={1: asked(1)})]),
        ("waits for a place that is there", [Slot("a", line={1: asked(1)}), Slot("b", Phase.READY, 1)]),
    ],
)
def test_a_broken_law_is_named_with_the_whole_story(law: str, slots: list[Slot]) -> None:
    with pytest.raises(LawBrokenError, match=law) as caught:
        check(*slots)
    assert all(f"session='{slot.session}'" in str(caught.value) for slot in slots)


def test_a_ticket_that_belongs_nowhere_breaks_a_law() -> None:
    slot = Slot("a", Phase.STARTING)
    with pytest.raises(LawBrokenError, match="tickets are not where they belong"):
        check(slot, holders={7: slot})


@pytest.mark.parametrize(
    "slots",
    [
        [],
        [Slot("a", Phase.READY, 1, running=Running(1)), Slot("b", Phase.STARTING, 2, stays=True)],
        [Slot("a", Phase.STARTING, 1, stays=True), Slot("b", line={1: asked(1)})],
        [Slot("a", Phase.STOPPING, 1), Slot("c", Phase.READY, 2), Slot("b", line={1: asked(1)})],
        [Slot("a", after=("b", 1), line={1: asked(1)}), Slot("b", Phase.STOPPING, 1)],
    ],
)
def test_what_is_lawful_is_accepted(slots: list[Slot]) -> None:
    check(*slots)


def test_the_set_checks_itself() -> None:
    sessions = SessionSet(LIMITS)
    sessions.check()
    sessions.apply(asked(1), 0.0)
    sessions._slots["a"].phase = Phase.READY
    with pytest.raises(LawBrokenError):
        sessions.check()
