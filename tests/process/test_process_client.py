"""The placement over the channel: every call ends, every exit is told, a lost keeper is told to all, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from supervisord_py.errors import (
    ConflictError,
    KeeperLostError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TooLargeError,
    UnknownUnitError,
)
from supervisord_py.keeper.protocol import MAX_FRAME, FrameSocket, close_fds
from supervisord_py.process import keeper_client
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import ChildSpec, Reason, StopReport, Survivor, Verdict
from waiting import eventually

Connect = Callable[..., Awaitable[KeeperClient]]
Reply = tuple[dict[str, Any], list[int]] | dict[str, Any] | None
Verb = Callable[[dict[str, Any], list[int]], Reply]

DAEMON = "0badc0de"
HELLO: dict[str, Any] = {
    "protocol": 1, "revision": 6, "pid": 4242, "started_at": 1000.0, "boot_id": "boot", "kill_rung": "subreaper",
    "memory_rung": "sampled", "children": [], "control_restarts": 0,
}  # fmt: skip
_BOTH = {"unit": "tool:x", "pid": 99, "start_time": 12345, "boot_id": "boot", "started_at": 2000.0, "log_position": 0}
_CHILD = {**_BOTH, "tag": "", "tree_alive": True, "exit": None}
_EXIT = {
    **_BOTH, "ended_at": 2007.0, "code": 0, "signal": None, "user_seconds": 0.5, "system_seconds": 0.25,
    "max_rss_bytes": 1 << 20, "log_end": 10, "verdict": None,
}  # fmt: skip


def child_message(key: str, **changes: Any) -> dict[str, Any]:
    return {**_CHILD, "key": key, **changes}


def exit_message(key: str, **changes: Any) -> dict[str, Any]:
    return {**_EXIT, "key": key, **changes}


def refusal(kind: str, **members: Any) -> dict[str, Any]:
    return {"ok": False, "error": {"kind": kind, "detail": f"refused: {kind}", **members}}


class FakeKeeper:
    """Answers by a table of verbs; what is not in it is answered with an empty yes. `None` means: never answer."""

    def __init__(self) -> None:
        self.control, self._mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._frames = FrameSocket(self._mine)
        self.asked: list[dict[str, Any]] = []
        self.verbs: dict[str, Verb] = {"hello": lambda _message, _fds: dict(HELLO)}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def emit(self, event: str, **members: Any) -> None:
        self.send({"event": event, **members})

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one frame; the descriptors stay open here."""
        with self._lock:
            self._frames.push(message, fds or ())
            while not self._frames.flush():
                select.select([], [self._mine], [])

    def verbs_asked(self) -> list[str]:
        return [str(message["verb"]) for message in list(self.asked)]

    def hang_up(self) -> None:
        self._mine.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._frames.close()

    def _serve(self) -> None:
        while select.select([self._mine], [], []) and self._frames.receive():
            while (frame := self._frames.next_frame()) is not None:
                message, fds = frame
                self.asked.append(message)
                reply = self.verbs.get(str(message["verb"]), lambda _message, _fds: {})(message, fds)
                close_fds(fds)
                if reply is not None and "id" in message:
                    members, carried = reply if isinstance(reply, tuple) else (reply, [])
                    self.send({"ok": True, **members, "id": message["id"]}, carried)


@pytest.fixture
def keeper() -> Iterator[FakeKeeper]:
    fake = FakeKeeper()
    yield fake
    with suppress(OSError):
        fake.hang_up()
    fake.control.close()


@pytest.fixture
async def connect(keeper: FakeKeeper) -> AsyncIterator[Connect]:
    made: list[KeeperClient] = []

    async def make() -> KeeperClient:
        placement = await KeeperClient.connect(keeper.control, daemon_id=DAEMON, log_dir="/logs")
        made.append(placement)
        return placement

    yield make
    for placement in made:
        placement.close()


KEY = f"{DAEMON}.000000abcdef"
SPEC = ChildSpec(unit="tool:x", argv=("/bin/x", "--port", "1"), cwd="/tmp", env={"A": "1"})


@pytest.mark.parametrize(
    ("hello", "words"), [(refusal("protocol"), "protocol"), ({"protocol": 1, "pid": 1}, "cannot be read")]
)
async def test_another_protocol_or_a_broken_greeting_is_refused_and_the_channel_closed(
    keeper: FakeKeeper, connect: Connect, hello: dict[str, Any], words: str
) -> None:
    keeper.verbs["hello"] = lambda _m, _f: hello
    with pytest.raises(KeeperLostError, match=words):
        await connect()
    assert keeper.control.fileno() == -1


@pytest.mark.parametrize(
    ("failure", "words", "hint"),
    [
        (("exec", 2), "program /bin/x, stage exec: No such file", "install it"),
        (("exec", 8), "Exec format error", "#!"),
        (("chdir", 2), "working directory /tmp, stage chdir", "working directory"),
        (("setsid", 1), "stage setsid", None),
    ],
)
async def test_a_spawn_that_fails_names_program_stage_and_reason(
    keeper: FakeKeeper, connect: Connect, failure: tuple[str, int], words: str, hint: str | None
) -> None:
    stage, number = failure
    keeper.verbs["spawn"] = lambda _m, _f: refusal("spawn_failed", stage=stage, errno=number)
    placement = await connect()
    with pytest.raises(StartFailedError, match=words) as caught:
        await placement.spawn(KEY, SPEC)
    assert caught.value.extra == {"reason": "spawn_failed", "stage": stage, "errno": number}
    assert (hint or "") in str(caught.value.hint)
    keeper.verbs["spawn"] = lambda _m, _f: refusal("shutdown")
    with pytest.raises(ShuttingDownError):
        await placement.spawn(KEY, SPEC)


async def test_an_exit_is_not_lost_over_a_reason_that_is_not_in_the_list(keeper: FakeKeeper, connect: Connect) -> None:
    held = [child_message(KEY)]
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "children": held}
    placement = await connect()
    verdict = {"reason": "of a newer keeper", "by": "control", "time": 1.0}
    keeper.emit("exit", record=exit_message(KEY, verdict=verdict))
    keeper.emit("exit", record=exit_message(KEY, code=7))  # the keeper repeats until it is released
    assert (await placement.wait(KEY)).verdict == Verdict(Reason.STOPPED, "control", 1.0)


async def test_what_cannot_be_sent_or_is_not_held_is_an_error(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["list"] = lambda _m, _f: {"children": []}
    placement = await connect()
    with pytest.raises(TooLargeError):
        await placement.spawn(KEY, ChildSpec("tool:x", ("/bin/x",), "/", {"A": "x" * MAX_FRAME}))
    with pytest.raises(UnknownUnitError, match=KEY):
        await placement.wait(KEY)


async def test_events_that_come_before_a_listener_wait_for_it_and_its_defect_harms_nobody(
    keeper: FakeKeeper, connect: Connect
) -> None:
    placement = await connect()
    early = [{"event": "log_degraded", "unit": "tool:x", "errno": 28, "lost_bytes": 0}, {"event": "reload"}]
    for event in early:
        keeper.emit(**event)
    keeper.emit("gone", nothing="readable")
    keeper.emit("ping")
    await eventually(lambda: "alive" in keeper.verbs_asked())
    told: list[dict[str, Any]] = []

    def broken(event: dict[str, Any]) -> None:
        told.append(event)
        raise ValueError("a defect")

    placement.listen(broken)
    keeper.emit("stop", signum=15)
    await eventually(lambda: len(told) == 3)
    assert told == [*early, {"event": "stop", "signum": 15}]


async def test_stops_and_signals(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "children": [child_message(KEY)]}
    survivors = [{"pid": 7, "name": "stuck", "start_time": 5}]
    keeper.verbs["stop"] = lambda _m, _f: {"survivors": survivors, "killed": True}
    placement = await connect()
    report = await placement.stop(KEY, grace_seconds=1.5, reason="stopped")
    assert report == StopReport(KEY, (Survivor(7, "stuck", 5),), killed=True)
    answers = [(refusal("dead"), ConflictError), (refusal("unknown_key"), UnknownUnitError), ({"ok": False}, PxError)]
    for answer, kind in answers:
        keeper.verbs["signal"] = lambda _m, _f, answer=answer: answer
        with pytest.raises(kind):
            await placement.signal_group(KEY, signal.SIGTERM)


# -- a keeper that is gone, mute or late -------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
async def test_the_end_of_the_channel_ends_every_call_and_only_the_keepers_is_a_loss(
    keeper: FakeKeeper, connect: Connect, ours: bool
) -> None:
    keeper.verbs["spawn"] = lambda message, _f: {"child": child_message(message["key"])}
    keeper.verbs["stat"] = lambda _m, _f: None
    placement = await connect()
    await placement.spawn(KEY, SPEC)
    ended = await placement.spawn(f"{KEY}2", SPEC)
    keeper.emit("exit", record=exit_message(ended.key, code=4))
    told: list[str] = []
    placement.listen(lambda event: told.append(event["event"]))
    pending = [asyncio.ensure_future(it) for it in (placement.wait(KEY), placement.stat([KEY]))]
    await eventually(lambda: "stat" in keeper.verbs_asked())
    placement.close() if ours else keeper.hang_up()
    for task in pending:
        with pytest.raises(KeeperLostError):
            await asyncio.wait_for(task, 60)
    assert (placement.lost, told) == (True, [] if ours else ["lost"])
    with pytest.raises(KeeperLostError):
        await placement.wait(KEY)
    assert ours or (await placement.wait(ended.key)).code == 4, "what was told before the loss can still be had"


async def test_a_late_answer_is_dropped_with_its_descriptor(
    keeper: FakeKeeper, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.verbs["take_fd"] = lambda _m, _f: None
    placement = await connect()
    monkeypatch.setattr(keeper_client, "CALL_SECONDS", 0.05)  # only now: the greeting may take its time
    with pytest.raises(KeeperLostError, match="did not answer `take_fd`"):
        await placement.take_fd("n")
    await eventually(lambda: "take_fd" in keeper.verbs_asked())  # maybe after we gave up
    read, write = os.pipe()
    keeper.send({"id": keeper.asked[-1]["id"], "ok": True, "fds": 1}, [write])
    keeper.send({"event": "gone", "key": "k", "fds": 1}, [write])
    keeper.send({"id": 999_999, "ok": True})
    keeper.emit("ping")
    os.close(write)
    await eventually(lambda: "alive" in keeper.verbs_asked())
    assert os.read(read, 1) == b""  # every duplicate of the writing end is closed
    os.close(read)


async def test_who_gives_up_in_the_moment_of_the_answer_leaks_no_descriptor(
    keeper: FakeKeeper, connect: Connect
) -> None:
    read, write = os.pipe()
    keeper.verbs["take_fd"] = lambda _m, _f: None
    placement = await connect()
    task = asyncio.ensure_future(placement.take_fd("n"))
    await eventually(lambda: "take_fd" in keeper.verbs_asked())
    keeper.send({"id": keeper.asked[-1]["id"], "ok": True, "fds": 1}, [write])
    os.close(write)
    placement._readable()  # the answer arrives, and before its asker runs again …
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.read(read, 1) == b""
    os.close(read)


async def test_an_older_keeper_starts_nothing(keeper: FakeKeeper, connect: Connect) -> None:
    """It would do a part of what is asked, and leave out the rest in silence."""
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "revision": 5}
    placement = await connect()
    with pytest.raises(StartFailedError, match="older"):
        await placement.spawn(KEY, SPEC)
    assert "spawn" not in keeper.verbs_asked()
