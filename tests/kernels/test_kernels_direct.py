"""Messages and their framings; the direct backend with real kernels: starts, cells of ours and of
stock kernels, interrupts, taking over, front ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.kernel_rig import PATIENCE, KernelRig, Running, eventually, kernel_house
from kernels.resolver_house import script
from supervisord_py.errors import (
    ConflictError,
    InterruptedRunError,
    InvalidInputError,
    OverloadedError,
    PxError,
)
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels import messaging, wire
from supervisord_py.kernels.backend import KernelGoneError, Launch, Reply
from supervisord_py.kernels.channels import GAP, OVERRUN, KernelSockets, open_channels
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.session import CellStatus
from supervisord_py.kernels.wire import V1, Message
from waiting import alive

WAITS = (
    "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): "
    "time.sleep(0.01)\n"
)
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
async def rig(short_tmp: Path) -> AsyncIterator[KernelRig]:
    async with kernel_house(short_tmp) as made:
        yield made


async def started(rig: KernelRig, launch: Launch) -> Running:
    kernel = Running(rig, launch)
    await kernel.start()
    return kernel


@pytest.fixture(params=["ours", "stock"])
async def kernel(request: pytest.FixtureRequest, rig: KernelRig) -> Running:
    """One that writes its cells' files by itself, and one that knows nothing of us."""
    return await started(rig, rig.stock() if request.param == "stock" else rig.launch())


def program(rig: KernelRig, code: str) -> tuple[str, ...]:
    return str(script(rig.folder / "program", code)), "{connection_file}"


async def failing(rig: KernelRig, launch: Launch) -> PxError:
    """Start what does not come up, check that nothing is left, and return the error."""
    with pytest.raises(PxError) as caught:
        await started(rig, launch)
    assert not place.folder_of(rig.config.run_dir, launch.session_id).exists()
    assert await rig.placement.attach(launch.instance) is None
    assert not any(alive(it.pid) for it in rig.started if it.pid is not None)
    return caught.value


async def test_a_start_that_fails_says_why_and_leaves_nothing(rig: KernelRig) -> None:
    error = await failing(
        rig, rig.stock(kernelspec_argv=program(rig, "echo one >&2; echo two >&2; exit 3"))
    )
    assert "exited with code 3 before it was ready: two" in error.detail
    assert error.extra["stderr_tail"] == "one\ntwo\n"
    assert (error.extra["reason"], error.extra["code"], error.extra["signal"]) == (
        "early_exit",
        3,
        None,
    )
    rig.config = replace(rig.config, start_seconds=0.2)
    late = await failing(rig, rig.stock(kernelspec_argv=program(rig, "sleep 600")))
    assert late.extra["reason"] == "readiness_timeout"
    assert "it does not answer" in late.detail
    rig.config = replace(rig.config, run_dir=rig.folder / ("d" * 90))
    long = await failing(rig, rig.launch())
    room = place.SOCKET_PATH_MAX - len("/k/123456789012/s-1")
    assert (str(rig.config.run_dir) in long.detail, f"at most {room} bytes" in str(long.hint)) == (
        True,
        True,
    )


def test_the_folder_of_a_session_has_the_same_sockets_and_key_at_each_start(
    short_tmp: Path,
) -> None:
    """So that a front end's sockets find it; another session, or another runtime directory, has
    others.
    """
    first = place.make(short_tmp, "s-1")
    folder = first.file.parent
    (folder / "s-1").touch()
    again = place.make(short_tmp, "s-1")  # a dead predecessor's folder is in the way
    assert (again.file, again.key, os.listdir(folder)) == (first.file, first.key, [place.FILE])
    assert place.read(again.file) == again
    assert place.make(short_tmp / "other", "s-1").key != first.key
    assert place.make(short_tmp, "dead").key != first.key
    place.sweep(short_tmp, {"s-1"})
    assert sorted(os.listdir(short_tmp / place.FOLDER)) == [place.SECRET, folder.name]
    assert (short_tmp / place.FOLDER / place.SECRET).stat().st_mode & 0o777 == 0o600


async def test_the_reply_of_a_stock_kernel_that_left_may_come_a_while_after_the_news_of_its_end(
    rig: KernelRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone says that the end was wished for: the thread that reads the sockets may be late
    on a busy machine.
    """
    kernel = await started(rig, rig.stock())
    hear, loop = kernel.handle.hear, asyncio.get_running_loop()

    def late(message: wire.Message) -> None:
        if message.channel == "shell":
            kernel.handle.died.add_done_callback(lambda _: loop.call_later(0.1, hear, message))
        else:
            hear(message)

    monkeypatch.setattr(kernel.handle._sockets, "_hear", late)
    monkeypatch.setattr(messaging, "REPLY_SECONDS", PATIENCE)
    reply = (await kernel.run("exit()")).reply
    assert (reply.status, reply.ask_exit) == (CellStatus.OK, True)


async def test_the_work_of_another_client_is_seen(kernel: Running) -> None:
    channels = await open_channels(kernel.handle.connection_file)
    channels.send(wire.make("execute_request", {**wire.EXECUTE, "code": WAITS}, "front"))
    await eventually(lambda: kernel.handle.foreign_busy, "the news of it")
    assert kernel.handle.foreign_used_at is not None
    Path(kernel.launch.cwd, "go").touch()
    await eventually(lambda: not kernel.handle.foreign_busy, "the end of the other client's cell")
    await channels.close()


async def test_what_a_stock_kernel_loses_is_told(
    rig: KernelRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faster than can be written, or without the word that all of it came: the reply says that
    it is lossy.
    """
    stock = await started(rig, rig.stock())
    with monkeypatch.context() as tight:
        tight.setattr(messaging, "QUEUE_BYTES", 100)
        reply = (await stock.run("print('x' * 1000)")).reply
    assert (reply.status, reply.lossy) == (CellStatus.OK, True)
    assert "missing" in str(reply.notice)
    with monkeypatch.context() as deaf:
        deaf.setattr(messaging, "IDLE_SECONDS", 0.05)
        deaf.setattr(
            wire.Message, "state", property(lambda it: "busy" if it.type == "status" else None)
        )
        reply = (await stock.run("1")).reply
    assert (reply.status, reply.lossy) == (CellStatus.OK, True)
    assert "was not heard" in str(reply.notice)
    assert not (await stock.run("1")).reply.lossy


async def interrupted(kernel: Running, running: asyncio.Future[Reply]) -> None:
    """Wait for the end of an interrupted cell.

    Python may take the signal just as it falls asleep, and IPython drops one that hits its
    callbacks (1 of 200 was seen of each): there the second rung ends the cell, as in a call.
    """
    await asyncio.wait({running}, timeout=5.0)
    if not running.done():
        assert await kernel.handle.interrupt() == "sigint"
    async with asyncio.timeout(PATIENCE):
        reply = await running
    assert reply.error is not None
    # where it just begins
    assert reply.error.name in {"KeyboardInterrupt", "CancelledError", "NoReply"}


async def test_an_interrupt_that_comes_before_its_cell_has_begun_waits_for_it_and_ends_it(
    kernel: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle kernel ignores the signal: it is sent once the cell has begun, as its files or
    messages say.
    """
    monkeypatch.setattr(kernel.handle, "_next_rung_seconds", PATIENCE)
    _, running = kernel.begin(SLEEPS)
    await asyncio.sleep(0)  # sent, and not a moment later
    assert await kernel.handle.interrupt() == "sigint"
    await interrupted(kernel, running)
    os.kill(kernel.handle.child.identity.pid, signal.SIGSTOP)
    _, running = kernel.begin(SLEEPS)
    await asyncio.sleep(0)
    interrupting = asyncio.ensure_future(kernel.handle.interrupt())
    await asyncio.wait({interrupting}, timeout=0.5)
    assert not interrupting.done(), "it would have been lost on an idle kernel"
    os.kill(kernel.handle.child.identity.pid, signal.SIGCONT)
    assert await interrupting == "sigint"
    await interrupted(kernel, running)


async def test_a_kernelspec_may_ask_to_be_interrupted_by_message(rig: KernelRig) -> None:
    rig.config = replace(rig.config, ladder_terminate_seconds=3 * PATIENCE)
    kernel = await started(rig, rig.stock(interrupt_mode="message"))
    _, running = await kernel.begin_and_wait(f"print('begun', flush=True)\n{SLEEPS}")
    assert await kernel.handle.interrupt() == "interrupt_request"
    async with asyncio.timeout(PATIENCE):
        reply = await running
    assert reply.error is not None
    assert reply.error.name == "KeyboardInterrupt"


async def test_a_stock_kernel_that_is_done_and_whose_reply_nobody_heard_is_not_claimed_to_be_well(
    rig: KernelRig,
) -> None:
    stock = await started(rig, rig.stock())
    request, running = await stock.begin_and_wait(WAITS)
    await rig.replace()
    with pytest.raises(InterruptedRunError):
        await running
    Path(stock.launch.cwd, "go").touch()
    asked = await (await stock.attach()).ask("kernel_info_request")
    await asyncio.wait_for(asked.reply, PATIENCE)
    reply = await stock.follow(request)
    assert (reply.status, reply.lossy) == (CellStatus.ERROR, True)
    assert reply.error is not None
    assert reply.error.name == "NoReply"
    never = await stock.follow(rig.request(stock.launch, "1"))
    assert never.status is CellStatus.ABORTED
    assert "was not run" in str(never.notice)


async def test_a_kernel_that_cannot_answer_is_taken_all_the_same(rig: KernelRig) -> None:
    """A loop in C holds the interpreter: nothing is said, and the user's state is not thrown
    away for that.
    """
    ours = await started(rig, rig.launch())
    request, running = await ours.begin_and_wait("print('begun', flush=True)\nsum(range(10**14))")
    assert await ours.attach() is not None
    with pytest.raises(InterruptedRunError):
        await running
    following = asyncio.ensure_future(ours.follow(request))
    assert await ours.handle.terminate() == "sigterm"
    with pytest.raises(KernelGoneError):
        await following


async def test_what_has_lost_its_files_is_not_attached(rig: KernelRig) -> None:
    ours = await started(rig, rig.launch())
    child = await rig.placement.attach(ours.launch.instance)
    folder = place.folder_of(rig.config.run_dir, ours.launch.session_id)
    (folder / place.FILE).write_text("{}")
    assert (
        await DirectBackend(await rig.supervise(), lambda: rig.config).attach(ours.launch, child)
        is None
    )


OBJECTS = st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text(), max_size=3)
MESSAGES = st.builds(
    lambda channel, objects, buffers: Message(channel, [*map(wire.dump, objects), *buffers]),
    st.sampled_from(("shell", "control", "stdin", "iopub")),
    st.tuples(OBJECTS, OBJECTS, OBJECTS, OBJECTS),
    st.lists(st.binary(max_size=20), max_size=3),
)


def told(message: Message, *, buffers: bool = True) -> tuple[str, list[Any], list[bytes]]:
    rest = list(message.parts[wire.BUFFERS :]) if buffers else []
    return message.channel, [wire.load(part) for part in message.parts[: wire.BUFFERS]], rest


@pytest.mark.parametrize("protocol", [V1, None])
@given(message=MESSAGES, data=st.data())
def test_what_is_packed_comes_back_and_other_bytes_are_a_message_or_a_value_error(
    protocol: str | None, message: Message, data: st.DataObject
) -> None:
    frame = wire.pack(message, protocol)
    assert told(wire.unpack(frame, protocol)) == told(message, buffers=protocol is not None)
    broken = bytearray(frame if isinstance(frame, bytes) else frame.encode())
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    for noise in (cut, data.draw(st.binary(max_size=200))):
        with contextlib.suppress(ValueError):
            assert isinstance(wire.unpack(noise, protocol), Message)


def test_messages_with_a_wrong_signature_or_no_sense_are_none() -> None:
    message = wire.make("status", {"execution_state": "idle"}, "kernel")
    good = [wire.DELIMITER, wire.sign(b"key", message.parts), *message.parts]
    found = wire.from_frames(b"key", "iopub", [b"topic", *good])
    assert found is not None
    assert (found.id, found.state) == (message.id, "idle")
    for frames in ([good[0], b"0" * 64, *good[2:]], [b"nothing"], [wire.DELIMITER], good[:-1]):
        assert wire.from_frames(b"key", "iopub", frames) is None


async def test_a_kernel_that_reads_nothing_refuses_in_the_end_and_holds_nobody_up(
    short_tmp: Path,
) -> None:
    sockets = KernelSockets(place.make(short_tmp, "k"), "me", ("control",), lambda _: None)
    message = wire.make("kernel_info_request", {"fill": "x" * 10_000}, "me", "control")
    with pytest.raises(ConflictError, match="queue is full"):
        for _number in range(1_000_000):
            sockets.send(message)
    await sockets.close()
    sockets.send(message)  # reaches nobody, and harms nobody


FLOOD = f"for _ in range(4096): print({'x' * 1023!r})"
PAYLOAD = """
from IPython.core.getipython import get_ipython
get_ipython().payload_manager.write_payload({'source': 'page', 'data': {'text/plain': 'y' * 100000}})
"""


async def test_a_front_end_that_stalls_gets_a_gap_and_all_that_matters_and_one_that_is_gone_is_given_up(
    rig: KernelRig,
) -> None:
    """What is left out is told; status and replies come all, so one that never reads must end."""
    limit = 256 * 1024
    handle = await rig.start(DirectBackend(await rig.supervise(), lambda: rig.config), rig.launch())
    joined = await open_channels(handle.connection_file, limit_bytes=limit)

    def run(code: str) -> str:
        message = wire.make("execute_request", {**wire.EXECUTE, "code": code}, "front")
        joined.send(message)
        return message.id

    with pytest.raises(InvalidInputError):
        joined.send(wire.make("status", {}, "front", "iopub"))
    asked = run(FLOOD)
    await eventually(
        lambda: any(it.parent_id == asked and it.state == "idle" for it in joined.waiting),
        "the end",
    )
    await eventually(lambda: any(it.type == "execute_reply" for it in joined.waiting), "the reply")
    assert 0 < joined.waiting_bytes < 2 * limit
    gaps, messages = (
        [it for it in joined.waiting if GAP in str(it.content.get("text"))],
        len(joined.waiting),
    )
    assert [it.content["name"] for it in gaps] == ["stderr"]
    async for _ in joined:
        messages -= 1
        if not messages:
            break
    for _ in range(40):
        run(PAYLOAD)
    await eventually(lambda: joined.waiting_bytes > OVERRUN * limit, "more than anybody leaves")
    with pytest.raises(OverloadedError):
        async for _ in joined:
            pass
    await joined.close()
