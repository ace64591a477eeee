"""The placement over the channel: every call ends, every exit is told once, the loss of the keeper is told to all."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from process.fake_keeper import DAEMON, HELLO, FakeKeeper, child_message, exit_message, refusal
from supervisord_py.errors import (
    ConflictError,
    KeeperLostError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TooLargeError,
    UnknownUnitError,
)
from supervisord_py.keeper.protocol import MAX_FRAME
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import (
    ChildSpec,
    ControlEvent,
    ExitRecord,
    GrantedFd,
    Identity,
    LogTrouble,
    Reason,
    ResourceLimit,
    StopReport,
    Survivor,
    TreeStat,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Until = Callable[[Callable[[], object]], Awaitable[None]]
    Connect = Callable[..., Awaitable[KeeperClient]]


KEY = f"{DAEMON}.000000abcdef"


SPEC = ChildSpec(unit="tool:x", argv=("/bin/x", "--port", "1"), cwd="/tmp", env={"A": "1"})


async def test_hello_tells_the_abilities_and_the_children(keeper: FakeKeeper, connect: Connect) -> None:
    held = [child_message(KEY), child_message(f"{KEY}2", exit=exit_message(f"{KEY}2", code=7))]
    left = [{"key": "k", "unit": "tool:y", "pid": 5}]
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "children": held, "interrupted": left, "control_restarts": 3}
    placement = await connect()
    assert placement.caps.keeper_pid == 4242
    assert placement.caps.control_restarts == 3
    assert placement.caps.interrupted == (("k", "tool:y", 5),)
    assert [it.key for it in placement.children()] == [KEY, f"{KEY}2"]
    assert placement.children()[0].identity == Identity(99, 12345, "boot")
    assert (await placement.wait(f"{KEY}2")).code == 7
    assert placement.log_dir == "/logs"
    assert placement.new_key().startswith(f"{DAEMON}.")


async def test_another_protocol_is_refused_and_the_channel_closed(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "protocol": 2}
    with pytest.raises(KeeperLostError, match="protocol 2"):
        await connect()
    assert keeper.control.fileno() == -1


async def test_a_hello_that_lacks_something_is_an_error_not_a_guess(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["hello"] = lambda _m, _f: {"protocol": 1, "pid": 1}
    with pytest.raises(KeeperLostError, match="cannot be read"):
        await connect()


async def test_spawn_says_everything_and_adds_the_marks(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["spawn"] = lambda message, _f: {"child": child_message(message["key"], tag=message["tag"])}
    placement = await connect()
    spec = ChildSpec(
        unit="tool:x",
        argv=("/bin/x",),
        cwd="/tmp",
        env={"A": "1"},
        limits=(ResourceLimit("nofile", 10, 20),),
        grants=(GrantedFd(3, "tool:x/listen"),),
        listen_pid=True,
        max_rss_bytes=99,
        tag="note",
    )
    child = await placement.spawn(KEY, spec)
    assert (child.key, child.unit, child.tag, child.exit) == (KEY, "tool:x", "note", None)
    asked = keeper.asked[-1]
    del asked["id"]
    assert asked == {
        "verb": "spawn",
        "key": KEY,
        "unit": "tool:x",
        "argv": ["/bin/x"],
        "cwd": "/tmp",
        "env": {"A": "1", "PX_INSTANCE": KEY, "PX_UNIT": "tool:x"},
        "rlimits": [["nofile", 10, 20]],
        "grant_fds": [[3, "tool:x/listen"]],
        "set_listen_pid": True,
        "max_rss_bytes": 99,
        "memory_grace_seconds": 0.0,
        "tag": "note",
    }


@pytest.mark.parametrize(
    ("failure", "words", "hint"),
    [
        (("exec", 2), "program /bin/x, stage exec: No such file", "install it"),
        (("exec", 13), "Permission denied", "chmod"),
        (("exec", 8), "Exec format error", "#!"),
        (("chdir", 2), "working directory /tmp, stage chdir", "working directory"),
        (("rlimit", 1), "stage rlimit", "limit"),
        (("setsid", 1), "stage setsid", None),
    ],
)
async def test_a_spawn_that_fails_names_program_stage_and_reason(
    keeper: FakeKeeper, connect: Connect, failure: tuple[str, int], words: str, hint: str | None
) -> None:
    stage, number = failure
    keeper.verbs["spawn"] = lambda _m, _f: refusal("spawn_failed", stage=stage, errno=number)
    placement = await connect()
    with pytest.raises(StartFailedError) as caught:
        await placement.spawn(KEY, SPEC)
    assert words in caught.value.detail
    assert caught.value.unit == "tool:x"
    assert caught.value.extra == {"reason": "spawn_failed", "stage": stage, "errno": number}
    assert (hint is None) is (caught.value.hint is None)
    assert hint is None or hint in str(caught.value.hint)


async def test_a_keeper_that_is_stopping_starts_nothing(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["spawn"] = lambda _m, _f: refusal("shutdown")
    placement = await connect()
    with pytest.raises(ShuttingDownError):
        await placement.spawn(KEY, SPEC)


async def test_an_exit_is_not_lost_over_a_reason_that_is_not_in_the_list(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    placement = await connect()
    seen: list[ExitRecord] = []
    placement.on_exit(seen.append)
    verdict = {"reason": "of a newer keeper", "by": "control", "time": 1.0}
    keeper.emit("exit", record=exit_message(KEY, verdict=verdict))
    await until(lambda: seen)
    assert seen[0].verdict == Verdict(Reason.STOPPED, "control", 1.0)


async def test_a_spec_that_does_not_fit_a_frame_is_the_callers_error(connect: Connect) -> None:
    placement = await connect()
    with pytest.raises(TooLargeError):
        await placement.spawn(KEY, ChildSpec("tool:x", ("/bin/x",), "/", {"A": "x" * MAX_FRAME}))
    await placement.ready()


async def test_wait_for_a_key_that_nobody_holds_ends(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["list"] = lambda _m, _f: {"children": []}
    placement = await connect()
    with pytest.raises(UnknownUnitError, match=KEY):
        await placement.wait(KEY)


async def test_every_exit_is_told_once_to_each_listener_early_or_late(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    held = [child_message(KEY, exit=exit_message(KEY, code=7))]
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "children": held}
    placement = await connect()
    first: list[ExitRecord] = []
    placement.on_exit(first.append)
    for _ in range(3):  # the keeper repeats until it is released
        keeper.emit("exit", record=exit_message(KEY, code=7))
    keeper.emit("exit", record=exit_message("k2"))
    await until(lambda: len(first) >= 2)
    second: list[ExitRecord] = []
    placement.on_exit(second.append)
    await placement.release(KEY)
    third: list[ExitRecord] = []
    placement.on_exit(third.append)
    assert [it.key for it in first] == [KEY, "k2"]
    assert [it.key for it in second] == [KEY, "k2"]
    assert [it.key for it in third] == ["k2"]


async def test_a_failing_listener_harms_nobody(keeper: FakeKeeper, connect: Connect, until: Until) -> None:
    placement = await connect()
    seen: list[str] = []

    def broken(_: str) -> None:
        raise ValueError("a defect")

    placement.on_gone(broken)
    placement.on_gone(seen.append)
    keeper.emit("gone", key="a")
    keeper.emit("gone", key="b")
    await until(lambda: len(seen) == 2)
    assert seen == ["a", "b"]


async def test_events_that_come_before_a_listener_wait_for_it(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    placement = await connect()
    keeper.emit("over_memory", key="k", rss_bytes=10, limit_bytes=9, time=1.0)
    keeper.emit("log_degraded", unit="tool:x", errno=28, lost_bytes=0)
    keeper.emit("log_recovered", unit="tool:x", lost_bytes=5)
    keeper.emit("stop", signum=15)
    keeper.emit("reload")
    keeper.emit("dump")
    keeper.emit("something_of_a_newer_keeper", more=1)
    keeper.emit("gone", nothing="readable")
    keeper.emit("ping")
    await until(lambda: "alive" in keeper.verbs_asked())
    trouble: list[LogTrouble] = []
    control: list[ControlEvent] = []
    late: list[ControlEvent] = []
    placement.on_log_degraded(trouble.append)
    placement.on_control_event(control.append)
    placement.on_control_event(late.append)
    assert trouble == [LogTrouble("tool:x", 28, 0, recovered=False), LogTrouble("tool:x", None, 5, recovered=True)]
    assert control == [ControlEvent("stop", 15), ControlEvent("reload"), ControlEvent("dump")]
    assert late == []


async def test_stop_reports_what_survives(keeper: FakeKeeper, connect: Connect) -> None:
    survivors = [{"pid": 7, "name": "stuck", "start_time": 5}]
    keeper.verbs["stop"] = lambda _m, _f: {"survivors": survivors, "killed": True}
    placement = await connect(kill=3.0)
    report = await placement.stop(KEY, grace_seconds=1.5, reason="stopped")
    assert report == StopReport(KEY, (Survivor(7, "stuck", 5),), killed=True)
    asked = keeper.asked[-1]
    assert (asked["grace_seconds"], asked["kill_seconds"], asked["reason"]) == (1.5, 3.0, "stopped")


async def test_signals_stats_and_notes(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "children": [child_message(KEY)]}
    stats = {KEY: {"rss_bytes": 5, "cpu_seconds": 0.5, "processes": 2}}
    keeper.verbs["stat"] = lambda _m, _f: {"stats": stats}
    placement = await connect()
    await placement.signal(KEY, signal.SIGUSR1)
    assert (keeper.asked[-1]["signum"], keeper.asked[-1]["tree"]) == (signal.SIGUSR1, False)
    await placement.signal_group(KEY, signal.SIGINT)
    asked = keeper.asked[-1]
    assert (asked["signum"], asked["tree"], asked["group"]) == (signal.SIGINT, False, True)
    assert await placement.stat([KEY]) == {KEY: TreeStat(5, 0.5, 2)}
    await placement.annotate(KEY, "new")
    await placement.annotate("unknown here", "x")
    assert placement.children()[0].tag == "new"
    keeper.verbs["signal"] = lambda _m, _f: refusal("dead")
    with pytest.raises(ConflictError):
        await placement.signal(KEY, signal.SIGTERM)
    keeper.verbs["signal"] = lambda _m, _f: refusal("unknown_key")
    with pytest.raises(UnknownUnitError):
        await placement.signal(KEY, signal.SIGTERM)
    keeper.verbs["signal"] = lambda _m, _f: {"ok": False}
    with pytest.raises(PxError, match="refused"):
        await placement.signal(KEY, signal.SIGTERM)


async def test_a_late_list_does_not_revive_what_has_exited(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["list"] = lambda _m, _f: {"children": [child_message(KEY)]}
    placement = await connect()
    keeper.emit("exit", record=exit_message(KEY, code=2))
    (child,) = await placement.list("tool:")
    assert child.exit is not None
    assert child.exit.code == 2
    assert keeper.asked[-1]["prefix"] == "tool:"
