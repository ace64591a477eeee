"""The keeper's client: every call ends, every exit is told, a lost keeper is told to all; and
the frames it speaks.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import Any

import pytest

from supervisord_py import errors
from supervisord_py.errors import KeeperLostError, KeeperTimeoutError, PxError, StartFailedError
from supervisord_py.keeper.protocol import MAX_FRAME, FrameSocket, close_fds
from supervisord_py.process import keeper_client
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import ChildSpec, Reason, StopReport, Survivor, Verdict
from waiting import eventually

KEY = "0badc0de.000000abcdef"
SPEC = ChildSpec(unit="tool:x", argv=("/bin/x", "--port", "1"), cwd="/tmp", env={"A": "1"})
HELLO: dict[str, Any] = {
    "protocol": 1, "revision": 6, "pid": 4242, "started_at": 1000.0, "boot_id": "boot", "kill_rung":
    "subreaper",
    "memory_rung": "sampled", "children": [], "control_restarts": 0,
}  # fmt: skip
BOTH = {
    "unit": "tool:x",
    "pid": 99,
    "start_time": 12345,
    "boot_id": "boot",
    "started_at": 2000.0,
    "log_position": 0,
}
CHILD = {**BOTH, "tag": "", "tree_alive": True, "exit": None}
EXIT = {
    **BOTH,
    "ended_at": 2007.0,
    "code": 0,
    "signal": None,
    "user_seconds": 0.5,
    "system_seconds": 0.25,
}
EXIT |= {"max_rss_bytes": 1 << 20, "log_end": 10, "verdict": None, "key": KEY}


def refusal(kind: str, **members: Any) -> dict[str, Any]:
    return {"ok": False, "error": {"kind": kind, "detail": f"refused: {kind}", **members}}


class FakeKeeper:
    """Answers by verb; what is not in the table is answered with an empty yes.

    `None` means: never answer.
    """

    def __init__(self) -> None:
        self.control, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.frames = FrameSocket(self.channel)
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, dict[str, Any] | None] = {"hello": HELLO}
        self.client: KeeperClient | None = None
        asyncio.get_running_loop().add_reader(self.channel, self._serve)

    async def connect(self) -> KeeperClient:
        self.client = await KeeperClient.connect(
            self.control, daemon_id="0badc0de", log_dir="/logs"
        )
        return self.client

    def send(self, message: dict[str, Any], *fds: int) -> None:
        self.frames.push(message, fds)
        with suppress(OSError):
            assert self.frames.flush()

    def emit(self, event: str, **members: Any) -> None:
        self.send({"event": event, **members})

    async def is_asked(self, verb: str) -> dict[str, Any]:
        """Wait for a request of that verb; return the last one."""
        return await eventually(
            lambda: next((it for it in self.asked[::-1] if it["verb"] == verb), None)
        )  # type: ignore[no-any-return]

    def hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self.channel)
        self.frames.close()

    def _serve(self) -> None:
        if self.frames.read(self._take) is not None:
            self.hang_up()

    def _take(self, message: dict[str, Any], fds: list[int]) -> None:
        close_fds(fds)
        self.asked.append(message)
        answer = self.answers.get(message["verb"], {})
        if answer is not None and "id" in message:
            key = {"child": {**CHILD, "key": message["key"]}} if message["verb"] == "spawn" else {}
            self.send({"ok": True, **key, **answer, "id": message["id"]})


@pytest.fixture
async def keeper() -> AsyncIterator[FakeKeeper]:
    fake = FakeKeeper()
    yield fake
    if fake.client is not None:
        fake.client.close()
    if fake.channel.fileno() >= 0:
        fake.hang_up()
    fake.control.close()


@pytest.mark.parametrize(
    ("hello", "words"),
    [(refusal("protocol"), "protocol"), ({"protocol": 1, "pid": 1}, "cannot be read")],
)
async def test_another_protocol_or_a_broken_greeting_is_refused(
    keeper: FakeKeeper, hello: dict[str, Any], words: str
) -> None:
    keeper.answers["hello"] = hello
    with pytest.raises(KeeperLostError, match=words):
        await keeper.connect()
    assert keeper.control.fileno() == -1


@pytest.mark.parametrize(
    ("kind", "stage", "number", "words", "hint"),
    [
        (StartFailedError, "exec", 2, "program /bin/x is not there", "install it"),
        (StartFailedError, "exec", 8, "Exec format error", "#!"),
        (StartFailedError, "chdir", 2, "working directory /tmp, stage chdir", "working directory"),
        (StartFailedError, "setsid", 1, "stage setsid", ""),
        (errors.ShuttingDownError, "shutdown", 0, "shutdown", ""),
        (errors.ConflictError, "dead", 0, "dead", ""),
        (errors.UnknownUnitError, "unknown_key", 0, "unknown_key", ""),
        (PxError, "failed", 0, "refused", ""),
    ],
)
async def test_a_refusal_names_program_stage_and_reason(
    keeper: FakeKeeper, kind: type[PxError], stage: str, number: int, words: str, hint: str
) -> None:
    keeper.answers["spawn"] = (
        refusal("spawn_failed", stage=stage, errno=number) if number else refusal(stage)
    )
    client = await keeper.connect()
    with pytest.raises(kind, match=words) as caught:
        await client.spawn(KEY, SPEC)
    assert hint in str(caught.value.hint)
    facts = {"reason": "spawn_failed", "stage": stage, "errno": number}
    assert not number or facts.items() <= caught.value.extra.items()


async def test_an_exit_is_not_lost_over_a_reason_that_is_not_in_the_list(
    keeper: FakeKeeper,
) -> None:
    client = await keeper.connect()
    await client.spawn(KEY, SPEC)
    keeper.emit(
        "exit",
        record={**EXIT, "verdict": {"reason": "of a newer keeper", "by": "control", "time": 1.0}},
    )
    keeper.emit("exit", record={**EXIT, "code": 7})  # the keeper repeats until it is released
    assert (await client.wait(KEY)).verdict == Verdict(Reason.STOPPED, "control", 1.0)


async def test_what_cannot_be_sent_or_is_not_held_is_an_error_and_survivors_are_named(
    keeper: FakeKeeper,
) -> None:
    keeper.answers["list"] = {"children": []}
    keeper.answers["stop"] = {
        "survivors": [{"pid": 7, "name": "stuck", "start_time": 5}],
        "killed": True,
    }
    client = await keeper.connect()
    with pytest.raises(errors.TooLargeError):
        await client.spawn(KEY, ChildSpec("tool:x", ("/bin/x",), "/", {"A": "x" * MAX_FRAME}))
    with pytest.raises(errors.UnknownUnitError, match=KEY):
        await client.wait(KEY)
    report = await client.stop(KEY, grace_seconds=1.5, reason="stopped")
    assert report == StopReport((Survivor(7, "stuck", 5),), killed=True)


async def test_events_that_come_before_a_listener_wait_for_it_and_its_defect_harms_nobody(
    keeper: FakeKeeper,
) -> None:
    client = await keeper.connect()
    early = [
        {"event": "log_degraded", "unit": "tool:x", "errno": 28, "lost_bytes": 0},
        {"event": "reload"},
    ]
    for event in early:
        keeper.emit(**event)
    keeper.emit("gone", nothing="readable")
    keeper.emit("ping")
    await keeper.is_asked("alive")
    told: list[dict[str, Any]] = []

    def broken(event: dict[str, Any]) -> None:
        told.append(event)
        raise ValueError("a defect")

    client.listen(broken)
    keeper.emit("stop", signum=15)
    await eventually(lambda: len(told) == 3)
    assert told == [*early, {"event": "stop", "signum": 15}]


# -- a keeper that is gone, mute or late -----------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
async def test_the_channels_end_ends_every_call_and_only_the_keepers_is_a_loss(
    keeper: FakeKeeper, ours: bool
) -> None:
    keeper.answers["stat"] = None
    client = await keeper.connect()
    await client.spawn(KEY, SPEC)
    ended = await client.spawn(f"{KEY}2", SPEC)
    keeper.emit("exit", record={**EXIT, "key": ended.key, "code": 4})
    told: list[str] = []
    client.listen(lambda event: told.append(event["event"]))
    pending = [asyncio.ensure_future(it) for it in (client.wait(KEY), client.stat([KEY]))]
    await keeper.is_asked("stat")
    client.close() if ours else keeper.hang_up()
    for task in pending:
        with pytest.raises(KeeperLostError):
            await asyncio.wait_for(task, 60)
    assert (client.lost, told) == (True, [] if ours else ["lost"])
    with pytest.raises(KeeperLostError):
        await client.wait(KEY)
    assert ours or (await client.wait(ended.key)).code == 4, (
        "what was told before the loss can still be had"
    )


async def test_a_late_answer_goes_with_its_descriptor(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.answers["take_fd"] = None
    client = await keeper.connect()
    # only now: the greeting may take its time
    monkeypatch.setattr(keeper_client, "CALL_SECONDS", 0.05)
    with pytest.raises(KeeperTimeoutError, match="did not answer `take_fd`"):
        await client.take_fd("n")
    asked = await keeper.is_asked("take_fd")  # maybe after we gave up
    read, write = os.pipe()
    keeper.send({"id": asked["id"], "ok": True, "fds": 1}, write)
    keeper.send({"event": "gone", "key": "k", "fds": 1}, write)
    keeper.send({"id": 999_999, "ok": True})
    keeper.emit("ping")
    os.close(write)
    await keeper.is_asked("alive")
    assert os.read(read, 1) == b""  # every duplicate of the writing end is closed
    os.close(read)


async def test_who_gives_up_in_the_moment_of_the_answer_leaks_no_descriptor(
    keeper: FakeKeeper,
) -> None:
    read, write = os.pipe()
    keeper.answers["take_fd"] = None
    client = await keeper.connect()
    task = asyncio.ensure_future(client.take_fd("n"))
    asked = await keeper.is_asked("take_fd")
    keeper.send({"id": asked["id"], "ok": True, "fds": 1}, write)
    os.close(write)
    client._readable()  # the answer arrives, and before its asker runs again …
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.read(read, 1) == b""
    os.close(read)


async def test_an_answer_in_the_turn_of_its_deadline_counts_and_leaks_no_descriptor(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    keeper.answers["take_fd"] = None
    client = await keeper.connect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        keeper.asked.clear()
        task = asyncio.ensure_future(client.take_fd("n"))
        asked = await eventually(lambda: keeper.asked)
        read, write = os.pipe()
        keeper.send({"id": asked[0]["id"], "ok": True, "fds": 1}, write)
        os.close(write)
        # In its next turn the loop reads the answer, and only then looks at the timer of the
        # deadline.
        now = loop.time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda moment=now: moment + 2 * keeper_client.CALL_SECONDS)
            fd = await task
        assert fd is not None
        os.close(fd)
        assert os.read(read, 1) == b"", "no other duplicate is open"
        os.close(read)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("verb", ["hello", "list", "stop"])
async def test_what_needs_an_outcome_is_asked_again_until_a_silent_keeper_answers(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for name, seconds in {"CALL_SECONDS": 0.05, "KILL_SECONDS": 0.0, "SLACK_SECONDS": 0.05}.items():
        monkeypatch.setattr(keeper_client, name, seconds)
    monkeypatch.setattr(keeper_client, "ASK_AGAIN_SECONDS", 0.01)
    answer = keeper.answers.pop(verb, {})
    keeper.answers[verb] = None

    async def request() -> KeeperClient:
        client = keeper.client or await keeper.connect()
        if verb == "list":
            assert await client.list() == ()
        elif verb == "stop":
            assert await client.stop(KEY, grace_seconds=0.0, reason="stopped") == StopReport()
        return client

    for _ in range(2):
        keeper.answers[verb] = None
        count = sum(asked["verb"] == verb for asked in keeper.asked)
        task = asyncio.create_task(request())

        def asked_times(known: int = count) -> int:
            return sum(asked["verb"] == verb for asked in keeper.asked) - known

        await eventually(lambda: asked_times() == 1)
        keeper.emit("ping")  # it speaks, and did not answer this one
        if verb != "hello":
            await eventually(lambda: keeper.client is not None and not keeper.client.is_silent)
        keeper.answers[verb] = answer

        async def answered(task: asyncio.Task[KeeperClient] = task) -> bool:
            keeper.emit("ping")
            return task.done()

        await eventually(answered)
        assert task.result().lost is False
        assert asked_times() >= 2
        if verb == "hello":
            return


async def test_a_silent_keeper_is_told_once_and_once_that_it_speaks_again(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.answers["stat"] = None
    client = await keeper.connect()
    told: list[str] = []
    client.listen(lambda event: told.append(event["event"]))
    monkeypatch.setattr(keeper_client, "CALL_SECONDS", 0.05)
    for _ in range(2):
        told.clear()
        for _ in range(2):
            with pytest.raises(KeeperTimeoutError) as caught:
                await client.stat([KEY])
            assert (caught.value.kind, caught.value.status, caught.value.exit_code) == (
                "keeper_timeout",
                504,
                7,
            )
        assert (told, client.is_silent, client.lost) == (["silent"], True, False)
        keeper.emit("ping")
        await eventually(lambda: not client.is_silent)
        assert told == ["silent", "speaks"]


async def test_a_keeper_that_is_lost_while_it_is_silent_ends_what_is_asked_again(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.answers["list"] = None
    client = await keeper.connect()
    monkeypatch.setattr(keeper_client, "CALL_SECONDS", 0.05)
    asking = asyncio.create_task(client.list())
    await eventually(lambda: client.is_silent)
    keeper.hang_up()
    with pytest.raises(KeeperLostError):
        await asking
    assert (client.lost, client.is_silent) == (True, False)


async def test_who_must_answer_gives_up_on_a_silent_keeper_and_the_work_goes_on(
    keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.answers["list"] = None
    client = await keeper.connect()
    monkeypatch.setattr(keeper_client, "CALL_SECONDS", 0.05)
    monkeypatch.setattr(keeper_client, "ASK_AGAIN_SECONDS", 0.01)
    listed: list[Any] = []

    async def work() -> int:
        listed.append(await client.list())
        return 7

    for _ in range(2):
        keeper.answers["list"] = None
        listed.clear()
        with pytest.raises(KeeperTimeoutError, match="not known whether x stopped"):
            await client.unless_silent(work(), "x stopped")
        assert listed == []
        keeper.answers["list"] = {"children": []}
        keeper.emit("ping")
        await eventually(lambda: listed == [()])
    assert await client.unless_silent(work(), "x stopped") == 7


async def test_an_older_keeper_starts_nothing(keeper: FakeKeeper) -> None:
    """It would do a part of what is asked, and leave out the rest in silence."""
    keeper.answers["hello"] = {**HELLO, "revision": 5}
    client = await keeper.connect()
    with pytest.raises(StartFailedError, match="older"):
        await client.spawn(KEY, SPEC)
    assert [it["verb"] for it in keeper.asked] == ["hello"]


# -- frames and descriptors over a socket: exact, in order, non-blocking, nothing leaked -----------


def frame(message: object) -> bytes:
    """Return the bytes of one frame, by the protocol's text and not by its code."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def frames(sock: FrameSocket) -> list[tuple[dict[str, Any], list[int]]]:
    found: list[tuple[dict[str, Any], list[int]]] = []
    seen = -1
    while seen < len(found):
        seen = len(found)
        sock.read(lambda message, fds: found.append((message, fds)))
    return found


WRONG = [
    struct.pack(">I", 3) + b"{]}",
    struct.pack(">I", 2) + b"[]",
    struct.pack(">I", 1) + b"\xff",
]
WRONG += [struct.pack(">I", MAX_FRAME + 1), frame({"fds": 1}), frame({"fds": "x"})]


@pytest.mark.parametrize("data", WRONG)
def test_what_is_not_of_the_protocol_is_refused_after_what_is(data: bytes) -> None:
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock, taken = FrameSocket(reader), []
    with writer:
        writer.sendall(frame({"n": 1}) + data)
        assert "frame" in (sock.read(lambda *frame: taken.append(frame)) or "")
    assert taken == [({"n": 1}, [])]
    sock.close()


def test_descriptors_arrive_with_their_frame_and_a_peer_that_does_not_read_blocks_nobody_and_gets_everything() -> (
    None
):
    left, right = (
        FrameSocket(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    )
    pipes, found = [os.pipe() for _ in range(3)], list[Any]()
    carried = {0: pipes[:1], 29: pipes[1:]}
    with closing(left), closing(right):
        for number in range(31):
            left.push(
                {"n": number, "body": "x" * 100_000}, [read for read, _ in carried.get(number, [])]
            )
        assert not left.flush()
        for _ in range(100):
            found += frames(right)
            left.flush()
    came = [fd for _, fds in found for fd in fds]
    assert [(message["n"], len(fds)) for message, fds in found] == [
        (at, len(carried.get(at, []))) for at in range(31)
    ]
    for number, (_, write) in enumerate(pipes):
        os.write(write, b"%d" % number)
    assert [os.read(fd, 9) for fd in came] == [b"0", b"1", b"2"]
    assert not any(os.get_inheritable(fd) for fd in came)
    close_fds([*came, *(fd for ends in pipes for fd in ends)])  # the sender's own stayed his


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS])
def test_a_send_that_fails_for_want_of_memory_is_tried_again(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left, right = (FrameSocket(end) for end in pair)
    reader, writer = os.pipe()
    real, failures = socket.send_fds, [number] * 2

    def send_fds(*words: Any) -> int:
        if failures:
            raise OSError(failures.pop(), "short")
        return real(*words)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    with closing(left), closing(right):
        left.push({"n": 1}, [reader])
        assert [left.flush() for _ in range(3)] == [False, False, True]
        ((message, fds),) = frames(right)
        assert (message["n"], len(fds)) == (1, 1)
    close_fds([reader, writer, *fds])


def test_both_sides_see_the_end_after_a_send_that_lost_its_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left, right = (FrameSocket(end) for end in pair)
    reader, writer = os.pipe()

    def send_fds(*_: Any) -> int:
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(socket, "send_fds", send_fds)
    with closing(left), closing(right):
        left.push({"n": 1}, [reader])
        with pytest.raises(OSError, match="refused"):
            left.flush()
        for side in (left, right):
            assert side.read(lambda *_: None) == ""
    close_fds([reader, writer])


def test_the_end_comes_after_all_that_was_said_and_closes_what_was_queued() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock = FrameSocket(ours)
    read, write = os.pipe()
    theirs.sendall(frame({"n": 1}))
    theirs.close()
    sock.push({"to": "nobody"}, [write])
    os.close(write)
    with pytest.raises(OSError, match="pipe"):
        sock.flush()
    # the duplicate of the writing end is closed: nobody can write any more
    assert os.read(read, 1) == b""
    os.close(read)
    assert [message for message, _ in frames(sock)] == [{"n": 1}]
    assert sock.read(lambda *_: None) == ""
    sock.close()
