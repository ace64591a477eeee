"""The one mechanism, over a real keeper, with a driver that adds nothing: every kind of unit
relies on this alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from keeper.keeper_rig import PATIENCE, RealKeeper, alive
from supervisord_py.errors import KeeperTimeoutError, PxError, StartFailedError
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process import keeper_client, program
from supervisord_py.process import supervisor as module
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import Instance, Note, Phase
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Child, ChildSpec, Reason, StopReport, Survivor
from supervisord_py.process.supervisor import Supervisor
from waiting import eventually

SERVES = "trap 'exit 0' TERM; : > up; while :; do sleep 0.01; done"
DEAF = "trap '' TERM; : > up; while :; do sleep 0.01; done"


class Scripts:
    """A driver: shells, ready once there is a file `up`, or failed as soon as they end."""

    kind = "thing"

    def __init__(self, house: House) -> None:
        self.house = house
        self.script = SERVES
        self.stop_seconds = 0.5  # of what is adopted
        self.said: list[tuple[str, str]] = []

    async def prepare(self, instance: Instance) -> ChildSpec:
        (self.house.folder / "up").unlink(missing_ok=True)
        argv = (
            ("/bin/sh", "-c", self.script)
            if self.script.startswith(("trap", "echo"))
            else (self.script,)
        )
        return ChildSpec(instance.unit, argv, str(self.house.folder), {"PATH": "/usr/bin:/bin"})

    async def ready(self, instance: Instance) -> None:
        ended = asyncio.create_task(self.house.supervisor.wait(instance))
        try:
            while not (self.house.folder / "up").exists():
                if ended.done():
                    tail = await self.house.supervisor.last_words(instance)
                    raise StartFailedError(
                        "it ended", reason="early_exit", stderr_tail=tail, code=instance.record.code
                    )  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        finally:
            ended.cancel()
            await asyncio.wait([ended])

    def revive(self, child: Child, note: Note | None) -> Instance:
        return Instance(
            child.key,
            child.unit,
            digest=note.digest if note else "",
            stop_seconds=self.stop_seconds,
        )

    async def adopt(self, instance: Instance, note: Note) -> bool:
        if note.digest == "answers":
            instance.ready_at, instance.phase = instance.started_at, Phase.READY
        return note.digest in {"kept", "answers"}

    def fail_waiters(self, instance: Instance) -> None:
        self.said.append(("told", instance.key))

    async def release(self, instance: Instance) -> None:
        self.said.append(("released", instance.key))

    def gone(self, instance: Instance) -> None:
        self.said.append(("gone", instance.key))


class House:
    """A keeper, and the supervisor of its present control plane."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keeper = RealKeeper(folder)
        self.driver = Scripts(self)
        self.client: KeeperClient
        self.ledger: Ledger
        self.events: EventStream
        self.supervisor: Supervisor

    async def open(self) -> None:
        self.client = await self.keeper.client()
        self.ledger = await Ledger.open(self.folder / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        self.supervisor = Supervisor(self.client, self.ledger, self.events)

    async def vanish(self) -> None:
        """Be killed as a control plane."""
        await self.supervisor.close()
        self.events.close()
        await self.ledger.close()
        self.client.close()

    async def replace(self) -> list[Instance]:
        """Be the next control plane; return what it has adopted."""
        await self.vanish()
        await asyncio.to_thread(self.keeper.end_control)
        await self.open()
        return await self.supervisor.adopt(self.driver)

    def made(self, digest: str = "kept") -> Instance:
        return Instance(self.client.new_key(), "thing:x", digest=digest, stop_seconds=0.5)

    async def started(self, digest: str = "kept") -> Instance:
        """Start one; the keeper knows that it is ready."""
        instance = self.made(digest)
        await self.supervisor.start(self.driver, instance)
        await self.supervisor.became_ready(instance)
        return instance

    async def row(self, key: str) -> InstanceRow:
        await self.ledger.flush()
        found = await INSTANCES.get(self.ledger, key)
        assert found is not None
        return found

    async def told(self) -> list[str]:
        await self.ledger.flush()
        return [each.event for each in await self.events.history()]


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[House]:
    made = House(short_tmp)
    try:
        await made.open()
        yield made
        await made.vanish()
    finally:
        await asyncio.to_thread(made.keeper.close)


async def test_a_life_has_its_row_before_its_process_and_its_end_before_it_is_forgotten(
    house: House,
) -> None:
    instance = await house.started()
    assert (instance.phase, alive(instance.pid or 0)) == (Phase.READY, True)
    row = await house.row(instance.key)
    assert (row.pid, row.unit, row.reason, row.ready_at is not None) == (
        instance.pid,
        "thing:x",
        None,
        True,
    )
    await house.supervisor.stop(house.driver, instance, Reason.EVICTED_TTL)
    assert not alive(instance.pid or 0)
    row = await house.row(instance.key)
    assert (row.reason, row.code, instance.stopped.is_set()) == ("evicted_ttl", 0, True)
    assert list(dict.fromkeys(house.driver.said)) == [
        (w, instance.key) for w in ("told", "released", "gone")
    ]
    assert await house.client.list("thing:") == ()
    told = [each for each in await house.events.history() if each.instance == instance.key]
    assert [each.event for each in told] == ["spawned", "ready", "stopping", "stopped"]
    assert [each.cause for each in told[1:]] == [each.id for each in told[:-1]]


async def test_a_failed_start_says_why_and_leaves_nothing_but_its_row(house: House) -> None:
    cases: list[tuple[str, str, dict[str, object]]] = [
        ("echo last words >&2; exit 7", "early_exit", {"code": 7, "stderr_tail": "last words\n"}),
        ("/no/such/program", "spawn_failed", {"stage": "exec", "errno": 2}),
    ]
    for house.driver.script, reason, facts in cases:
        instance = house.made()
        with pytest.raises(StartFailedError) as caught:
            await house.supervisor.start(house.driver, instance)
        assert caught.value.extra.items() >= facts.items()
        await house.supervisor.stop(house.driver, instance, None)
        assert ((await house.row(instance.key)).reason, instance.phase) == (reason, Phase.COLD)
        assert await house.client.list("thing:") == ()
    assert [word for word in await house.told() if word in {"start_failed", "died"}] == [
        "start_failed"
    ] * 2


async def test_the_next_control_plane_goes_on_with_what_its_driver_wants_and_stops_the_rest(
    house: House,
) -> None:
    wanted, unwanted, strange = [await house.started(digest) for digest in ("kept", "old", "kept")]
    await house.client.ask("annotate", key=strange.key, tag="{no note of ours")
    (adopted,) = await house.replace()
    assert (adopted.key, adopted.pid, adopted.phase) == (wanted.key, wanted.pid, Phase.READY)
    assert alive(wanted.pid or 0)
    await eventually(
        lambda: (
            ("gone", unwanted.key) in house.driver.said
            and ("gone", strange.key) in house.driver.said
        )
    )
    assert not alive(unwanted.pid or 0)
    assert not alive(strange.pid or 0)
    assert {(await house.row(each.key)).reason for each in (unwanted, strange)} == {"replaced"}
    assert "adopted" in await house.told()
    await house.supervisor.stop(house.driver, adopted, Reason.STOPPED)


@pytest.mark.parametrize("came_up", ["before it", "between two of them"])
async def test_what_ended_while_there_was_no_control_plane_is_recorded_as_it_ended(
    house: House, came_up: str
) -> None:
    if came_up == "before it":
        instance = await house.started()
    else:  # of the first one nobody heard that it was ready, the second one found it so
        await house.supervisor.start(house.driver, house.made("answers"))
        (instance,) = await house.replace()
    await house.vanish()
    os.kill(instance.pid or 0, signal.SIGKILL)
    # the keeper has reaped it
    await eventually(lambda: not os.path.exists(f"/proc/{instance.pid}"))
    await asyncio.to_thread(house.keeper.end_control)
    await house.open()
    assert await house.supervisor.adopt(house.driver) == []
    row = await house.row(instance.key)
    assert (row.reason, row.signal, row.code) == ("signal", 9, None)
    assert (await house.told())[-1] == "died"


async def test_a_stop_under_way_goes_on_for_its_own_reason(house: House) -> None:
    house.driver.script = DEAF
    instance = await house.started()
    instance.stop_seconds = 600
    stopping = asyncio.create_task(
        house.supervisor.stop(house.driver, instance, Reason.EVICTED_LRU)
    )

    async def noted() -> bool:
        child = await house.client.attach(instance.key)
        return child is not None and "evicted_lru" in child.tag

    await eventually(noted, "the keeper knows why it stops")
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping
    house.driver.said.clear()
    assert await house.replace() == []
    await eventually(lambda: ("gone", instance.key) in house.driver.said)
    assert not alive(instance.pid or 0)
    assert (await house.row(instance.key)).reason == "evicted_lru"


async def test_what_survives_is_named_and_the_stop_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await house.started()
    real, spared = house.client.stop, [True]

    async def stop(key: str, **options: Any) -> StopReport:
        if spared:
            return StopReport((Survivor(4242, "undead", 1),), killed=True)
        return await real(key, **options)

    monkeypatch.setattr(house.client, "stop", stop)
    monkeypatch.setattr(module, "TRY_AGAIN_SECONDS", 0.01)
    stopping = asyncio.create_task(house.supervisor.stop(house.driver, instance, Reason.STOPPED))
    await instance.stopped.wait()
    assert instance.phase is Phase.STOPPING, "no second copy may be started beside it"
    assert [each.pid for each in instance.report.survivors] == [4242]
    assert "survivors" in await house.told()
    spared.clear()
    await stopping
    assert (instance.phase, alive(instance.pid or 0)) == (Phase.COLD, False)


async def test_a_lost_keeper_is_told_to_all_and_nobody_waits_for_ever(house: House) -> None:
    instance = await house.started()
    waiting = asyncio.create_task(house.supervisor.wait(instance))
    os.kill(house.keeper.process.pid, signal.SIGKILL)
    with pytest.raises(PxError):
        async with asyncio.timeout(PATIENCE):
            await waiting
    await house.supervisor.stop(house.driver, instance, None)
    assert instance.phase is Phase.COLD
    assert list(dict.fromkeys(word for word, _ in house.driver.said)) == [
        "told",
        "released",
        "gone",
    ]
    with pytest.raises(PxError):
        await house.supervisor.start(house.driver, house.made())
    await eventually(lambda: not alive(instance.pid or 0))


@pytest.mark.filterwarnings("error")
async def test_what_is_asked_for_while_it_closes_is_cancelled_like_all_that_it_does(
    house: House,
) -> None:
    late: list[asyncio.Task[None]] = []

    async def ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            late.append(house.supervisor.task(never()))

    async def never() -> None:
        pytest.fail("it ran")

    house.supervisor.task(ends())
    await asyncio.sleep(0)
    await house.supervisor.close()
    with pytest.raises(asyncio.CancelledError):
        await late[0]


# -- a keeper that does not answer for a while -----------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the keeper give up early, so that a test need not wait for long."""
    for name in ("CALL_SECONDS", "SPAWN_SECONDS", "SLACK_SECONDS", "KILL_SECONDS"):
        monkeypatch.setattr(keeper_client, name, 0.3)
    monkeypatch.setattr(keeper_client, "ASK_AGAIN_SECONDS", 0.01)


@contextlib.contextmanager
def silent(house: House) -> Iterator[None]:
    """Have the keeper answer nothing meanwhile."""
    os.kill(house.keeper.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(house.keeper.process.pid, signal.SIGCONT)


@pytest.mark.usefixtures("impatient")
async def test_a_stop_that_a_silent_keeper_does_not_answer_is_unknown_and_then_completed(
    house: House,
) -> None:
    for _ in range(2):
        instance = await house.started()
        with silent(house):
            stopping = house.supervisor.task(
                house.supervisor.stop(house.driver, instance, Reason.EVICTED_LRU)
            )
            with pytest.raises(KeeperTimeoutError):
                await house.client.unless_silent(instance.stopped.wait(), "it stopped")
            assert (instance.phase, alive(instance.pid or 0)) == (Phase.STOPPING, True)
            assert ("gone", instance.key) not in house.driver.said, (
                "no second one is started beside it"
            )
            assert (await house.row(instance.key)).reason is None
        await stopping
        assert (instance.phase, alive(instance.pid or 0)) == (Phase.COLD, False)
        assert ((await house.row(instance.key)).reason, instance.error) == ("evicted_lru", None)
        assert await house.client.list("thing:") == ()


@pytest.mark.usefixtures("impatient")
async def test_a_start_that_a_silent_keeper_does_not_answer_goes_on_as_one_process(
    house: House,
) -> None:
    for _ in range(2):
        instance = house.made()
        with silent(house):
            starting = asyncio.create_task(house.supervisor.start(house.driver, instance))
            await eventually(lambda: house.client.is_silent)
            assert instance.phase is Phase.STARTING
        await starting
        (child,) = await house.client.list("thing:")
        assert (child.key, instance.phase, instance.pid) == (
            instance.key,
            Phase.READY,
            child.identity.pid,
        )
        await house.supervisor.stop(house.driver, instance, Reason.STOPPED)


@pytest.mark.usefixtures("impatient")
async def test_a_start_of_unknown_outcome_that_is_not_wanted_any_more_leaves_nothing(
    house: House,
) -> None:
    for _ in range(2):
        instance = house.made()
        with silent(house):
            instance.life = house.supervisor.task(house.supervisor.start(house.driver, instance))
            await eventually(lambda: house.client.is_silent)
            stopping = house.supervisor.task(
                house.supervisor.stop(house.driver, instance, Reason.STOPPED)
            )
            with pytest.raises(KeeperTimeoutError):
                await house.client.unless_silent(instance.stopped.wait(), "it stopped")
        await stopping
        assert await house.client.list("thing:") == ()
        assert ((await house.row(instance.key)).reason, instance.phase) == ("stopped", Phase.COLD)


@pytest.mark.usefixtures("impatient")
async def test_what_becomes_ready_or_dies_while_the_keeper_is_silent_is_recorded_as_it_was(
    house: House,
) -> None:
    for _ in range(2):
        instance = house.made()
        await house.supervisor.start(house.driver, instance)
        with silent(house):
            await house.supervisor.became_ready(instance)
            os.kill(instance.pid or 0, signal.SIGKILL)
        await house.supervisor.wait(instance)
        await house.supervisor.stop(house.driver, instance, None)
        row = await house.row(instance.key)
        assert (row.reason, row.signal, row.ready_at is not None) == ("signal", 9, True)


@pytest.mark.usefixtures("impatient")
async def test_a_control_plane_that_begins_while_the_keeper_is_silent_adopts_once_it_answers(
    house: House,
) -> None:
    instance = await house.started()
    for _ in range(2):
        await house.vanish()
        await asyncio.to_thread(house.keeper.end_control)
        await house.open()
        with silent(house):
            adopting = asyncio.create_task(house.supervisor.adopt(house.driver))
            await eventually(lambda: house.client.is_silent)
        (adopted,) = await adopting
        assert (adopted.key, adopted.pid, adopted.phase) == (
            instance.key,
            instance.pid,
            Phase.READY,
        )
    await house.supervisor.stop(house.driver, adopted, Reason.STOPPED)


async def test_a_stop_keeps_its_reason_and_its_note_over_several_control_planes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.driver.script = DEAF
    instance = await house.started()
    house.driver.stop_seconds = instance.stop_seconds = 600
    house.supervisor.task(house.supervisor.stop(house.driver, instance, Reason.EVICTED_LRU))

    async def noted() -> bool:
        child = await house.client.attach(instance.key)
        return child is not None and "evicted_lru" in child.tag

    await eventually(noted, "the keeper knows why it stops")
    before = await house.client.attach(instance.key)
    # Of what it only stops, the next control plane may know too little to write a note of its own.
    monkeypatch.setattr(Instance, "note", lambda _: "")
    for number in range(2):
        assert await house.replace() == []

        async def is_announced(count: int = number + 2) -> bool:
            return (await house.told()).count("stopping") == count

        await eventually(is_announced, "the stop is announced again")
        # The keeper answers in order: it has taken in by now what was noted with that.
        after = await house.client.attach(instance.key)
        assert before is not None
        assert after is not None
        assert after.tag == before.tag
    os.kill(instance.pid or 0, signal.SIGKILL)
    await eventually(lambda: ("gone", instance.key) in house.driver.said)
    assert (await house.row(instance.key)).reason == "evicted_lru"


# -- short programs --------------------------------------------------------------------------------


async def run(house: House, code: str, **options: Any) -> program.Completed:
    given = {
        "name": "test",
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"]},
        "timeout": 60.0,
        **options,
    }
    return await program.run(house.client, [sys.executable, "-c", code], **given)


async def test_a_programs_streams_are_told_apart_and_its_lines_come_as_they_are_printed(
    house: House,
) -> None:
    lines: list[str] = []
    code = "import sys; print('out', flush=True); print('50%\\r100%', file=sys.stderr); sys.exit(3)"
    done = await run(house, code)
    assert (done.code, done.signal, done.stdout, done.stderr) == (3, None, "out\n", "50%\r100%\n")
    await run(house, code, on_line=lines.append)
    assert lines == ["out", "50%", "100%"]
    assert "out" not in repr(done)
    assert await house.client.list("program:") == ()


@pytest.mark.usefixtures("impatient")
async def test_a_program_that_a_silent_keeper_does_not_start_is_unknown_and_then_ended(
    house: House,
) -> None:
    for _ in range(2):
        with silent(house), pytest.raises(KeeperTimeoutError, match="program:test"):
            await run(house, "import time; time.sleep(600)")

        async def is_gone() -> bool:
            return await house.client.list("program:") == ()

        await eventually(is_gone)


async def test_a_program_that_gets_only_one_of_two_pipes_is_a_failed_start_and_leaks_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pipe
    for _ in range(2):
        before = len(os.listdir("/proc/self/fd"))
        given = [True]

        def pipe(given: list[bool] = given) -> tuple[int, int]:
            if not given:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            given.pop()
            return real()

        with monkeypatch.context() as patch:
            patch.setattr(program.os, "pipe", pipe)
            with pytest.raises(StartFailedError, match="file descriptors left") as caught:
                await run(house, "pass")
        assert (caught.value.extra["errno"], bool(caught.value.hint)) == (errno.EMFILE, True)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_a_program_over_its_time_ends_with_its_tree_and_one_that_is_not_there_is_told(
    house: House,
) -> None:
    with pytest.raises(TimeoutError):
        await run(
            house,
            "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)",
            timeout=1.0,
        )
    assert await house.client.list("program:") == ()
    with pytest.raises(StartFailedError, match="no-such-program"):
        await program.run(
            house.client, ["/no-such-program"], name="test", cwd="/", env={}, timeout=9.0
        )
