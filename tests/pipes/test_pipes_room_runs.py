"""Runs of pipes whatever happens to them: settings that change, control planes that die,
defects, what follows.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from pipe_rig import PipeRig, eventually, pipe_house, preset
from supervisord_py.errors import BadRequestError, InterruptedRunError
from supervisord_py.ledger.pipes import (
    EXECUTIONS,
    ErrorType,
    Execution,
    Plan,
    Status,
    Trigger,
    mark_running,
)
from supervisord_py.ledger.store import LedgerUnavailableError
from supervisord_py.pipes.models import PublishedEvent
from supervisord_py.pipes.output import FollowNews
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.instance import Phase
from supervisord_py.process.keeper_client import KeeperClient
from waiting import alive


async def test_a_one_time_pipe_that_waits_in_line_is_not_taken_out_by_a_look_at_its_file(
    own_rig: PipeRig,
) -> None:
    own_rig.room.reconfigure(replace(own_rig.config, stagger_seconds=0.0, slots_scheduled=1))
    own_rig.shell("first", "exec sleep 1000", "schedule: every 1h\ntimeout: 80000")
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("first").running, "the only slot is taken")
    # After the start of the room: what was due before it is spread out over a minute.
    at = f"schedule: at {datetime.now(UTC) + timedelta(minutes=10):%Y-%m-%dT%H:%M:%SZ}"
    own_rig.shell("once", "echo x", at)
    await own_rig.room.files.refresh()
    assert (own_rig.room.get("once").warnings, own_rig.room.get("once").next_run is None) == (
        (),
        False,
    )
    own_rig.time.pass_by(601)
    own_rig.room.due_bell.set()
    await eventually(lambda: own_rig.room.get("once").queued, "it waits")
    assert not own_rig.room.get("once").enabled
    own_rig.shell("once", "echo x", f"{at}\ntitle: Changed")
    await own_rig.room.files.refresh()
    await own_rig.room.cancel_pipe("first")
    await eventually(lambda: not own_rig.room.get("once").queued, "its turn")
    await eventually(lambda: own_rig.room.get("once").running is None, "its end")
    assert [each.status for each in await own_rig.rows("once")] == [Status.COMPLETED]
    # That a schedule has run to its end is a warning, and no error.
    view, over = await own_rig.room.enable("once"), "its schedule is over: has no time to come"
    assert (view.enabled, view.next_run, view.config_error, view.warnings) == (
        True,
        None,
        None,
        (over,),
    )
    assert over in [it.detail for it in await own_rig.room.validate("once") if it.verdict == "warn"]


async def test_another_preset_takes_over_at_once(own_rig: PipeRig) -> None:
    own_rig.presets(preset("one", 'model = "bad"') + preset("two", 'model = "good"'))
    own_rig.fake("chain", "fail:429", front="preset: [one, two]\nretries: 0")
    first = await own_rig.run("chain")
    assert (first.preset.id, first.plan.fallbacks[0].id) == ("one", "two")
    told = [(it.preset_id, it.model, it.trigger) for it in await own_rig.ended("chain", 2)]
    assert told == [("one", "bad", Trigger.MANUAL), ("two", "good", Trigger.RETRY)]


async def test_a_daily_budget_refuses_before_the_spawn(short_tmp: Path) -> None:
    noon_here = f"Etc/GMT{datetime.now(UTC).hour - 12:+d}"  # where no day ends meanwhile
    async with pipe_house(short_tmp, timezone=noon_here) as rig:
        rig.fake(
            "paid",
            "usage:100/50/0.25",
            "answer:fine",
            front="budget: {daily_tokens: 200}\nretries: 0",
        )
        assert (await rig.run("paid")).usage.total_tokens == 150
        assert (await rig.run("paid")).status is Status.COMPLETED
        refused = await rig.run("paid")
        assert (refused.error_type, refused.pid, refused.started_at) == (
            ErrorType.BUDGET_EXCEEDED,
            None,
            None,
        )
        assert "300 tokens today of 200" in (refused.error_message or "")
        rig.time.pass_by(86400)
        assert (await rig.run("paid")).status is Status.COMPLETED


async def test_what_ended_while_nobody_was_there_is_judged_by_the_next_control_plane(
    own_rig: PipeRig,
) -> None:
    """Also where its pid had not come to the ledger yet."""
    folder = own_rig.shell(
        "quick", "while [ ! -e gate ]; do sleep 0.01; done; echo done; exit 4", "retries: 0"
    )
    number = await own_rig.begun("quick")
    pid = own_rig.running(number)
    await own_rig.ledger.write(EXECUTIONS.update(number, pid=None, start_time=None))
    waiting = asyncio.ensure_future(own_rig.room.wait(number))
    await asyncio.sleep(0)
    await own_rig.room.detach()
    with pytest.raises(InterruptedRunError):
        await waiting
    (folder / "gate").touch()
    await eventually(
        lambda: not any(alive(it.identity.pid) for it in own_rig.placement.children()), "the exit"
    )
    await own_rig.put_down()
    own_rig.time.pass_by(100)
    await own_rig.open()
    done = await own_rig.room.wait(number)
    assert (done.status, done.exit_code, done.stdout, done.pid) == (Status.FAILED, 4, "done\n", pid)
    assert (done.duration_ms or 0) < 100_000, "it ended when it ended, not when somebody looked"


async def test_a_row_of_which_nothing_was_spawned_waits_in_line_again(own_rig: PipeRig) -> None:
    """The control plane died between the claim and the spawn.

    Of another keeper's nobody knows: it is not run twice.
    """
    own_rig.shell("claimed", "echo fine")
    own_rig.shell("lost", "echo fine")
    await own_rig.room.files.refresh()
    await own_rig.room.detach()
    numbers = []
    for name, claimed in (("claimed", time.time()), ("lost", 2.0)):
        plan = Plan("command", ("/bin/echo", "fine"))
        number = own_rig.ledger.next_number()
        row = Execution(id=number, pipe_name=name, status=Status.QUEUED, plan=plan)
        await own_rig.ledger.write(EXECUTIONS.insert(row))
        await own_rig.ledger.write(mark_running(number, started_at=claimed, instance="gone.1"))
        numbers.append(number)
    await own_rig.put_down()
    await own_rig.open()
    rows = [await own_rig.room.wait(number) for number in numbers]
    assert [it.error_type for it in rows] == [None, ErrorType.INTERRUPTED]


async def test_what_a_run_printed_before_its_keeper_died_is_redacted_by_the_next_start(
    own_rig: PipeRig,
) -> None:
    """Nobody holds its keys any more: they are looked up again, in its `.env` and behind the
    preset's reference.
    """
    own_rig.config.presets_file.write_text(
        '[presets.one]\nprovider = "acme"\napi_key = "$ACME_WORD"\n'
    )
    folder = own_rig.shell(
        "leak",
        "echo begun; until [ -e go ]; do sleep 0.01; done; cat go; touch done; sleep 1000",
        "preset: one",
    )
    (folder / ".env").write_text("SOME_API_KEY=sk-of-the-env\nACME_WORD=word-of-the-preset\n")
    number = await own_rig.begun("leak")
    files = own_rig.room.folder(number)
    await own_rig.room.detach()
    fresh = folder / "fresh"
    fresh.write_text("keys sk-of-the-env word-of-the-preset end\n")
    fresh.rename(folder / "go")
    await eventually((folder / "done").exists, "the print")
    await own_rig.forget_children()
    await own_rig.put_down()
    await own_rig.open()
    row = await own_rig.room.execution(number, blobs=True)
    assert (row.error_type, row.stdout) == (
        ErrorType.INTERRUPTED,
        "begun\nkeys [redacted: SOME_API_KEY] [redacted: ACME_WORD] end\n",
    )
    assert {it.name: it.read_text() for it in files.iterdir()} == {
        "stdout": row.stdout,
        "stderr": "",
    }


async def test_what_follows_from_an_end_is_made_good_when_the_end_was_all_that_was_written(
    own_rig: PipeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the final row and what follows: the retry and other pipes come all the
    same, once.
    """
    own_rig.agent(
        "flaky", "echo 'HTTP 503: server_error' >&2; exit 1", "retries: {max: 1, delay: 1000}"
    )
    with monkeypatch.context() as crash:
        crash.setattr(Pipes, "after", AsyncMock())
        crash.setattr(KeeperClient, "release", lambda *_: None)
        number = (await own_rig.room.run("flaky"))[0].id
        await eventually(lambda: own_rig.room.runs[number].execution.status.is_final, "its row")
        await own_rig.room.detach()
    for _ in range(2):
        await own_rig.put_down()
        await own_rig.open()
        await eventually(lambda: not own_rig.placement.children(), "the clearing away")
        assert [it.retry_of for it in await own_rig.rows("flaky")] == [None, number]
        assert (await own_rig.words("pipe:flaky")).count("execution_failed") == 1
        await own_rig.room.detach()
    await own_rig.put_down()
    await own_rig.open()


async def test_a_defect_of_ours_ends_the_run_and_frees_the_slot(
    own_rig: PipeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_rig.shell("p", "echo x; sleep 1000", "retries: 0")

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("supervisord_py.pipes.run.Run.look", broken)
        done = await own_rig.run("p")
    assert (done.error_type, done.error_message) == (ErrorType.UNKNOWN, "RuntimeError: a defect")
    await eventually(lambda: not own_rig.placement.children(), "the end of the process")
    assert own_rig.room.health()["running"] == 0
    with monkeypatch.context() as patch:
        patch.setattr("supervisord_py.pipes.launch.open_for_child", broken)
        assert (await own_rig.run("p")).error_message is not None
    with monkeypatch.context() as patch:
        patch.setattr(own_rig.room, "announce", broken)
        own_rig.shell("p", "echo fine")
        assert (await own_rig.run("p")).status is Status.COMPLETED
    assert own_rig.room.health()["running"] == 0


async def test_an_agent_over_its_memory_limit_is_told_so(own_rig: PipeRig) -> None:
    script = "python3 -c 'x = bytearray(200_000_000); import time; time.sleep(1000)'"
    own_rig.shell("fat", script, "limits: {memory: 60MB}\nretries: 0")
    done = await own_rig.run("fat")
    assert (done.status, done.error_type) == (Status.FAILED, ErrorType.RESOURCE_LIMIT)
    assert "memory" in (done.error_message or "")
    assert done.incomplete


async def test_many_runs_leave_no_descriptor_open_and_no_task_behind(own_rig: PipeRig) -> None:
    own_rig.fake("p", "answer:x")
    await own_rig.run("p")
    await eventually(lambda: not own_rig.placement.children(), "the release")
    before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for _ in range(5):
        await own_rig.run("p")
    await eventually(lambda: not own_rig.placement.children(), "the release")
    await eventually(lambda: len(asyncio.all_tasks()) <= before[1], "the end of all tasks")
    # Threads that look at folders have some open, now and then.
    await eventually(
        lambda: len(os.listdir("/proc/self/fd")) <= before[0], "the close of all descriptors"
    )


async def test_who_follows_is_told_the_end_that_came_while_the_start_was_being_told(
    own_rig: PipeRig,
) -> None:
    """Else `pipe run` says of a run that ended at once that it is queued, and not why it failed."""
    own_rig.shell("brief", "exit 3")
    number = (await own_rig.room.run("brief"))[0].id
    async with aclosing(own_rig.room.follow(number)) as items:
        first = await anext(items)
        await eventually(lambda: number not in own_rig.room.runs, "its end")
        last = [item async for item in items][-1]
    assert isinstance(first, FollowNews) and isinstance(last, FollowNews)
    assert (first.word, last.word, last.execution.exit_code) == ("start", "done", 3)


async def test_a_run_whose_end_cannot_be_written_keeps_its_output_for_the_next_start(
    own_rig: PipeRig,
) -> None:
    own_rig.fake("p", "answer:kept")
    await own_rig.room.files.refresh()
    write = own_rig.ledger.write

    async def goes_away(operation: Any) -> Any:
        if not any(run.phase is Phase.STOPPING for run in own_rig.room.runs.values()):
            return await write(operation)
        raise LedgerUnavailableError("the ledger is closed")

    own_rig.ledger.write = goes_away  # type: ignore[method-assign]
    number = (await own_rig.room.run("p"))[0].id
    await eventually(lambda: own_rig.room.runs[number].is_left, "the run to be left")
    own_rig.ledger.write = write  # type: ignore[method-assign]
    (row,) = await own_rig.rows("p")
    assert row.status is Status.RUNNING
    assert b"kept" in (own_rig.room.folder(number) / "raw.stdout").read_bytes()


async def test_an_event_may_start_a_pipe_again_whose_run_failed(own_rig: PipeRig) -> None:
    own_rig.shell("hook", "exit 1", "trigger: {events: [invoice]}\nretries: 0")
    own_rig.shell("off", "cat", "trigger: {events: [invoice]}\nenabled: false")
    await own_rig.room.files.refresh()
    event = PublishedEvent("invoice", key="n-1")
    for _ in range(2):
        claims = await own_rig.room.publish_event(event)
        assert claims["suppressed"] == [{"pipe": "off", "why": "it is disabled"}]
        assert (await own_rig.room.wait(claims["claimed"][0]["execution"])).status is Status.FAILED
    for name in ("pipe_completed", "pipe_failed:ok", "file_changed", "bad name", ""):
        with pytest.raises(
            BadRequestError, match=r"told by what happens here|no name of an event"
        ) as caught:
            await own_rig.room.publish_event(PublishedEvent(name))
        assert repr(name) in caught.value.detail
