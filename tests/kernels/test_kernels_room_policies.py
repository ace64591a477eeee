"""What the room does with calls and sessions, shown with kernels that behave as told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from kernels.fake_backend import FakeBackend, no_descriptors
from kernels.passing_time import PATIENT, PassingTime
from kernels.room_house import eventually, room_house
from supervisord_py.errors import (
    AmbiguousNameError,
    CancelledRunError,
    ConflictError,
    InterruptedRunError,
    InvalidInputError,
    OverloadedError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.kernels.cell import (
    CellDone,
    CellNews,
    CellStarted,
    CellStatus,
    KernelStarting,
    Queued,
    RungClimbed,
    Variables,
)
from supervisord_py.kernels.config import LadderTimes, SessionLimits
from supervisord_py.kernels.exposure import Expose
from supervisord_py.kernels.room_requests import Owner, StartRequest
from supervisord_py.kernels.session import BackendName, SessionState
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.room_house import RoomHouse

SWIFT = LadderTimes(nudge_seconds=0.0, again_seconds=0.02, terminate_seconds=0.04, kill_seconds=0.06)


@pytest.fixture
async def backend() -> FakeBackend:
    """Kernels that behave as told."""
    return FakeBackend()


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, ladder=PATIENT, stop_seconds=0.5) as made:
        yield made


@pytest.fixture
async def passing(monkeypatch: pytest.MonkeyPatch) -> PassingTime:
    """Time passes at a word."""
    return PassingTime(monkeypatch)


def task(work: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


async def running(house: RoomHouse, backend: FakeBackend, *codes: str, **changes: Any) -> asyncio.Task[Any]:
    """Begin a call whose first cell holds, and return when it does."""
    backend.held.clear()
    call = task(house.run(*(codes or ("hold",)), **changes))
    await asyncio.wait_for(backend.held.wait(), 30)
    return call


# -- a call ------------------------------------------------------------------------------------------------------------


async def test_followers_hear_of_each_step_in_order_and_no_output(house: RoomHouse) -> None:
    heard: list[Any] = []
    result = await house.run("say hello", "ok", tell=heard.append)
    kinds = [type(each) for each in heard if not isinstance(each, CellNews)]
    assert kinds == [KernelStarting, CellStarted, CellDone, CellStarted, CellDone]
    assert any(isinstance(each, CellNews) for each in heard)
    assert heard[0].session_id == result.session_id
    started = [each for each in heard if isinstance(each, CellStarted)]
    assert [(each.index, each.code, each.count) for each in started] == [(0, "say hello", 2), (1, "ok", 2)]
    assert {each.session_id for each in started} == {result.session_id}
    assert result.cells[0].text == "hello"


async def test_a_failing_cell_names_itself_and_later_cells_are_not_run(house: RoomHouse, backend: FakeBackend) -> None:
    result = await house.run("ok", "fail", "ok")
    assert [cell.status for cell in result.cells] == [CellStatus.OK, CellStatus.ERROR, CellStatus.ABORTED]
    assert result.message is not None
    assert "Cell 2 of 3" in result.message
    assert result.variables is Variables.KEPT
    assert backend.handle.ran == ["ok", "fail"]


async def test_a_listener_that_raises_changes_nothing(house: RoomHouse) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("listener")

    assert (await house.run("ok", tell=broken)).status is CellStatus.OK


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"cells": ()}, "/cells"),
        ({"cwd": "/nowhere/at/all"}, "/cwd"),
        ({"session": "no good"}, "/name"),
        ({"timeout_seconds": float("inf")}, "/timeout"),
        ({"interpreter": "/nowhere/python"}, "/interpreter"),
    ],
)
async def test_what_cannot_be_is_refused_by_field_before_anything_starts(
    house: RoomHouse, backend: FakeBackend, changes: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        await house.run("ok", **changes)
    assert refused.value.extra["errors"][0]["pointer"] == pointer
    assert backend.starts == []


async def test_a_timeout_outside_the_bounds_is_clamped_and_that_is_told(house: RoomHouse) -> None:
    result = await house.run("ok", timeout_seconds=5000.0)
    assert (result.timeout_seconds, result.clamped) == (600.0, True)
    assert any("600" in notice for notice in result.notices)


async def test_the_time_counts_from_the_arrival_and_covers_the_start(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    backend.gate.clear()
    arrived = asyncio.get_running_loop().time() - 500
    call = task(house.run("ok", timeout_seconds=600.0, arrived_at=arrived))
    await eventually(lambda: backend.starts, "the start")
    await passing.over(house, 100.0)
    with pytest.raises(TimedOutError, match="still starting"):
        await call
    backend.gate.set()
    assert (await house.run("ok")).cold_start_ms is not None


async def test_time_that_is_over_between_cells_leaves_the_rest_unrun(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    call = await running(house, backend, "hold", "ok")
    kernel = backend.handle
    await passing.over(house)
    result = await call
    assert [cell.status for cell in result.cells] == [CellStatus.TIMED_OUT, CellStatus.ABORTED]
    assert kernel.ran == ["hold"]


async def test_a_cell_over_its_time_is_interrupted_and_the_answer_says_that_variables_are_kept(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    heard: list[Any] = []
    call = await running(house, backend, tell=heard.append)
    await passing.over(house)
    result = await call
    assert result.cells[0].status is CellStatus.TIMED_OUT
    assert [step.action for step in result.cells[0].steps] == ["sigint", "nudge"]
    assert result.variables is Variables.KEPT
    assert "variables are kept" in (result.message or "")
    assert [each.step.action for each in heard if isinstance(each, RungClimbed)] == ["sigint", "nudge"]
    assert backend.handle.rungs == ["interrupt"]
    assert (await house.run("ok")).cold_start_ms is None


async def test_a_deaf_cell_costs_the_kernel_and_the_answer_says_so(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    house.reconfigure(ladder=SWIFT)
    call = await running(house, backend, "ok", "deaf", "ok")
    await passing.over(house)
    result = await call
    assert backend.handles[0].rungs == ["interrupt", "interrupt", "terminate"]
    assert [cell.status for cell in result.cells] == [CellStatus.OK, CellStatus.TIMED_OUT, CellStatus.ABORTED]
    assert result.variables is Variables.LOST
    assert result.cells[1].error is not None
    fresh = await house.run("ok")
    assert fresh.cold_start_ms is not None
    assert any("variables are gone" in notice for notice in fresh.notices)
    view = house.room.snapshot(fresh.session_id)[0]
    assert (view.state, view.restarts) == (SessionState.IDLE, 0), "killed by us is no crash"


async def test_what_survives_sigterm_is_killed(house: RoomHouse, backend: FakeBackend, passing: PassingTime) -> None:
    backend.nature.add("term-proof")
    house.reconfigure(ladder=SWIFT)
    call = await running(house, backend, "deaf")
    await passing.over(house)
    result = await call
    assert backend.handles[0].rungs == ["interrupt", "interrupt", "terminate", "kill"]
    assert result.cells[0].steps[-1].action == "sigkill"


async def test_nobody_waits_for_ever_for_what_cannot_be_killed(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    house.reconfigure(ladder=SWIFT)
    call = await running(house, backend, "immortal")
    await passing.over(house)
    result = await call
    assert result.cells[0].status is CellStatus.TIMED_OUT
    assert result.variables is Variables.LOST
    assert backend.handles[0].rungs[-1] == "kill"


# -- cancelling --------------------------------------------------------------------------------------------------------


async def test_a_client_that_goes_away_frees_the_kernel_by_the_ladder(house: RoomHouse, backend: FakeBackend) -> None:
    call = await running(house, backend, "hold", "ok")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    after = await house.run("ok")
    assert backend.handle.rungs == ["interrupt"]
    assert backend.handle.ran == ["hold", "ok"], "the cancelled call's second cell was not run"
    rows = await _rows(house, after.session_id)
    assert [row.status for row in rows] == ["cancelled", "ok"]


async def test_a_call_that_waits_and_is_cancelled_leaves_the_line(house: RoomHouse, backend: FakeBackend) -> None:
    first = await running(house, backend)
    second = task(house.run("say second"))
    third = task(house.run("say third"))
    await eventually(lambda: house.room.snapshot()[0].queued == 2)
    second.cancel()
    await eventually(lambda: house.room.snapshot()[0].queued == 1)
    backend.handle.release()
    assert (await third).status is CellStatus.OK
    assert (await first).status is CellStatus.OK
    assert backend.handle.ran == ["hold", "say third"]


async def test_an_interrupt_ends_the_cell_and_the_call_and_keeps_variables(
    house: RoomHouse, backend: FakeBackend
) -> None:
    call = await running(house, backend, "hold", "ok")
    session = house.room.snapshot()[0]
    assert session.running is not None
    report = await house.room.interrupt(session.id)
    assert report.running == session.running
    assert [step.action for step in report.steps] == ["sigint", "nudge"]
    result = await call
    assert [cell.status for cell in result.cells] == [CellStatus.CANCELLED, CellStatus.ABORTED]
    assert result.variables is Variables.KEPT


async def test_a_second_interrupt_takes_the_next_rung_at_once(short_tmp: Path, backend: FakeBackend) -> None:
    slow = LadderTimes(again_seconds=100.0, terminate_seconds=200.0, kill_seconds=300.0)
    async with room_house(short_tmp, backend.make, ladder=slow) as house:
        call = await running(house, backend, "deaf")
        session = house.room.snapshot()[0].id
        await house.room.interrupt(session)
        second = await house.room.interrupt(session)
        assert [step.action for step in second.steps] == ["sigint", "nudge", "sigint", "nudge"]
        third = await house.room.interrupt(session)
        assert third.steps[-1].action == "sigterm"
        assert (await call).variables is Variables.LOST


async def test_an_interrupt_meant_for_another_cell_touches_nothing(house: RoomHouse, backend: FakeBackend) -> None:
    call = await running(house, backend)
    view = house.room.snapshot()[0]
    report = await house.room.interrupt(view.id, cell="0" * 16)
    assert (report.running, report.steps) == (view.running, ())
    assert backend.handle.rungs == []
    assert (await house.room.interrupt(view.id, cell=view.running)).steps
    assert (await call).cells[0].status is CellStatus.CANCELLED
    assert (await house.room.interrupt(view.id, cell=view.running)).running is None
    assert backend.handle.rungs == ["interrupt"]


async def test_an_interrupt_may_ask_for_several_rungs(short_tmp: Path, backend: FakeBackend) -> None:
    slow = LadderTimes(again_seconds=100.0, terminate_seconds=200.0, kill_seconds=300.0)
    async with room_house(short_tmp, backend.make, ladder=slow) as house:
        call = await running(house, backend, "deaf")
        await house.room.interrupt(house.room.snapshot()[0].id, steps=3)
        assert (await call).cells[0].steps[-1].action == "sigterm"


async def test_an_interrupt_without_a_cell_of_ours_reaches_what_others_run(
    house: RoomHouse, backend: FakeBackend
) -> None:
    result = await house.run("ok")
    report = await house.room.interrupt(result.session_id)
    assert report.running is None
    assert [step.action for step in report.steps] == ["sigint", "nudge"]
    assert backend.handle.rungs == ["interrupt"]
    await house.room.stop(result.session_id)
    assert (await house.room.interrupt(result.session_id)).steps == ()


async def test_rungs_are_told_as_an_event(house: RoomHouse, backend: FakeBackend, passing: PassingTime) -> None:
    call = await running(house, backend)
    await passing.over(house)
    result = await call
    told = [each for each in await house.said() if each.event == "interrupted_cell"]
    assert [(each.facts["cell"], each.facts["variables"]) for each in told] == [(result.cells[0].id, "kept")]


async def test_a_start_tells_its_phases_where_the_settings_ask_for_it(house: RoomHouse) -> None:
    house.reconfigure(debug_startup=True)
    result = await house.run("ok")
    assert any("The kernel started in" in notice for notice in result.notices)


async def test_an_interrupt_during_the_start_ends_the_start(house: RoomHouse, backend: FakeBackend) -> None:
    backend.gate.clear()
    call = task(house.run("ok"))
    await eventually(lambda: backend.starts)
    await house.room.interrupt(house.room.snapshot()[0].id)
    with pytest.raises(CancelledRunError):
        await call
    await eventually(lambda: house.room.snapshot()[0].state is SessionState.STOPPED)
    assert house.room.snapshot()[0].reason is Reason.CANCELLED


# -- the ends of kernels -----------------------------------------------------------------------------------------------


async def test_a_crash_is_told_with_its_signal_is_not_run_again_and_the_kernel_comes_back(
    house: RoomHouse, backend: FakeBackend
) -> None:
    result = await house.run("ok", "die", "ok")
    assert [cell.status for cell in result.cells] == [CellStatus.OK, CellStatus.ERROR, CellStatus.ABORTED]
    assert result.cells[1].error is not None
    assert "SIGSEGV" in result.cells[1].error.value
    assert result.variables is Variables.LOST
    await eventually(lambda: len(backend.handles) == 2, "the restart that nobody asked for")
    after = await house.run("say back")
    assert after.cold_start_ms is None, "the next call does not pay for the start"
    assert any("variables are gone" in notice for notice in after.notices)
    assert [code for handle in backend.handles for code in handle.ran].count("die") == 1
    assert house.room.snapshot()[0].restarts == 1
    assert "died" in await house.words()


async def test_a_second_crash_is_a_hard_failure_until_somebody_asks(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.run("die")).session_id
    await eventually(lambda: len(backend.handles) == 2)
    await house.run("die")
    with pytest.raises(StartFailedError) as failed:
        await house.run("ok")
    assert f"pxctl kernel restart {session}" in (failed.value.hint or "")
    assert "SIGSEGV" in failed.value.detail
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.FAILED)
    failure = house.room.snapshot(session)[0].failure
    assert failure is not None
    assert failure["detail"] == failed.value.detail
    await house.room.restart(session)
    assert (await house.run("ok")).status is CellStatus.OK


@pytest.mark.parametrize("word", ["exit", "exit late"])
async def test_exit_in_a_cell_ends_the_session_and_is_no_crash(
    house: RoomHouse, backend: FakeBackend, word: str
) -> None:
    await house.run("ok")
    await house.words()  # its readiness is written down: from now on its death is heard at once
    result = await house.run(word, "ok")
    assert [cell.status for cell in result.cells] == [CellStatus.OK, CellStatus.ABORTED]
    assert result.variables is Variables.LOST
    assert "exit()" in (result.message or "")
    await eventually(lambda: house.room.snapshot()[0].state is SessionState.STOPPED)
    assert len(backend.starts) == 1, "nothing is started before the next call"
    assert (await house.run("ok")).cold_start_ms is not None
    assert "died" not in await house.words()


async def test_a_crash_while_idle_brings_the_kernel_back_and_is_told_to_the_next_call(
    house: RoomHouse, backend: FakeBackend
) -> None:
    await house.run("ok")
    backend.handle.die(None, 9)
    await eventually(lambda: len(backend.handles) == 2)
    result = await house.run("ok")
    assert any("SIGKILL" in notice for notice in result.notices)
    assert house.room.snapshot()[0].restarts == 1


async def test_a_stop_ends_the_running_cell_and_refuses_who_waits(house: RoomHouse, backend: FakeBackend) -> None:
    first = await running(house, backend, "deaf")
    second = task(house.run("ok"))
    await eventually(lambda: house.room.snapshot()[0].queued == 1)
    session = house.room.snapshot()[0].id
    assert await house.room.stop(session) == ()
    result = await first
    assert result.cells[0].status is CellStatus.CANCELLED
    assert result.variables is Variables.LOST
    with pytest.raises(CancelledRunError):
        await second
    assert await house.room.stop(session) == (), "stopping twice is no error"
    assert backend.stopped == [(session, "stopped")]


async def test_what_survives_a_stop_is_named_and_tried_again(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisord_py.kernels.hosting.kernel_lives.TRY_AGAIN_SECONDS", 0.01)
    session = (await house.run("ok")).session_id
    backend.handle.survivors = (4711,)
    assert await house.room.stop(session) == (4711,)
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
    assert "survivors" in await house.words()


async def test_a_failed_start_is_told_to_everyone_who_waits_for_it(house: RoomHouse, backend: FakeBackend) -> None:
    backend.gate.clear()
    backend.fail_next.append(StartFailedError("no luck", reason="early_exit"))
    calls = [task(house.run("ok")) for _ in range(3)]
    await eventually(lambda: backend.starts and house.room.snapshot()[0].queued == 3)
    backend.gate.set()
    for call in calls:
        with pytest.raises(StartFailedError, match="no luck"):
            await call
    assert (await house.run("ok")).status is CellStatus.OK, "a failure is never sticky"


async def test_three_failed_starts_are_a_hard_failure(house: RoomHouse, backend: FakeBackend) -> None:
    backend.fail_next += [StartFailedError("no luck", reason="early_exit") for _ in range(3)]
    for _ in range(3):
        with pytest.raises(StartFailedError, match="no luck"):
            await house.run("ok")
    with pytest.raises(StartFailedError, match="failed to start"):
        await house.run("ok")
    assert len(backend.starts) == 3


async def test_want_of_descriptors_costs_one_idle_session_and_one_retry(house: RoomHouse, backend: FakeBackend) -> None:
    idle = (await house.run("ok", session="idle")).session_id
    call = await running(house, backend, "hold", session="busy")
    backend.fail_next.append(no_descriptors())
    assert (await house.run("ok", session="new")).status is CellStatus.OK
    assert backend.stopped == [(idle, "evicted_lru")]
    backend.handles[1].release()
    assert (await call).status is CellStatus.OK


async def test_a_reset_replaces_the_kernel_before_the_first_cell_only(house: RoomHouse, backend: FakeBackend) -> None:
    await house.run("ok")
    result = await house.run("ok", "ok", reset=True)
    assert result.cold_start_ms is not None
    assert [handle.ran for handle in backend.handles] == [["ok"], ["ok", "ok"]]
    assert backend.stopped == [(result.session_id, "replaced")]


async def test_a_call_of_its_own_leaves_nothing_behind(house: RoomHouse, backend: FakeBackend) -> None:
    await house.run("ok")
    result = await house.run("ok", per_call=True)
    assert result.variables is Variables.LOST
    await eventually(lambda: len(house.room.snapshot()) == 1)
    assert backend.stopped == [(result.session_id, "stopped")]


# -- the set of sessions -----------------------------------------------------------------------------------------------


async def test_calls_of_one_session_run_one_at_a_time_in_order(house: RoomHouse, backend: FakeBackend) -> None:
    heard: list[Any] = []
    first = await running(house, backend)
    others: list[asyncio.Task[Any]] = []
    for number in range(3):  # one after the other is in line: each has an interpreter chosen for it before
        others.append(task(house.run(f"say {number}", tell=heard.append)))
        await eventually(lambda: house.room.snapshot()[0].queued == len(others))
    assert house.room.snapshot()[0].state is SessionState.BUSY
    backend.handle.release()
    await asyncio.gather(first, *others)
    assert backend.handle.ran == ["hold", "say 0", "say 1", "say 2"]
    assert any(isinstance(each, Queued) for each in heard)


async def test_a_full_line_is_refused(house: RoomHouse, backend: FakeBackend) -> None:
    house.reconfigure(sessions=SessionLimits(queue_max=1))
    first = await running(house, backend)
    second = task(house.run("ok"))
    await eventually(lambda: house.room.snapshot()[0].queued == 1)
    with pytest.raises(OverloadedError) as refused:
        await house.run("ok")
    assert refused.value.extra["retry_after_seconds"] >= 1
    backend.handle.release()
    await asyncio.gather(first, second)


async def test_the_oldest_idle_session_makes_room_and_busy_ones_never(house: RoomHouse, backend: FakeBackend) -> None:
    house.reconfigure(sessions=SessionLimits(max_sessions=2))
    busy = await running(house, backend, session="busy")
    idle = (await house.run("ok", session="idle")).session_id
    assert (await house.run("ok", session="new")).status is CellStatus.OK
    assert backend.stopped == [(idle, "evicted_lru")]
    backend.handles[0].release()
    await busy
    again = await house.run("ok", session="idle")
    assert any("room was needed" in notice for notice in again.notices)


async def test_an_idle_session_is_evicted_by_a_timer_of_its_own(short_tmp: Path, backend: FakeBackend) -> None:
    async with room_house(short_tmp, backend.make, sessions=SessionLimits(idle_seconds=0.05)) as house:
        session = (await house.run("ok")).session_id
        await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
        assert house.room.snapshot(session)[0].reason is Reason.EVICTED_TTL


async def test_a_kernel_at_work_for_somebody_else_is_not_evicted(short_tmp: Path, backend: FakeBackend) -> None:
    async with room_house(short_tmp, backend.make) as house:
        session = (await house.run("ok")).session_id
        backend.handle.foreign_busy, backend.handle.foreign_used_at = True, time.time()
        house.room.pool.look_at_foreign_use()
        house.reconfigure(sessions=SessionLimits(idle_seconds=0.0))
        assert (await house.run("ok", session="other")).status is CellStatus.OK
        assert house.room.snapshot(session)[0].state in {SessionState.IDLE, SessionState.BUSY}
        backend.handles[0].foreign_busy = False
        house.room.pool.look_at_foreign_use()
        await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)


async def test_a_cell_that_calls_its_own_session_is_refused_at_once(house: RoomHouse, backend: FakeBackend) -> None:
    call = await running(house, backend)
    instance = house.room.snapshot()[0].instance
    with pytest.raises(ConflictError, match="occupies"):
        await house.run("ok", caller_instance=instance)
    assert (await house.run("ok", session="other", caller_instance=instance)).status is CellStatus.OK
    backend.handles[0].release()
    assert (await call).status is CellStatus.OK


async def test_sessions_are_found_by_id_name_folder_and_jupyter_id(house: RoomHouse) -> None:
    one = await house.run("ok")
    other = house.rig.folder / "elsewhere"
    other.mkdir()
    two = await house.run("ok", cwd=str(other))
    assert house.room.find(one.session_id).id == one.session_id
    assert house.room.find("default", str(other)).id == two.session_id
    assert house.room.find(house.room.find(two.session_id).key.jupyter_id).id == two.session_id
    with pytest.raises(AmbiguousNameError) as ambiguous:
        house.room.find("default")
    assert len(ambiguous.value.extra["candidates"]) == 2
    with pytest.raises(UnknownUnitError):
        house.room.find("nobody")
    by_id = await house.run("ok", session=one.session_id, cwd="/")
    assert by_id.session_id == one.session_id


async def test_a_start_says_whether_it_started_and_keeps_who_asked_for_it(
    house: RoomHouse, backend: FakeBackend
) -> None:
    request = StartRequest("made", cwd=str(house.cwd), owner=Owner.JUPYTER, env={"PX_TEST_EXTRA": "1", "MINE": "2"})
    started, view = await house.room.start_or_join(request)
    assert started
    assert (view.owner, view.state) == ("jupyter", SessionState.IDLE)
    assert backend.starts[0].env["MINE"] == "2"
    joined, again = await house.room.start_or_join(request)
    assert not joined
    assert again.instance == view.instance


async def test_a_crashed_kernel_of_a_front_end_is_left_to_its_restarter(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.room.start(StartRequest("lab", cwd=str(house.cwd), owner=Owner.JUPYTER))).id
    backend.handle.die(None, 11)
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
    assert house.room.snapshot(session)[0].reason is Reason.SIGNAL
    assert len(backend.starts) == 1
    assert "died" in await house.words()


async def test_a_restart_gives_a_fresh_kernel_and_ends_what_runs(house: RoomHouse, backend: FakeBackend) -> None:
    call = await running(house, backend, "deaf")
    session = house.room.snapshot()[0].id
    view = await house.room.restart(session)
    assert view.instance != backend.handles[0].launch.instance
    assert (await call).cells[0].status is CellStatus.CANCELLED
    assert (await call).variables is Variables.LOST


async def test_kinds_of_cells_that_are_turned_off_are_refused(house: RoomHouse) -> None:
    house.reconfigure(expose=Expose.BASH)
    with pytest.raises(ConflictError, match="Python cells are turned off"):
        await house.run("ok")
    house.reconfigure(expose=Expose.PYTHON)
    with pytest.raises(ConflictError, match="Bash cells are turned off"):
        await house.run("ok", language="bash")


async def test_shell_cells_get_a_session_of_their_own(house: RoomHouse, backend: FakeBackend) -> None:
    result = await house.run("ok", language="bash")
    assert (result.backend, result.interpreter) == (BackendName.BASH, "bash")
    assert (result.variables, result.cells[0].variables) == (Variables.LOST, Variables.LOST)
    (row,) = await _rows(house, result.session_id)
    assert row.variables == "lost"
    assert backend.starts[0].session_id == result.session_id


# -- what is remembered ------------------------------------------------------------------------------------------------


async def _rows(house: RoomHouse, session: str) -> list[Any]:
    return list(await house.room.cells(session))


async def test_each_cell_has_a_row_with_how_it_ended(house: RoomHouse) -> None:
    result = await house.run("say hello", "fail", "ok")
    rows = await _rows(house, result.session_id)
    assert [(row.code, row.status, row.ordinal) for row in rows] == [("say hello", "ok", 0), ("fail", "error", 1)]
    assert rows[0].total_bytes == 5
    assert rows[1].error["name"] == "ValueError"
    assert {row.instance for row in rows} == {result.instance}
    assert len({row.call for row in rows}) == 1


async def test_output_is_there_to_be_read(house: RoomHouse) -> None:
    result = await house.run("say hello")
    assert house.room.cells_house.log(result.session_id, result.cells[0].id).read(0, 100) == b"hello"


async def test_a_session_is_exported_as_a_notebook(house: RoomHouse) -> None:
    result = await house.run("say hello", "fail")
    notebook = await house.room.export(result.session_id)
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == ["say hello", "fail"]


async def test_the_row_of_a_life_is_there_before_and_closed_after(house: RoomHouse, backend: FakeBackend) -> None:
    result = await house.run("ok")
    assert result.instance is not None
    row = await house.row(result.instance)
    assert row.ready_at is not None
    assert row.ended_at is None
    await house.room.stop(result.session_id)
    row = await house.row(result.instance)
    assert row.reason == "stopped"
    assert await house.words(f"kernel:{result.session_id}") == ["starting", "ready", "stopping", "stopped"]
    assert backend.starts[0].instance == result.instance


async def test_events_of_a_life_name_the_one_before_as_their_cause(house: RoomHouse) -> None:
    result = await house.run("ok")
    await house.room.stop(result.session_id)
    told = await house.said(f"kernel:{result.session_id}")
    assert [each.cause for each in told[1:]] == [each.id for each in told[:-1]]


async def test_stopped_sessions_are_known_to_the_next_control_plane(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.run("ok")).session_id
    await house.room.stop(session)
    await house.replace()
    view = house.room.snapshot(session)[0]
    assert (view.state, view.reason) == (SessionState.STOPPED, Reason.STOPPED)
    result = await house.run("ok", session=session)
    assert result.session_id == session
    assert backend.starts[-1].interpreter == backend.starts[0].interpreter


# -- the end of the room -----------------------------------------------------------------------------------------------


async def test_a_control_plane_that_is_replaced_lets_calls_go_without_touching_kernels(
    short_tmp: Path, backend: FakeBackend
) -> None:
    async with room_house(short_tmp, backend.make) as house:
        call = await running(house, backend)
        waiting = task(house.run("ok"))
        await eventually(lambda: house.room.snapshot()[0].queued == 1)
        await house.room.detach()
        for each in (call, waiting):
            with pytest.raises(InterruptedRunError):
                await each
        assert backend.handle.rungs == []
        assert backend.stopped == []
        assert backend.handle.closed


async def test_the_end_of_the_daemon_stops_everything_and_calls_hear_of_it(
    short_tmp: Path, backend: FakeBackend
) -> None:
    async with room_house(short_tmp, backend.make) as house:
        call = await running(house, backend, "deaf")
        waiting = task(house.run("ok"))
        await eventually(lambda: house.room.snapshot()[0].queued == 1)
        await house.room.close()
        assert (await call).cells[0].status is CellStatus.CANCELLED
        with pytest.raises(ShuttingDownError):
            await waiting
        with pytest.raises(ShuttingDownError):
            await house.run("ok")
        assert [reason for _, reason in backend.stopped] == ["shutdown"]


def test_the_room_is_imported_without_zmq_jupyter_or_nbformat() -> None:
    """The control plane starts fast: heavy modules come with the first kernel."""
    code = (
        "import sys, supervisord_py.kernels.room\n"
        "heavy = 'zmq jupyter_client traitlets nbformat markdownify tornado'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
