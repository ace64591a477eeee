"""The set of sessions, case by case: lines, ages, places, deadlines, and what is adopted."""

from __future__ import annotations

import math

import pytest

from policy_room import NOW, Room
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions.session_events import Fault, Refusal, StartCause, WaitsFor
from supervisord_py.process.spec import Reason

# -- the ordinary life -------------------------------------------------------------------------------------------------


def test_a_first_call_starts_the_kernel_and_gets_it_cold() -> None:
    room = Room()
    assert room.ask() == (ev.Start("a", 1, StartCause.CALL), ev.Placed(1, "a", 1, WaitsFor.START))
    assert room.standing().state is SessionState.STARTING
    assert room.send(ev.BecameReady("a", 1)) == (ev.Run(1, "a", 1, cold=True),)
    assert room.standing().state is SessionState.BUSY
    assert room.send(ev.Ended(1)) == ()
    assert room.standing().state is SessionState.IDLE


def test_the_next_call_gets_the_kernel_warm() -> None:
    room = Room()
    serial = room.idle()
    assert room.ask() == (ev.Run(2, "a", serial, cold=False),)


def test_calls_of_one_session_run_in_order_and_hear_each_change_of_their_place() -> None:
    room = Room()
    first, serial = room.busy()
    assert room.ask() == (ev.Placed(2, "a", 1, WaitsFor.TURN),)
    assert room.ask() == (ev.Placed(3, "a", 2, WaitsFor.TURN),)
    assert room.standing().queued == 2
    assert room.send(ev.Ended(first)) == (ev.Run(2, "a", serial, cold=False), ev.Placed(3, "a", 1, WaitsFor.TURN))
    assert room.send(ev.GaveUp(3)) == ()
    assert room.send(ev.Ended(2)) == ()


def test_sessions_run_beside_each_other() -> None:
    room = Room()
    room.busy("a")
    room.busy("b")
    assert {it.session: it.state for it in room.standings()} == {"a": SessionState.BUSY, "b": SessionState.BUSY}


def test_a_line_is_bounded_beyond_the_call_that_runs() -> None:
    room = Room(queue_max=1)
    room.busy()
    assert room.ask() == (ev.Placed(2, "a", 1, WaitsFor.TURN),)
    assert room.ask() == (ev.Refuse(3, "a", Refusal.QUEUE_FULL, 1.0),)


def test_no_line_at_all_still_lets_a_kernel_start_for_one() -> None:
    room = Room(queue_max=0, max_sessions=1)
    room.ask()
    assert room.ask() == (ev.Refuse(2, "a", Refusal.QUEUE_FULL, 1.0),)
    room.send(ev.BecameReady("a", 1))
    assert room.ask("b") == (ev.Refuse(3, "b", Refusal.QUEUE_FULL, 1.0),), "a place is waited for in line, too"
    assert room.set.standing("b") is None


def test_who_gives_up_a_running_call_sent_nothing_and_frees_the_kernel() -> None:
    room = Room()
    ticket, serial = room.busy()
    room.ask()
    assert room.send(ev.GaveUp(ticket)) == (ev.Run(2, "a", serial, cold=False),)
    assert room.send(ev.GaveUp(77)) == ()


# -- age and places ----------------------------------------------------------------------------------------------------


def test_age_is_exact_and_counts_from_the_last_end() -> None:
    room = Room(idle_seconds=300.0)
    serial = room.idle()
    assert room.set.next_deadline() == NOW + 300
    room.now += 299.999
    assert room.send(ev.TimePassed()) == ()
    ticket, _ = room.busy()
    assert room.set.next_deadline() is None
    room.now += 5000
    room.send(ev.Ended(ticket))
    room.now += 300
    assert room.send(ev.TimePassed()) == (ev.Stop("a", serial, Reason.EVICTED_TTL),)
    assert room.standing().stopping_for is Reason.EVICTED_TTL
    assert room.send(ev.Gone("a", serial)) == ()
    assert room.set.standing("a") is None, "nothing to remember"


def test_without_an_age_nothing_is_ever_due() -> None:
    room = Room(idle_seconds=math.inf)
    room.idle()
    assert room.set.next_deadline() is None


def test_foreign_use_counts_as_use_and_is_never_in_the_future() -> None:
    room = Room(idle_seconds=100.0)
    room.idle()
    room.now += 50
    room.send(ev.Used("a", NOW + 20))
    assert room.set.next_deadline() == NOW + 120
    room.send(ev.Used("a", NOW + 10))
    assert room.set.next_deadline() == NOW + 120, "told late, does not turn the clock back"
    room.send(ev.Used("a", NOW + 9999))
    assert room.set.next_deadline() == NOW + 150
    assert room.send(ev.Used("nobody", NOW)) == ()


def test_foreign_work_protects_from_age_and_from_eviction() -> None:
    room = Room(idle_seconds=100.0, max_sessions=1)
    serial = room.idle()
    room.send(ev.ForeignBusy("a", busy=True))
    assert room.standing().state is SessionState.BUSY
    room.now += 1000
    assert room.send(ev.TimePassed()) == ()
    assert room.ask("b", patience=1000.0) == (ev.Placed(2, "b", 1, WaitsFor.PLACE),)
    room.send(ev.GaveUp(2))
    assert room.send(ev.ForeignBusy("a", busy=False)) == ()
    assert room.set.next_deadline() == room.now + 100
    assert room.send(ev.ForeignBusy("a", busy=False)) == ()
    room.now += 100
    assert room.send(ev.TimePassed()) == (ev.Stop("a", serial, Reason.EVICTED_TTL),)


def test_the_victim_is_the_least_recently_used_and_goes_beside_the_start() -> None:
    room = Room(max_sessions=2)
    first = room.idle("a")
    room.now += 1
    room.idle("b")
    assert room.ask("c") == (
        ev.Stop("a", first, Reason.EVICTED_LRU),
        ev.Start("c", 3, StartCause.CALL),
        ev.Placed(3, "c", 1, WaitsFor.START),
    )


def test_starting_and_queued_ones_are_never_evicted() -> None:
    room = Room(max_sessions=2)
    ticket, _ = room.busy("a")
    room.ask("a")
    room.start("b")
    room.send(ev.GaveUp(room.ticket))
    assert room.ask("c") == (ev.Placed(4, "c", 1, WaitsFor.PLACE),), "one runs, one starts though nobody waits for it"
    assert room.send(ev.Ended(ticket)) == (ev.Run(2, "a", 1, cold=False),)
    assert room.send(ev.BecameReady("b", 2)) == (
        ev.Stop("b", 2, Reason.EVICTED_LRU),
        ev.Start("c", 3, StartCause.CALL),
        ev.Placed(4, "c", 1, WaitsFor.START),
    )


def test_places_go_to_who_came_first_and_positions_count_those_ahead() -> None:
    room = Room(max_sessions=1)
    ticket, serial = room.busy("a")
    assert room.ask("b") == (ev.Placed(2, "b", 1, WaitsFor.PLACE),)
    assert room.ask("c") == (ev.Placed(3, "c", 2, WaitsFor.PLACE),)
    assert room.ask("b") == (ev.Placed(4, "b", 2, WaitsFor.TURN),)
    assert room.send(ev.Ended(ticket)) == (
        ev.Stop("a", serial, Reason.EVICTED_LRU),
        ev.Start("b", 2, StartCause.CALL),
        ev.Placed(2, "b", 1, WaitsFor.START),
        ev.Placed(3, "c", 1, WaitsFor.PLACE),
    )


def test_kernels_on_their_way_out_are_bounded_too() -> None:
    room = Room(max_sessions=1)
    room.idle("a")
    room.ask("b")
    room.send(ev.BecameReady("b", 2))
    room.send(ev.Ended(2))
    assert room.ask("c") == (ev.Placed(3, "c", 1, WaitsFor.PLACE),)
    assert ev.Start("c", 3, StartCause.CALL) in room.send(ev.Gone("a", 1))


def test_one_between_two_kernels_keeps_its_turn_for_a_place() -> None:
    room = Room(max_sessions=1)
    ticket, serial = room.busy("a")
    room.ask("a", reset=True)
    room.ask("b")
    assert room.send(ev.Ended(ticket)) == (
        ev.Stop("a", serial, Reason.REPLACED),
        ev.Placed(2, "a", 1, WaitsFor.STOP),
    )
    assert ev.Start("a", 2, StartCause.REPLACED) in room.send(ev.Gone("a", serial))


def test_a_place_that_a_reset_leaves_goes_to_one_who_came_earlier() -> None:
    room = Room(max_sessions=1)
    ticket, serial = room.busy("a")
    room.ask("b")
    room.ask("a", reset=True)
    assert ev.Start("b", 2, StartCause.CALL) in room.send(ev.Ended(ticket))
    assert room.send(ev.Gone("a", serial)) == (ev.Placed(3, "a", 1, WaitsFor.PLACE),)


def test_a_lower_limit_evicts_at_once() -> None:
    room = Room()
    first = room.idle("a")
    room.now += 1
    room.idle("b")
    assert room.send(ev.Bounded(SessionLimits(max_sessions=1))) == (ev.Stop("a", first, Reason.EVICTED_LRU),)


# -- time of who waits -------------------------------------------------------------------------------------------------


def test_a_deadline_tells_what_was_waited_for() -> None:
    room = Room(max_sessions=1)
    room.ask("a", patience=1.0)
    room.ask("a", patience=1.0)
    room.ask("b", patience=1.0)
    assert room.set.next_deadline() == NOW + 1
    room.now += 1
    assert room.send(ev.TimePassed()) == (
        ev.Refuse(1, "a", Refusal.DEADLINE, 1.0, WaitsFor.START),
        ev.Refuse(2, "a", Refusal.DEADLINE, 1.0, WaitsFor.TURN),
        ev.Refuse(3, "b", Refusal.DEADLINE, 1.0, WaitsFor.PLACE),
        ev.Stop("a", 1, Reason.CANCELLED),
    )
    assert room.set.next_deadline() is None


def test_a_start_ends_with_the_last_call_that_waits_for_it_and_gives_its_place_back() -> None:
    room = Room(max_sessions=1)
    room.ask("a")
    room.ask("a")
    room.ask("b")
    assert room.send(ev.GaveUp(1)) == (ev.Placed(2, "a", 1, WaitsFor.START),)
    assert room.send(ev.GaveUp(2)) == (
        ev.Stop("a", 1, Reason.CANCELLED),
        ev.Start("b", 2, StartCause.CALL),
        ev.Placed(3, "b", 1, WaitsFor.START),
    )
    assert room.send(ev.BecameReady("a", 1)) == (), "too late"


def test_a_call_after_a_start_that_was_given_up_has_one_of_its_own() -> None:
    room = Room()
    room.ask()
    room.send(ev.GaveUp(1))
    assert room.ask() == (ev.Placed(2, "a", 1, WaitsFor.STOP),)
    assert room.send(ev.Gone("a", 1)) == (ev.Start("a", 2, StartCause.CALL), ev.Placed(2, "a", 1, WaitsFor.START))


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_start_that_was_asked_for_goes_on_when_nobody_waits_any_more(*, asks_first: bool) -> None:
    room = Room()
    for ask in (room.start, room.ask) if asks_first else (room.ask, room.start):
        ask()
    assert room.send(ev.GaveUp(1)) == ()
    assert room.send(ev.GaveUp(2)) == ()
    assert room.standing().state is SessionState.STARTING


def test_a_kernel_that_comes_back_by_itself_does_not_end_with_a_call_that_came_meanwhile() -> None:
    room = Room()
    serial = room.idle()
    room.send(ev.Died("a", serial))
    assert room.send(ev.Gone("a", serial)) == (ev.Start("a", 2, StartCause.RESTARTED),)
    room.ask()
    assert room.send(ev.GaveUp(room.ticket)) == ()


def test_a_second_try_is_not_made_for_nobody() -> None:
    room = Room(max_sessions=2)
    victim = room.idle("b")
    room.ask("a")
    room.send(ev.StartFailed("a", 2, Fault.NO_DESCRIPTORS))
    assert room.send(ev.GaveUp(room.ticket)) == ()
    assert room.send(ev.Gone("a", 2)) == ()
    assert room.send(ev.Gone("b", victim)) == ()
    assert room.set.standing("a") is None


def test_a_running_call_has_no_deadline_here() -> None:
    room = Room()
    room.busy()
    assert room.set.next_deadline() is None


# -- after a restart of the control plane ------------------------------------------------------------------------------


def test_adopted_kernels_count_and_age() -> None:
    room = Room(idle_seconds=100.0)
    serial = room.set.reserve_serial()
    assert room.send(ev.Adopted("a", serial, NOW - 90)) == ()
    assert room.set.next_deadline() == NOW + 10
    assert room.ask() == (ev.Run(1, "a", serial, cold=False),)


def test_an_adopted_cell_in_flight_keeps_its_session_busy_until_it_ends() -> None:
    room = Room()
    serial = room.set.reserve_serial()
    room.ticket = 1
    room.send(ev.Adopted("a", serial, NOW, ticket=1))
    assert room.ask() == (ev.Placed(2, "a", 1, WaitsFor.TURN),)
    assert room.ask(caller=serial) == (ev.Refuse(3, "a", Refusal.OWN_SESSION, 1.0),)
    assert room.send(ev.Ended(1)) == (ev.Run(2, "a", serial, cold=False),)


def test_an_adopted_kernel_may_have_to_show_first_that_it_answers() -> None:
    room = Room()
    serial = room.set.reserve_serial()
    room.send(ev.Adopted("a", serial, NOW, is_ready=False))
    assert room.ask() == (ev.Placed(1, "a", 1, WaitsFor.START),)
    assert room.send(ev.BecameReady("a", serial)) == (ev.Run(1, "a", serial, cold=True),)


def test_too_many_adopted_kernels_are_reduced_to_the_limit() -> None:
    room = Room(max_sessions=1)
    first, second = room.set.reserve_serial(), room.set.reserve_serial()
    room.send(ev.Adopted("a", first, NOW - 10))
    assert room.send(ev.Adopted("b", second, NOW - 20)) == (ev.Stop("b", second, Reason.EVICTED_LRU),)
    room.send(ev.Adopted("one", room.set.reserve_serial(), NOW, per_call=True))
    assert room.standing("one").stopping_for is Reason.STOPPED


def test_an_adopted_kernel_that_ran_cells_is_replaced_by_a_reset() -> None:
    room = Room()
    serial = room.set.reserve_serial()
    room.send(ev.Adopted("a", serial, NOW))
    assert room.ask(reset=True)[0] == ev.Stop("a", serial, Reason.REPLACED)


# -- word of what is not there -----------------------------------------------------------------------------------------


def test_word_of_what_is_not_there_changes_nothing() -> None:
    room = Room()
    late = (ev.BecameReady("a", 1), ev.StartFailed("a", 1), ev.Died("a", 1), ev.Gone("a", 1), ev.RecycleAsked("a", 1))
    for event in (*late, ev.ForeignBusy("a", busy=True), ev.Ended(5), ev.Succeeded(5), ev.TimePassed()):
        assert room.send(event) == ()
    serial = room.idle()
    for event in (ev.BecameReady("a", 9), ev.StartFailed("a", serial), ev.Died("a", 9), ev.Gone("a", serial)):
        assert room.send(event) == ()
    assert room.standing().state is SessionState.IDLE
