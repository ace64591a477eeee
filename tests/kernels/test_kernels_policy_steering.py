"""The set of sessions, case by case: reset, start, restart, stop; kernels of one call; calls from cells."""

from __future__ import annotations

import pytest

from policy_room import NOW, Room
from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions.session_events import Refusal, StartCause, WaitsFor
from supervisord_py.process.spec import Reason

# -- reset, start, restart, stop ---------------------------------------------------------------------------------------


def test_a_reset_replaces_the_kernel_before_the_call() -> None:
    room = Room()
    serial = room.idle()
    assert room.ask(reset=True) == (ev.Stop("a", serial, Reason.REPLACED), ev.Placed(2, "a", 1, WaitsFor.STOP))
    assert room.send(ev.Gone("a", serial)) == (
        ev.Start("a", 2, StartCause.REPLACED),
        ev.Placed(2, "a", 1, WaitsFor.START),
    )
    assert room.send(ev.BecameReady("a", 2)) == (ev.Run(2, "a", 2, cold=True),)


@pytest.mark.parametrize("use", [None, ev.Used("a", NOW), ev.ForeignBusy("a", busy=True)])
def test_a_kernel_that_ran_nothing_is_not_replaced_by_a_reset(use: ev.Event | None) -> None:
    room = Room()
    room.start()
    room.send(ev.BecameReady("a", 1))
    if use is not None:
        room.send(use)
    expected = (ev.Stop("a", 1, Reason.REPLACED), ev.Placed(2, "a", 1, WaitsFor.STOP))
    assert room.ask(reset=True) == ((ev.Run(2, "a", 1, cold=False),) if use is None else expected)


def test_a_start_that_is_asked_for_is_answered_when_it_is_up() -> None:
    room = Room()
    assert room.start() == (ev.Start("a", 1, StartCause.ASKED), ev.Placed(1, "a", 1, WaitsFor.START))
    assert room.start() == (ev.Placed(2, "a", 1, WaitsFor.START),)
    assert room.send(ev.BecameReady("a", 1)) == (ev.Up(1, "a", 1, cold=True), ev.Up(2, "a", 1, cold=True))
    assert room.start() == (ev.Up(3, "a", 1, cold=False),)
    room.busy()
    assert room.start() == (ev.Up(5, "a", 1, cold=False),), "also while it is busy"


def test_a_restart_takes_the_kernel_from_a_running_call_and_keeps_the_line() -> None:
    room = Room()
    ticket, serial = room.busy()
    room.ask()
    assert room.restart() == (
        ev.Lose(ticket, "a", serial, Reason.REPLACED),
        ev.Stop("a", serial, Reason.REPLACED),
        ev.Placed(2, "a", 1, WaitsFor.STOP),
        ev.Placed(3, "a", 1, WaitsFor.STOP),
    )
    assert room.send(ev.Ended(ticket)) == (), "a call that was told so is over"
    assert ev.Start("a", 2, StartCause.REPLACED) in room.send(ev.Gone("a", serial))
    assert room.send(ev.BecameReady("a", 2)) == (ev.Up(3, "a", 2, cold=True), ev.Run(2, "a", 2, cold=True))
    assert room.standing().restarts == 0, "it did not come back by itself"


def test_a_restart_of_nothing_is_a_start_and_of_a_start_a_new_one() -> None:
    room = Room()
    assert room.restart()[0] == ev.Start("a", 1, StartCause.ASKED)
    assert room.restart()[0] == ev.Stop("a", 1, Reason.REPLACED)
    assert room.send(ev.BecameReady("a", 1)) == (), "too late"
    assert room.send(ev.Gone("a", 1))[0] == ev.Start("a", 2, StartCause.REPLACED)


def test_a_restart_goes_on_though_nobody_waits_for_it_any_more() -> None:
    room = Room()
    serial = room.idle()
    room.restart()
    room.send(ev.GaveUp(room.ticket))
    assert room.send(ev.Gone("a", serial)) == (ev.Start("a", 2, StartCause.REPLACED),)


def test_a_stop_loses_the_running_call_and_refuses_who_waits() -> None:
    room = Room()
    ticket, serial = room.busy()
    room.ask()
    assert room.send(ev.StopAsked("a", Reason.STOPPED)) == (
        ev.Refuse(2, "a", Refusal.STOPPED, 1.0, WaitsFor.TURN),
        ev.Lose(ticket, "a", serial, Reason.STOPPED),
        ev.Stop("a", serial, Reason.STOPPED),
    )
    assert room.send(ev.StopAsked("a", Reason.STOPPED)) == ()
    assert room.standing().state is SessionState.STOPPING
    assert room.send(ev.Gone("a", serial)) == ()
    assert room.send(ev.StopAsked("nobody", Reason.STOPPED)) == ()


def test_a_stop_ends_a_restart_under_way() -> None:
    room = Room()
    serial = room.idle()
    room.restart()
    assert room.send(ev.StopAsked("a", Reason.STOPPED)) == (ev.Refuse(2, "a", Refusal.STOPPED, 1.0, WaitsFor.STOP),)
    assert room.send(ev.Gone("a", serial)) == ()


def test_a_closed_set_refuses_and_stops_everything() -> None:
    room = Room()
    ticket, serial = room.busy("a")
    room.ask("b")
    assert room.send(ev.Closed()) == (
        ev.Lose(ticket, "a", serial, Reason.SHUTDOWN),
        ev.Stop("a", serial, Reason.SHUTDOWN),
        ev.Refuse(2, "b", Refusal.CLOSING, 1.0, WaitsFor.START),
        ev.Stop("b", 2, Reason.SHUTDOWN),
    )
    assert room.ask("c", reset=True) == (ev.Refuse(3, "c", Refusal.CLOSING, 1.0),)
    assert room.start("c") == (ev.Refuse(4, "c", Refusal.CLOSING, 1.0),)
    assert room.send(ev.Died("a", serial)) == ()
    assert room.send(ev.Gone("a", serial)) == ()


# -- calls of their own kernel -----------------------------------------------------------------------------------------


def test_a_kernel_of_one_call_ends_with_it() -> None:
    room = Room()
    room.ask("one", per_call=True)
    room.send(ev.BecameReady("one", 1))
    assert room.standing("one").per_call
    assert room.send(ev.Ended(1)) == (ev.Stop("one", 1, Reason.STOPPED),)
    assert room.send(ev.Gone("one", 1)) == ()
    assert room.standings() == []


def test_a_kernel_of_one_call_that_gave_up_or_crashed_is_not_kept() -> None:
    room = Room()
    room.ask("one", per_call=True)
    assert room.send(ev.GaveUp(1)) == (ev.Stop("one", 1, Reason.STOPPED),)
    room.send(ev.Gone("one", 1))
    room.ask("two", per_call=True)
    room.send(ev.BecameReady("two", 2))
    assert room.send(ev.Died("two", 2)) == (ev.Lose(2, "two", 2, None), ev.Stop("two", 2, None))
    assert room.send(ev.Gone("two", 2)) == ()
    assert room.standings() == []


# -- calls from cells --------------------------------------------------------------------------------------------------


def test_a_call_from_a_cell_to_its_own_session_is_refused() -> None:
    room = Room()
    _, serial = room.busy()
    assert room.ask(caller=serial) == (ev.Refuse(2, "a", Refusal.OWN_SESSION, 1.0),)
    assert room.ask("b", caller=serial)[0] == ev.Start("b", 2, StartCause.CALL)


def test_a_call_from_what_an_idle_kernel_left_running_is_welcome() -> None:
    room = Room()
    serial = room.idle()
    assert room.ask(caller=serial) == (ev.Run(2, "a", serial, cold=False),)
