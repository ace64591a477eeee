"""The set of sessions, case by case: crashes, failed starts, want of descriptors, memory."""

from __future__ import annotations

import pytest

from policy_room import NOW, Room
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions.session_events import Death, FailureKind, Fault, Refusal, StartCause, WaitsFor
from supervisord_py.process.spec import Reason

# -- deaths and failed starts ------------------------------------------------------------------------------------------


def test_a_crash_while_idle_is_made_good_once_by_itself() -> None:
    room = Room()
    serial = room.idle()
    assert room.send(ev.Died("a", serial)) == (ev.Stop("a", serial, None),)
    assert room.send(ev.Gone("a", serial)) == (ev.Start("a", 2, StartCause.RESTARTED),)
    assert room.standing().restarts == 1
    room.send(ev.BecameReady("a", 2))
    assert room.send(ev.Died("a", 2, problem={"detail": "x"})) == (ev.Stop("a", 2, None),)
    assert room.send(ev.Gone("a", 2)) == ()
    assert room.standing().state is SessionState.FAILED


def test_a_crash_in_a_cell_is_told_and_the_next_in_line_gets_the_new_kernel() -> None:
    room = Room()
    ticket, serial = room.busy()
    room.ask()
    assert room.send(ev.Died("a", serial)) == (
        ev.Lose(ticket, "a", serial, None),
        ev.Stop("a", serial, None),
        ev.Placed(2, "a", 1, WaitsFor.STOP),
    )
    room.send(ev.Gone("a", serial))
    assert room.send(ev.BecameReady("a", 2)) == (ev.Run(2, "a", 2, cold=True),)


def test_a_second_crash_without_a_success_between_is_a_hard_failure_for_all_who_wait() -> None:
    room = Room()
    _, serial = room.busy()
    room.ask()
    room.ask()
    room.send(ev.Died("a", serial))
    room.send(ev.Gone("a", serial))
    room.send(ev.BecameReady("a", 2))
    found = room.send(ev.Died("a", 2, problem={"kind": "kernel_gone"}))
    failure = ev.Failure(FailureKind.DEATHS, 2, NOW, 2, {"kind": "kernel_gone"})
    assert found == (
        ev.Lose(2, "a", 2, None),
        ev.Stop("a", 2, None),
        ev.Refuse(3, "a", Refusal.HARD_FAILURE, 1.0, WaitsFor.TURN, failure),
    )
    assert room.ask() == (ev.Refuse(4, "a", Refusal.HARD_FAILURE, 1.0, None, failure),)
    room.send(ev.Gone("a", 2))
    assert room.ask() == (ev.Refuse(5, "a", Refusal.HARD_FAILURE, 1.0, None, failure),)


def test_a_success_in_between_makes_the_next_crash_the_first_again() -> None:
    room = Room()
    serial = room.idle()
    for _ in range(5):
        room.send(ev.Died("a", serial))
        start = room.send(ev.Gone("a", serial))[0]
        assert isinstance(start, ev.Start)
        serial = start.serial
        room.send(ev.BecameReady("a", serial))
        room.idle()


def test_deaths_count_across_an_eviction() -> None:
    room = Room(idle_seconds=10.0)
    serial = room.idle()
    room.send(ev.Died("a", serial))
    room.send(ev.Gone("a", serial))
    room.send(ev.BecameReady("a", 2))
    room.now += 10
    room.send(ev.TimePassed())
    room.send(ev.Gone("a", 2))
    _, serial = room.busy()
    room.send(ev.Died("a", serial))
    assert room.standing().failure is not None


@pytest.mark.parametrize("ask", ["start", "restart", "reset"])
def test_a_hard_failure_stands_until_somebody_asks(ask: str) -> None:
    room = Room()
    room.fail_starts(3)
    assert room.ask()[0] == ev.Refuse(
        4, "a", Refusal.HARD_FAILURE, 1.0, None, ev.Failure(FailureKind.STARTS, 3, NOW, 3, {"detail": "no such file"})
    )
    found = room.ask(reset=True) if ask == "reset" else getattr(room, ask)()
    cause = StartCause.CALL if ask == "reset" else StartCause.ASKED
    assert found[0] == ev.Start("a", 4, cause)
    assert room.standing().failure is None
    room.send(ev.StartFailed("a", 4))
    room.send(ev.Gone("a", 4))
    assert room.ask()[0] == ev.Start("a", 5, StartCause.CALL), "the count begins anew"


def test_a_reset_in_line_outlives_a_hard_failure_and_so_do_those_behind_it() -> None:
    room = Room()
    _, serial = room.busy()
    room.ask()
    room.ask()
    room.ask(reset=True)
    room.ask()
    room.send(ev.Died("a", serial))
    room.send(ev.Gone("a", serial))
    room.send(ev.BecameReady("a", 2))
    found = room.send(ev.Died("a", 2))
    assert [it.ticket for it in found if isinstance(it, ev.Refuse)] == [3]
    assert room.send(ev.Gone("a", 2))[0] == ev.Start("a", 3, StartCause.CALL)
    assert room.send(ev.BecameReady("a", 3))[0] == ev.Run(4, "a", 3, cold=True), "a fresh one serves a reset"


def test_a_failed_start_reaches_all_who_wait_and_the_next_call_tries_again() -> None:
    room = Room()
    room.ask()
    room.ask()
    room.start()
    assert room.send(ev.StartFailed("a", 1)) == (
        ev.Fail(1, "a", 1),
        ev.Fail(2, "a", 1),
        ev.Fail(3, "a", 1),
        ev.Stop("a", 1, None),
    )
    assert room.ask() == (ev.Placed(4, "a", 1, WaitsFor.STOP),)
    assert room.send(ev.Gone("a", 1))[0] == ev.Start("a", 2, StartCause.CALL)


def test_failed_starts_count_only_within_their_window() -> None:
    room = Room()
    room.fail_starts(2)
    room.now += 60
    room.send(ev.TimePassed())
    assert room.set.standing("a") is None, "nothing to remember any more"
    room.fail_starts(2)
    assert room.standing().failure is None
    room.fail_starts(1)
    assert room.standing().failure is not None


def test_a_start_that_succeeds_clears_failed_ones() -> None:
    room = Room()
    room.fail_starts(2)
    serial = room.idle()
    room.send(ev.StopAsked("a", Reason.STOPPED))
    room.send(ev.Gone("a", serial))
    room.fail_starts(2)
    assert room.standing().failure is None


def test_a_start_that_fails_by_no_fault_of_its_own_is_not_counted() -> None:
    room = Room()
    for serial in range(1, 6):
        room.ask()
        assert ev.Fail(serial, "a", serial) in room.send(ev.StartFailed("a", serial, Fault.FOREIGN))
        room.send(ev.Gone("a", serial))
    assert room.set.standing("a") is None


@pytest.mark.parametrize("how", [Death.EXITED, Death.KILLED])
def test_an_end_that_is_no_crash_waits_for_the_next_call(how: Death) -> None:
    room = Room()
    for _ in range(3):
        ticket, serial = room.busy()
        assert room.send(ev.Died("a", serial, how)) == (
            ev.Lose(ticket, "a", serial, None),
            ev.Stop("a", serial, None),
        )
        assert room.send(ev.Gone("a", serial)) == ()
        assert room.set.standing("a") is None


@pytest.mark.parametrize(("how", "is_failed"), [(Death.EXITED, False), (Death.KILLED, True)])
def test_exit_forgives_an_earlier_crash_and_a_kill_does_not(how: Death, is_failed: bool) -> None:
    room = Room()
    serial = room.idle()
    room.send(ev.Died("a", serial))
    room.send(ev.Gone("a", serial))
    room.send(ev.BecameReady("a", 2))
    room.send(ev.Died("a", 2, how))
    room.send(ev.Gone("a", 2))
    _, serial = room.busy()
    room.send(ev.Died("a", serial))
    assert (room.standing().failure is not None) is is_failed


def test_a_restart_by_itself_is_at_nobodys_cost() -> None:
    room = Room(max_sessions=1)
    _, serial = room.busy("a")
    room.ask("b")
    found = room.send(ev.Died("a", serial))
    assert ev.Start("b", 2, StartCause.CALL) in found
    assert room.send(ev.Gone("a", serial)) == ()
    assert room.standing("a").state is SessionState.STOPPED
    room.send(ev.BecameReady("b", 2))
    room.send(ev.Ended(2))
    assert ev.Start("a", 3, StartCause.CALL) in room.ask("a")


def test_a_restart_by_itself_takes_no_place_that_is_kept_for_another() -> None:
    room = Room(max_sessions=2)
    first, second = room.idle("a"), room.idle("b")
    room.send(ev.Died("b", second))
    room.ask("a", reset=True)
    room.send(ev.Bounded(SessionLimits(max_sessions=1)))
    assert room.send(ev.Gone("b", second)) == ()
    assert ev.Start("a", 3, StartCause.REPLACED) in room.send(ev.Gone("a", first))


def test_a_new_kernel_is_at_nobodys_work_and_of_no_size() -> None:
    room = Room()
    serial = room.idle()
    room.send(ev.ForeignBusy("a", busy=True))
    room.send(ev.RecycleAsked("a", serial))
    room.send(ev.Died("a", serial))
    room.send(ev.Gone("a", serial))
    assert room.send(ev.BecameReady("a", 2)) == ()
    assert room.standing().state is SessionState.IDLE


def test_a_success_of_a_call_that_is_over_means_nothing() -> None:
    room = Room()
    serial = room.idle()
    room.send(ev.Died("a", serial))
    room.send(ev.Succeeded(1))
    room.send(ev.Gone("a", serial))
    room.ask()
    room.send(ev.Succeeded(2))
    room.send(ev.BecameReady("a", 2))
    room.send(ev.Died("a", 2))
    assert room.standing().failure is not None


# -- want of descriptors -----------------------------------------------------------------------------------------------


def test_want_of_descriptors_costs_one_idle_session_and_one_retry() -> None:
    room = Room()
    oldest = room.idle("a")
    room.now += 1
    room.idle("b")
    room.busy("c")
    room.ask("d")
    assert room.send(ev.StartFailed("d", 4, Fault.NO_DESCRIPTORS)) == (
        ev.Stop("a", oldest, Reason.EVICTED_LRU),
        ev.Stop("d", 4, None),
        ev.Placed(4, "d", 1, WaitsFor.STOP),
    )
    assert room.send(ev.Gone("d", 4)) == (), "not before the victim has given its descriptors back"
    assert room.standing("d").state is SessionState.STOPPED
    assert room.send(ev.Gone("a", oldest)) == (
        ev.Start("d", 5, StartCause.RETRIED),
        ev.Placed(4, "d", 1, WaitsFor.START),
    )
    assert room.send(ev.StartFailed("d", 5, Fault.NO_DESCRIPTORS)) == (ev.Fail(4, "d", 5), ev.Stop("d", 5, None))
    assert room.send(ev.Gone("d", 5)) == ()
    assert [it.session for it in room.standings()] == ["b", "c"], "no other session was touched, and none failed"


def test_want_of_descriptors_with_nobody_idle_fails_at_once() -> None:
    room = Room()
    room.busy("a")
    room.ask("b")
    assert room.send(ev.StartFailed("b", 2, Fault.NO_DESCRIPTORS)) == (ev.Fail(2, "b", 2), ev.Stop("b", 2, None))


def test_a_retry_that_comes_up_may_be_retried_another_time() -> None:
    room = Room()
    first = room.idle("a")
    room.ask("b")
    room.send(ev.StartFailed("b", 2, Fault.NO_DESCRIPTORS))
    room.send(ev.Gone("a", first))
    assert ev.Start("b", 3, StartCause.RETRIED) in room.send(ev.Gone("b", 2))
    room.send(ev.BecameReady("b", 3))
    room.send(ev.Died("b", 3, Death.KILLED))
    room.send(ev.Gone("b", 3))
    other = room.idle("c")
    room.ask("b")
    assert ev.Stop("c", other, Reason.EVICTED_LRU) in room.send(ev.StartFailed("b", 5, Fault.NO_DESCRIPTORS))


def test_a_retry_that_failed_does_not_take_the_next_start_its_own() -> None:
    room = Room()
    serial = room.idle("b")
    room.send(ev.Died("b", serial))  # so that the session is remembered all the while
    room.send(ev.Gone("b", serial))
    first, second = room.idle("a"), room.idle("c")
    room.send(ev.StartFailed("b", 2, Fault.NO_DESCRIPTORS))
    room.send(ev.Gone("b", 2))
    room.send(ev.Gone("a", first))
    room.send(ev.StartFailed("b", 5, Fault.NO_DESCRIPTORS))
    room.send(ev.Gone("b", 5))
    assert room.ask("b")[0] == ev.Start("b", 6, StartCause.CALL)
    assert ev.Stop("c", second, Reason.EVICTED_LRU) in room.send(ev.StartFailed("b", 6, Fault.NO_DESCRIPTORS))


def test_a_stop_ends_a_retry_that_waits() -> None:
    room = Room()
    first = room.idle("a")
    room.ask("b")
    room.send(ev.StartFailed("b", 2, Fault.NO_DESCRIPTORS))
    room.send(ev.Gone("b", 2))
    assert room.send(ev.StopAsked("b", Reason.STOPPED)) == (ev.Refuse(2, "b", Refusal.STOPPED, 1.0, WaitsFor.STOP),)
    assert room.send(ev.Gone("a", first)) == ()


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_large_kernel_is_replaced_after_the_call_and_before_the_next() -> None:
    room = Room()
    ticket, serial = room.busy()
    room.ask()
    assert room.send(ev.RecycleAsked("a", serial)) == ()
    assert room.send(ev.Ended(ticket)) == (
        ev.Stop("a", serial, Reason.MEMORY_LIMIT),
        ev.Placed(2, "a", 1, WaitsFor.STOP),
    )
    assert room.send(ev.Gone("a", serial))[0] == ev.Start("a", 2, StartCause.RECYCLED)
    assert room.send(ev.BecameReady("a", 2)) == (ev.Run(2, "a", 2, cold=True),)


def test_a_large_idle_kernel_is_replaced_at_once_and_one_at_foreign_work_later() -> None:
    room = Room()
    serial = room.idle()
    room.send(ev.ForeignBusy("a", busy=True))
    assert room.send(ev.RecycleAsked("a", serial)) == ()
    assert room.send(ev.RecycleAsked("a", serial + 1)) == ()
    assert room.send(ev.ForeignBusy("a", busy=False)) == (ev.Stop("a", serial, Reason.MEMORY_LIMIT),)
    assert room.send(ev.Gone("a", serial)) == (ev.Start("a", 2, StartCause.RECYCLED),)
