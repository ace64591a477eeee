"""Requirements B (the machine stops, sleeps, or turns its clocks) and C (what is kept, and where)."""

from __future__ import annotations

import asyncio
import shutil
import stat
from typing import TYPE_CHECKING

from pipe_rig import eventually, pipe_house, quick_watchers
from requirement_stage import UNTIL_GATE, begun, ended, in_one_room, settings
from supervisord_py.ledger.pipe_executions import ErrorType, Status
from supervisord_py.ledger.store import Durability
from supervisord_py.pipes import output, retention, run
from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.due import Due, Now, Progress, Wait, decide
from supervisord_py.pipes.output import OutputStream
from supervisord_py.pipes.schedule import Every

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    import pytest

    from pipe_rig import PipeRig

DAY = 86400.0


# -- B: time and power -------------------------------------------------------------------------------------------------


async def test_b1_a_run_cut_off_by_a_restart_is_failed(short_tmp: Path) -> None:
    """Its row survives: failed, `interrupted`, with fixed words; what it left is marked as incomplete, not removed."""
    async with pipe_house(short_tmp) as house:
        folder = house.shell("b1", "echo half > $PX_OUTPUT_DIR/report; touch begun; sleep 1000")
        number = await begun(house, "b1")
        await eventually((folder / "begun").exists, "the report")
        await house.room.detach()
        for child in await house.placement.list("pipe:"):
            await house.placement.stop(child.key, grace_seconds=0, reason="stopped")
            await house.placement.release(child.key)
        await house.put_down()
        house.time.pass_by(5000)
        await house.open()
        row = await house.room.execution(number)
        assert (row.duration_ms or 0) < 1_000_000, "it ended when it last wrote, not when somebody looked"
        assert (row.status, row.error_type, row.incomplete) == (Status.FAILED, ErrorType.INTERRUPTED, True)
        assert row.error_message == "interrupted by system restart"
        left = folder / "output" / str(number)
        assert sorted(it.name for it in left.iterdir()) == ["INCOMPLETE", "report"]


async def test_b2_a_run_that_is_silent_after_a_resume_ends(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says something within the patience goes on; who died meanwhile is failed by its exit, as always."""
    looked = quick_watchers(monkeypatch)
    async with pipe_house(short_tmp) as house:
        house.shell("b2-mute", "sleep 1000", "timeout: 100000\nretries: 0")
        house.shell("b2-well", "while :; do echo x; sleep 0.02; done", "timeout: 100000\nretries: 0")
        mute, well = await begun(house, "b2-mute"), await begun(house, "b2-well")
        await eventually(lambda: len(looked) == 2, "the watch over each")
        house.time.sleep(3600)
        live = house.room.runs.get(well)
        assert live is not None
        await eventually(lambda: all(it.resumed_at for it in looked), "a look at the clocks for each")
        await eventually(lambda: live.heard_at > max(it.resumed_at or 0 for it in looked), "words after the resume")
        assert house.room.health().running == 2
        house.time.pass_by(SchedulerLimits().wake_silence_seconds + 1)
        done = await house.room.wait(mute)
        assert (done.status, done.error_type) == (Status.TIMED_OUT, ErrorType.TIMEOUT)
        assert "said nothing for 60 s after the machine woke up" in (done.error_message or "")
        assert house.running(well) is not None


def test_b3_what_came_due_without_ticks_is_due_at_the_next() -> None:
    """App Nap is a matter of graphical programs; its effect, a scheduler that gets no turn for a while, is this."""
    schedule, limits, begun_at = Every(1800.0), SchedulerLimits(), Progress(1000.0, last_run_at=1000.0)
    before = decide(schedule, begun_at, Now(1000.0 + 1799, 50_000.0 + 1799), limits)
    assert isinstance(before, Wait)
    after = decide(schedule, begun_at, Now(1000.0 + 1800 * 3.5, 50_000.0 + 1800 * 3.5), limits)
    assert isinstance(after, Due)
    assert (after.missed, after.at) == (3, 1000.0 + 1800 * 3)
    assert "one made good" in after.why


async def test_b4_a_clock_that_jumps_starts_nothing(short_tmp: Path) -> None:
    """Intervals go by a clock that nobody sets; what is stored is the one truth; more than three due is one run."""
    async with pipe_house(short_tmp) as house:
        folder = house.shell("b4", UNTIL_GATE, "schedule: every 30m\nallow_empty: true")
        await house.room.refresh()
        await eventually(lambda: house.room.get("b4").pid, "the start")
        house.time.wall += 2 * DAY  # before the scheduler has looked at what it has started
        (folder / "gate").touch()
        await ended(house, "b4")
        await _decided_anew(house)
        house.time.wall -= 5 * DAY
        await _decided_anew(house)
        assert len(await house.rows("b4")) == 1
        house.time.pass_by(10 * 1800)
        house.room.timetable.wake()
        await ended(house, "b4", 2)
        await _decided_anew(house)
        assert len(await house.rows("b4")) == 2
        assert "b4" in await house.ledger.read(_remembered)


async def _decided_anew(house: PipeRig) -> None:
    """Wait until the scheduler has looked at the clocks as they stand now: b4 is due in half an hour."""
    house.room.timetable.wake()
    left = lambda: (house.room.get("b4").next_run or 0.0) - house.time.clocks.wall()  # noqa: E731
    await eventually(lambda: abs(left() - 1800) < 60, "the next look")


def _remembered(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT pipe_name FROM pipe_scheduler_state WHERE last_run_at IS NOT NULL")
    return [row[0] for row in rows]


async def test_b5_a_connection_that_drops_ends_with_the_timeout(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said until then is kept (fault 2 of the original: it threw it away)."""
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp) as house:
        house.shell("b5", "echo half an answer; echo so far >&2; sleep 1000", "timeout: 900\nretries: 0")
        done = await house.overdue("b5", len("half an answer\nso far\n"))
        assert (done.status, done.error_type, done.incomplete) == (Status.TIMED_OUT, ErrorType.TIMEOUT, True)
        assert (done.stdout, done.stderr) == ("half an answer\n", "so far\n")


# -- C: what is kept ---------------------------------------------------------------------------------------------------


@in_one_room
async def test_c1_an_absent_folder_is_made(rig: PipeRig) -> None:
    """Private from the first instant."""
    rig.shell("c1", "echo kept")
    shutil.rmtree(rig.config.executions_dir, ignore_errors=True)
    done = await rig.run("c1")
    assert (rig.config.executions_dir / str(done.id) / "stdout").read_text() == "kept\n"
    assert stat.S_IMODE(rig.config.executions_dir.stat().st_mode) == 0o700


async def test_c2_a_full_disk_crashes_nothing(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither under the output nor under the ledger; health says so meanwhile, and the row says so afterwards."""
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp) as house:
        fails = house.shell("c2", f"echo one; {UNTIL_GATE}; exit 1", "retries: 0", body="long " * 40_000)
        works = house.shell("c2-well", f"echo one; {UNTIL_GATE}; echo two", "retries: 0")
        connection = house.ledger._writer._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        monkeypatch.setattr(output, "disk_is_full", lambda _: True)
        queued = [await house.room.run(name) for name in ("c2", "c2-well")]
        await eventually(lambda: len(house.room.refused_output()) == 2, "the trouble")
        assert "full" in (house.room.health().ledger or "")
        connection.execute("PRAGMA max_page_count = 1000000")
        monkeypatch.setattr(output, "disk_is_full", lambda _: False)
        await eventually(lambda: not house.room.refused_output(), "the room")
        for folder in (fails, works):
            (folder / "gate").touch()
        bad, good = await asyncio.gather(*(house.room.wait(each.id) for each in queued))
        await eventually(lambda: house.room.health().ledger is None, "the recovery")
        assert (bad.status, bad.error_type, bad.truncated) == (Status.FAILED, ErrorType.DISK_FULL, True)
        assert (good.status, good.stdout, good.truncated) == (Status.COMPLETED, "one\ntwo\n", True)
        while await house.ledger.flush() is not Durability.COMMITTED:
            await asyncio.sleep(0.005)
        row = await house.room.execution(bad.id, blobs=True)
        assert (row.error_type, row.stdout) == (ErrorType.DISK_FULL, "one\n")


async def test_c3_what_is_old_is_forgotten(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 days, the row and its files together; what the agent wrote for its user stays."""
    monkeypatch.setattr(retention, "FIRST_SECONDS", 3600.0)  # it is counted what our own sweep does
    async with pipe_house(short_tmp) as house:
        folder = house.shell("c3", "echo x | tee $PX_OUTPUT_DIR/report")
        first = await house.run("c3")
        house.time.pass_by(31 * DAY)
        second = await house.run("c3")
        (orphan := house.config.executions_dir / "777").mkdir()
        assert (await retention.prune(house.room), orphan.exists()) == (1, False)
        assert [it.id for it in await house.rows("c3")] == [second.id]
        assert not house.room.folder(first.id).exists()
        assert house.room.folder(second.id).exists()
        assert (folder / "output" / str(first.id) / "report").exists()


@in_one_room
async def test_c4_what_is_kept_is_private(rig: PipeRig) -> None:
    """Nobody else may read output and ledger; what matches a pattern is never stored."""
    rig.shell("c4", "echo card 1234-5678; echo card 1234-5678 >&2", "redact: '\\d{4}-\\d{4}'")
    done = await rig.run("c4")
    folder = rig.room.folder(done.id)
    modes = {it.name: stat.S_IMODE(it.stat().st_mode) for it in (folder, *folder.iterdir())}
    assert modes == {folder.name: 0o700, "stdout": 0o600, "stderr": 0o600}
    ledger = list((rig.folder / "state").glob("pxd.db*"))
    assert {stat.S_IMODE(it.stat().st_mode) & 0o077 for it in ledger} == {0}
    assert (done.stdout, done.stderr) == ("card [redacted]\n", "card [redacted]\n")
    assert "1234" not in "".join(it.read_text() for it in folder.iterdir())


@in_one_room
async def test_c5_all_output_can_be_read_in_pages(rig: PipeRig) -> None:
    """The row's text leaves out the middle, lists have none of it; the pages have every byte."""
    rig.shell("c5", "seq 60000")
    done = await rig.run("c5")
    whole = "".join(f"{number}\n" for number in range(1, 60001)).encode()
    assert (done.stdout_bytes, "bytes left out" in (done.stdout or "")) == (len(whole), True)
    read, complete = b"", False
    while not complete:
        page = await rig.room.output(done.id, OutputStream.STDOUT, len(read), 100_000)
        assert page.total_bytes == len(whole)
        read, complete = read + page.data, page.complete
    assert read == whole
    assert [it.stdout for it in await rig.rows("c5")] == [None]


@in_one_room
async def test_c6_files_of_a_crash_are_marked_and_stay(rig: PipeRig) -> None:
    """Each execution writes into a folder of its own."""
    folder = rig.shell("c6", "echo half > $PX_OUTPUT_DIR/report; kill -9 $$", "retries: 0")
    done = await rig.run("c6")
    assert (done.status, done.error_type, done.incomplete) == (Status.FAILED, ErrorType.CRASH, True)
    assert done.output_dir == str(folder / "output" / str(done.id))
    assert (folder / "output" / str(done.id) / "report").read_text() == "half\n"
    assert (folder / "output" / str(done.id) / "INCOMPLETE").exists()


@in_one_room
async def test_c7_runs_at_the_same_time_do_not_mix(rig: PipeRig) -> None:
    """Neither their output nor their files."""
    for name in ("c7-a", "c7-b"):
        rig.shell(name, f"for i in 1 2 3; do echo {name} $i; sleep 0.01; done; echo {name} > $PX_OUTPUT_DIR/who")
    rows = await asyncio.gather(rig.run("c7-a"), rig.run("c7-b"))
    for row in rows:
        assert row.stdout == "".join(f"{row.pipe_name} {at}\n" for at in (1, 2, 3))
        assert (
            rig.config.pipes_dir / row.pipe_name / "output" / str(row.id) / "who"
        ).read_text() == f"{row.pipe_name}\n"
    assert len({row.output_dir for row in rows}) == 2


@in_one_room
async def test_c8_the_row_knows_its_window_and_its_context(rig: PipeRig) -> None:
    """The same values as the prompt names; the next window begins where this one ended."""
    rig.shell("c8", "cat")
    with settings(rig, default_timezone="Europe/Berlin"):
        queued = await rig.room.run("c8", context={"query": "invoices"})
        first = await rig.room.wait(queued.id)
    second = await rig.run("c8")
    assert (first.context_end, second.context_start) == (first.queued_at, first.context_end)
    assert (first.context_end or 0) - (first.context_start or 0) == SchedulerLimits().window_default_seconds
    assert first.plan.context == {"query": "invoices"}
    said = (first.stdout or "").splitlines()
    assert said[0].startswith("Time range: 20")
    assert "Timezone: Europe/Berlin" in said[2]
    assert '"query": "invoices"' in (first.rendered_prompt or "")
