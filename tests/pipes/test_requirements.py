"""Every requirement of pipes (A1 to I4) has a test of that name: here presets (A), time (B), what
is kept (C).

The others: test_requirements_d_to_i.py.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import stat
from pathlib import Path

import pytest

from mock_provider import MockProvider
from pipe_rig import UNTIL_GATE, PipeRig, eventually, in_one_room, pipe_house, preset
from supervisord_py.api.pipes import execution_document
from supervisord_py.ledger.pipes import ErrorType, Status, Trigger
from supervisord_py.pipes import output
from supervisord_py.pipes.due import Due, Now, Progress, decide
from supervisord_py.pipes.output import OutputStream
from supervisord_py.pipes.run import WAKE_SILENCE_SECONDS
from supervisord_py.pipes.schedule import Every
from supervisord_py.pipes.time_range import FIRST_SECONDS

HERE = Path(__file__).parent


@in_one_room
async def test_a1_a_switched_preset_leaves_a_run_alone(rig: PipeRig) -> None:
    rig.presets(preset("a1", 'provider = "openai"', 'model = "before"'))
    folder = rig.write("a1", "agent: tell\npreset: a1")
    (folder / "wait").touch()
    number = await rig.begun("a1")
    rig.config.presets_file.write_text('[presets.a1]\nprovider = "openai"\nmodel = "aft')
    (folder / "gate").touch()
    done = await rig.room.wait(number)
    assert (done.status, done.stdout) == (Status.COMPLETED, "--provider openai --model before\n")


@in_one_room
async def test_a2_the_preset_is_frozen_in_the_queue(rig: PipeRig) -> None:
    rig.presets(preset("a2", 'provider = "openai"', 'model = "before"'))
    folder = rig.write("a2", "agent: tell\npreset: a2")
    (folder / "wait").touch()
    first = await rig.begun("a2")
    [second] = await rig.room.run("a2", queue=True)
    rig.presets(preset("a2", 'provider = "openai"', 'model = "after"'))
    row = await rig.room.execution(second.id, blobs=True)
    assert (row.status, row.preset.id, row.preset.model) == (Status.QUEUED, "a2", "before")
    (folder / "gate").touch()
    assert (await rig.room.wait(first)).status is Status.COMPLETED
    assert (await rig.room.wait(second.id)).stdout == "--provider openai --model before\n"
    assert (await rig.run("a2")).stdout == "--provider openai --model after\n"


@in_one_room
async def test_a3_a_missing_preset_fails_by_name(rig: PipeRig) -> None:
    """By hand and by schedule; never the file's own model instead, and nothing stays taken
    (fault 1).
    """
    rig.presets(preset("a3-there", 'model = "other"'))
    rig.write("a3", "agent: tell\npreset: a3-gone\nmodel: own\nschedule: every 1h")
    await rig.room.files.refresh()
    by_itself = (await rig.ended("a3"))[0]
    by_hand = await rig.run("a3")
    assert (by_itself.trigger, by_hand.trigger) == (Trigger.SCHEDULED, Trigger.MANUAL)
    for done in (by_itself, by_hand):
        assert (done.status, done.error_type, done.pid) == (
            Status.FAILED,
            ErrorType.PRESET_NOT_FOUND,
            None,
        )
        assert f"'a3-gone' in {rig.config.presets_file}" in (done.error_message or "")
        assert f"add [presets.a3-gone] to {rig.config.presets_file}" in (done.error_message or "")
    assert (rig.room.get("a3").running, rig.room.get("a3").queued) == (None, 0)


@in_one_room
async def test_a4_provider_errors_have_a_type(rig: PipeRig) -> None:
    for number, (said, word) in enumerate(
        {
            "404 The model `gtp` does not exist": "model_not_found",
            "401 invalid_api_key": "auth_failed",
            "429 rate_limit_exceeded": "rate_limited",
            "429 insufficient_quota": "quota_exhausted",
        }.items()
    ):
        rig.agent(f"a4-{number}", f"echo 'Error: {said}' >&2; exit 1", "retries: 0")
        done = await rig.run(f"a4-{number}")
        assert (execution_document(done)["error_type"], said in (done.error_message or "")) == (
            word,
            True,
        )


@in_one_room
async def test_a5_a_missing_or_expired_key_is_told(rig: PipeRig) -> None:
    rig.presets(preset("a5", 'provider = "openai"', 'api_key = "$A5_KEY"'))
    rig.write("a5", "agent: tell\npreset: a5")
    missing = await rig.run("a5")
    assert (missing.error_type, missing.pid, missing.preset.provider) == (
        ErrorType.AUTH_FAILED,
        None,
        "openai",
    )
    assert "A5_KEY is not set" in (missing.error_message or "")
    rig.agent("a5-old", "echo '401 Unauthorized: this key expired' >&2; exit 1")
    expired = await rig.run("a5-old")
    assert (expired.error_type, "key expired" in (expired.error_message or "")) == (
        ErrorType.AUTH_FAILED,
        True,
    )


@in_one_room
async def test_a6_an_unreachable_provider_ends_with_the_timeout(rig: PipeRig) -> None:
    rig.presets(preset("a6", 'url = "http://192.0.2.1/v1"', 'model = "m"'))
    folder = rig.write("a6", "agent: tell\npreset: a6\ntimeout: 0.2\nretries: 0")
    (folder / "wait").touch()
    done = await rig.run("a6")
    assert (done.status, done.preset.url) == (Status.TIMED_OUT, "http://192.0.2.1/v1")


@in_one_room
async def test_a7_ollama_is_asked_before_the_spawn(
    rig: PipeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisord_py.pipes.preflight.FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("supervisord_py.pipes.preflight.READ_SECONDS", 60.0)
    rig.write("a7", "agent: tell\npreset: a7\nretries: 0")

    def ollama(url: str, model: str) -> None:
        rig.presets(preset("a7", 'provider = "ollama"', f'url = "{url}"', f'model = "{model}"'))

    with rig.settings(preflight_seconds=60.0), socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ollama(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1", "ok")
        down = await rig.run("a7")
        async with MockProvider() as provider:
            ollama(provider.url, "absent")
            absent = await rig.run("a7")
            ollama(provider.url, "ok")
            assert (await rig.run("a7")).status is Status.COMPLETED
    assert (down.error_type, down.pid) == (ErrorType.PREFLIGHT_FAILED, None)
    assert (absent.error_type, absent.pid) == (ErrorType.MODEL_NOT_FOUND, None)
    assert "Ollama is not running" in (down.error_message or "")
    assert "ollama pull absent" in (absent.error_message or "")
    assert not (rig.room.folder(absent.id) / "agent").exists(), (
        "what was written for it goes with it"
    )


@in_one_room
async def test_a8_a_corrupt_store_is_told_and_harms_no_other(rig: PipeRig) -> None:
    """Who names a preset fails with file and line; who names none runs with what its file says, and
    that is told.

    The store is the user's own file and never written here, so there is nothing to rename into
    place.
    """
    rig.config.presets_file.write_text("[presets.a8\n")
    rig.write("a8", "agent: tell\npreset: a8")
    rig.write("a8-own", "agent: tell\nmodel: own")
    named, own = await rig.run("a8"), await rig.run("a8-own")
    assert (named.error_type, own.stdout) == (ErrorType.PRESET_NOT_FOUND, "--model own\n")
    assert f"{rig.config.presets_file}:1: is no TOML" in (named.error_message or "")
    queued = next(it for it in await rig.said("pipe:a8-own") if it.event == "execution_queued")
    assert "is no TOML" in str(queued.facts["warnings"])
    rig.presets(preset("a8", 'model = "good"') + preset("a8-torn", 'effort = "much"'))
    assert (await rig.run("a8")).stdout == "--model good\n"


@in_one_room
async def test_a9_an_unknown_provider_is_passed_on(rig: PipeRig) -> None:
    """That nobody knows it is told: test_pipes_files.py."""
    rig.write("a9", "agent: tell\nprovider: acme-llm\nmodel: m")
    done = await rig.run("a9")
    assert (done.stdout, done.preset.provider) == ("--provider acme-llm --model m\n", "acme-llm")


DAY = 86400.0


# -- B: time and power -----------------------------------------------------------------------------


async def test_b1_a_run_cut_off_by_a_restart_is_failed(own_rig: PipeRig) -> None:
    folder = own_rig.shell("b1", "echo half > $PX_OUTPUT_DIR/report; touch begun; sleep 1000")
    number = await own_rig.begun("b1")
    await eventually((folder / "begun").exists, "the report")
    await own_rig.room.detach()
    await own_rig.forget_children()
    await own_rig.put_down()
    own_rig.time.pass_by(5000)
    await own_rig.open()
    row = await own_rig.room.execution(number)
    assert (row.duration_ms or 0) < 1_000_000, (
        "it ended when it last wrote, not when somebody looked"
    )
    assert (row.status, row.error_type, row.incomplete) == (
        Status.FAILED,
        ErrorType.INTERRUPTED,
        True,
    )
    assert row.error_message == "interrupted by system restart"
    assert {it.name for it in (folder / "output" / str(number)).iterdir()} == {
        "INCOMPLETE",
        "report",
    }


async def test_b2_a_run_that_is_silent_after_a_resume_ends(own_rig: PipeRig) -> None:
    own_rig.shell("b2-mute", "sleep 1000", "timeout: 1000\nretries: 0")
    own_rig.shell("b2-well", "while :; do echo x; sleep 0.02; done", "timeout: 1000\nretries: 0")
    mute, well = await own_rig.begun("b2-mute"), await own_rig.begun("b2-well")
    before = own_rig.room.watch.resumed_at
    own_rig.time.sleep(3600)
    live = own_rig.room.runs.get(well)
    assert live is not None
    await eventually(lambda: own_rig.room.watch.resumed_at > before, "the resume is seen")
    await eventually(
        lambda: live.heard_at > own_rig.room.watch.resumed_at, "words after the resume"
    )
    assert own_rig.room.health()["running"] == 2
    own_rig.time.pass_by(WAKE_SILENCE_SECONDS + 1)
    done = await own_rig.room.wait(mute)
    assert (done.status, done.error_type) == (Status.TIMED_OUT, ErrorType.TIMEOUT)
    assert "said nothing for 60 s after the machine woke up" in (done.error_message or "")
    assert own_rig.running(well) is not None


def test_b3_what_came_due_without_ticks_is_due_at_the_next() -> None:
    """App Nap is a matter of graphical programs; its effect, a scheduler that gets no turn for a
    while, is this.
    """
    late = decide(Every(1800.0), Progress(0.0, 0.0, touched_boot=0.0), Now(6300.0, 6300.0))
    assert isinstance(late, Due)
    assert (late.at, "one run makes it good" in late.why) == (5400.0, True)


async def test_b4_a_clock_that_jumps_starts_nothing(own_rig: PipeRig) -> None:
    folder = own_rig.shell("b4", UNTIL_GATE, "schedule: every 30m\nallow_empty: true")
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("b4").pid, "the start")
    own_rig.time.wall += 2 * DAY  # before the scheduler has looked at what it has started
    (folder / "gate").touch()
    await own_rig.ended("b4")

    async def decided_anew(count: int) -> None:
        """The scheduler has looked at the clocks as they stand now: it is due in half an hour,
        and ran so often.
        """
        own_rig.room.due_bell.set()
        left = lambda: (own_rig.room.get("b4").next_run or 0.0) - own_rig.time.clocks.wall()  # noqa: E731
        await eventually(lambda: abs(left() - 1800) < 60, "the next look")
        assert len(await own_rig.rows("b4")) == count

    await decided_anew(1)
    own_rig.time.wall -= 5 * DAY
    await decided_anew(1)
    own_rig.time.pass_by(10 * 1800)
    own_rig.room.due_bell.set()
    await own_rig.ended("b4", 2)
    await decided_anew(2)


async def test_b5_a_connection_that_drops_ends_with_the_timeout(own_rig: PipeRig) -> None:
    own_rig.shell(
        "b5", "echo half an answer; echo so far >&2; sleep 1000", "timeout: 900\nretries: 0"
    )
    done = await own_rig.overdue("b5", len("half an answer\nso far\n"))
    assert (done.status, done.error_type, done.incomplete) == (
        Status.TIMED_OUT,
        ErrorType.TIMEOUT,
        True,
    )
    assert (done.stdout, done.stderr) == ("half an answer\n", "so far\n")


# -- C: what is kept -------------------------------------------------------------------------------


@in_one_room
async def test_c1_an_absent_folder_is_made(rig: PipeRig) -> None:
    rig.shell("c1", "echo kept")
    shutil.rmtree(rig.config.executions_dir, ignore_errors=True)
    done = await rig.run("c1")
    assert (rig.config.executions_dir / str(done.id) / "stdout").read_text() == "kept\n"
    assert stat.S_IMODE(rig.config.executions_dir.stat().st_mode) == 0o700


async def test_c2_a_full_disk_crashes_nothing(
    own_rig: PipeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = own_rig.shell(
        "c2", f"echo one; {UNTIL_GATE}; exit 1", "retries: 0", body="long " * 40_000
    )
    works = own_rig.shell("c2-well", f"echo one; {UNTIL_GATE}; echo two", "retries: 0")
    connection = own_rig.ledger._writing
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    monkeypatch.setattr(output, "disk_is_full", lambda _: True)
    queued = [(await own_rig.room.run(name))[0] for name in ("c2", "c2-well")]
    await eventually(lambda: len(own_rig.room.refused_output()) == 2, "the trouble")
    monkeypatch.setattr(output, "disk_is_full", lambda _: False)
    await eventually(lambda: not own_rig.room.refused_output(), "the room")
    for folder in (fails, works):
        (folder / "gate").touch()
    bad, good = await asyncio.gather(*(own_rig.room.wait(each.id) for each in queued))
    assert "full" in (own_rig.room.health()["ledger"] or ""), "who waits is answered all the same"
    connection.execute("PRAGMA max_page_count = 1000000")
    await eventually(lambda: own_rig.room.health()["ledger"] is None, "the recovery")
    assert (bad.status, bad.error_type, bad.lost_bytes > 0) == (
        Status.FAILED,
        ErrorType.DISK_FULL,
        True,
    )
    assert (good.status, good.stdout, good.lost_bytes > 0) == (Status.COMPLETED, "one\ntwo\n", True)
    await eventually(own_rig.ledger.flush, "the rows are written")
    row = await own_rig.room.execution(bad.id, blobs=True)
    assert (row.error_type, row.stdout) == (ErrorType.DISK_FULL, "one\n")


@pytest.mark.parametrize("command", ["true", "echo word"])
async def test_a_success_on_a_full_disk_is_none(
    own_rig: PipeRig, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What it wrote may be lost although it did not notice: its exit code says nothing."""
    own_rig.shell("well", f"{command}; exit 0", "retries: 0", "allow_empty: true")
    monkeypatch.setattr(output, "disk_is_full", lambda _: True)
    done = await own_rig.run("well")
    assert (done.status, done.error_type) == (Status.FAILED, ErrorType.DISK_FULL)
    assert "the disk was full" in (done.error_message or "")


async def test_c3_what_is_old_is_forgotten(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as house:
        folder = house.shell("c3", "echo x | tee $PX_OUTPUT_DIR/report")
        first = await house.run("c3")
        house.time.pass_by(31 * DAY)
        second = await house.run("c3")
        assert await house.room.prune() == 1
        assert [it.id for it in await house.rows("c3")] == [second.id]
        assert not house.room.folder(first.id).exists()
        assert house.room.folder(second.id).exists()
        assert (folder / "output" / str(first.id) / "report").exists()


@in_one_room
async def test_c4_what_is_kept_is_private(rig: PipeRig) -> None:
    rig.shell("c4", "echo card 1234-5678; echo card 1234-5678 >&2", "redact: '\\d{4}-\\d{4}'")
    done = await rig.run("c4")
    folder = rig.room.folder(done.id)
    modes = {it.name: stat.S_IMODE(it.stat().st_mode) for it in (folder, *folder.iterdir())}
    assert modes == {folder.name: 0o700, "stdout": 0o600, "stderr": 0o600}
    assert {
        stat.S_IMODE(it.stat().st_mode) & 0o077 for it in (rig.folder / "state").glob("pxd.db*")
    } == {0}
    assert (done.stdout, done.stderr) == ("card [redacted]\n", "card [redacted]\n")
    assert "1234" not in "".join(it.read_text() for it in folder.iterdir())


@in_one_room
async def test_c5_all_output_can_be_read_in_pages(rig: PipeRig) -> None:
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
    rig.shell("c6", "echo half > $PX_OUTPUT_DIR/report; kill -9 $$", "retries: 0")
    done = await rig.run("c6")
    assert (done.status, done.error_type, done.incomplete) == (Status.FAILED, ErrorType.CRASH, True)
    left = rig.config.pipes_dir / "c6" / "output" / str(done.id)
    assert done.output_dir == str(left)
    assert ((left / "report").read_text(), (left / "INCOMPLETE").exists()) == ("half\n", True)


@in_one_room
async def test_c7_runs_at_the_same_time_do_not_mix(rig: PipeRig) -> None:
    for name in ("c7-a", "c7-b"):
        rig.shell(
            name,
            f"for i in 1 2 3; do echo {name} $i; sleep 0.01; done; echo {name} > "
            "$PX_OUTPUT_DIR/who",
        )
    for row in await asyncio.gather(rig.run("c7-a"), rig.run("c7-b")):
        assert row.stdout == "".join(f"{row.pipe_name} {at}\n" for at in (1, 2, 3))
        assert Path(row.output_dir or "", "who").read_text() == f"{row.pipe_name}\n"


@in_one_room
async def test_c8_the_row_knows_its_window_and_its_context(rig: PipeRig) -> None:
    rig.shell("c8", "cat")
    with rig.settings(timezone="Europe/Berlin"):
        [queued] = await rig.room.run("c8", [{"context": {"query": "invoices"}}])
        first = await rig.room.wait(queued.id)
    second = await rig.run("c8")
    assert (first.context_end, second.context_start) == (first.queued_at, first.context_end)
    assert (first.context_end or 0) - (first.context_start or 0) == FIRST_SECONDS
    assert first.plan.context == {"query": "invoices"}
    said = (first.stdout or "").splitlines()
    assert said[0].startswith("Time range: 20")
    assert ("Timezone: Europe/Berlin" in said[2], '"query": "invoices"' in said[5]) == (True, True)


# -- the check -------------------------------------------------------------------------------------


def test_every_requirement_has_a_test_and_a_row_in_the_design() -> None:
    text = "".join(file.read_text() for file in HERE.glob("test_requirements*.py"))
    tests = [
        (it[2].upper(), it[1])
        for it in re.finditer(r"^(?:async )?def (test_([a-i]\d)_\w+)", text, re.M)
    ]
    design = (HERE.parents[1] / "DESIGN.md").read_text()
    assert re.findall(r"^\| ([A-I]\d) \|.*\| `(\w+)` \|$", design, re.M) == sorted(tests)
    assert len(tests) == 51
