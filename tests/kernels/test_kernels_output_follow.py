"""Following a cell: true order, own speed, bounded memory, and an end."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import tracemalloc
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cell_folder import finish, log_of, writer_of
from supervisord_py.kernels.output import follow as following
from supervisord_py.kernels.output.cell_log import OutputGoneError
from supervisord_py.kernels.output.follow import Bell, Piece, follow
from supervisord_py.kernels.output.records import Begin, Display, End, StreamChange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisord_py.kernels.inside.cell_writer import CellWriter
    from supervisord_py.kernels.output.cell_log import CellLog

PATIENCE = 60


async def everything(log: CellLog, bell: Bell, offset: int = 0, told: int = -1) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [item async for item in follow(log, bell, offset, told=told)]


def told(items: list[Any]) -> list[Any]:
    """Return streams' bytes joined and displays, in order."""
    short: list[Any] = []
    for item in items:
        if isinstance(item, Piece):
            if short and isinstance(short[-1], tuple) and short[-1][0] == item.stream:
                short[-1] = (item.stream, short[-1][1] + item.data)
            else:
                short.append((item.stream, item.data))
        elif isinstance(item, Display):
            short.append(item.data["text/plain"])
    return short


async def test_bytes_and_records_come_in_their_true_order(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"one ")
    writer.display({"text/plain": "first"})
    writer.write("stdout", b"two")
    writer.write("stderr", b"oops")
    writer.display({"text/plain": "second"})
    finish(writer)
    items = await everything(log_of(tmp_path), Bell.closed())
    assert told(items) == [("stdout", b"one "), "first", ("stdout", b"two"), ("stderr", b"oops"), "second"]
    assert isinstance(items[0], Begin)
    assert isinstance(items[-1], End)
    assert [item.offset for item in items if isinstance(item, Piece)] == [0, 4, 7]


@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=5)) | st.text(max_size=3),
        max_size=15,
    ),
    st.integers(0, 30),
)
def test_any_history_is_told_as_it_was_from_any_offset(
    tmp_path_factory: pytest.TempPathFactory, history: list[Any], offset: int
) -> None:
    folder = tmp_path_factory.mktemp("cell")
    writer = writer_of(folder)
    whole = b""
    for event in history:
        if isinstance(event, tuple):
            writer.write(*event)
            whole += event[1]
        else:
            writer.display({"text/plain": event})
    finish(writer)
    items = asyncio.run(everything(log_of(folder), Bell.closed(), offset))
    pieces = [item for item in items if isinstance(item, Piece)]
    assert b"".join(piece.data for piece in pieces) == whole[offset:]
    assert isinstance(items[-1], End)
    if offset == 0:
        merged: list[Any] = []
        for event in history:
            if isinstance(event, tuple) and merged and isinstance(merged[-1], tuple) and merged[-1][0] == event[0]:
                merged[-1] = (event[0], merged[-1][1] + event[1])
            else:
                merged.append(event)
        assert told(items) == merged
    passed, record = offset, -1
    for at, item in enumerate(items[:-1]):  # who was given so much is given the rest
        if isinstance(item, Piece):
            passed = item.offset + len(item.data)
        else:
            record = item.place.offset
        assert asyncio.run(everything(log_of(folder), Bell.closed(), passed, record)) == items[at + 1 :]


async def test_a_follower_hears_of_what_comes_while_it_waits(tmp_path: Path) -> None:
    bell = Bell()
    items = follow(log_of(tmp_path), bell)
    async with asyncio.timeout(PATIENCE), aclosing(items):
        first = asyncio.ensure_future(anext(items))
        bell.ring()  # the kernel has the cell, its files are not there yet
        await asyncio.sleep(0)
        assert not first.done()
        writer = writer_of(tmp_path)
        bell.ring()
        assert isinstance(await first, Begin)
        second = asyncio.ensure_future(anext(items))
        writer.write("stdout", b"hello")
        bell.ring()
        assert isinstance(await second, StreamChange)
        assert await anext(items) == Piece("stdout", 0, b"hello")
        finish(writer)
        bell.close()
        assert isinstance(await anext(items), End)
        with pytest.raises(StopAsyncIteration):
            await anext(items)


async def test_what_nobody_rings_for_is_found_all_the_same(tmp_path: Path) -> None:
    """A kernel whose code holds the interpreter in a C call writes, and has no thread that could tell of it."""
    waits = asyncio.Event()

    class Silent(Bell):
        async def after(self, rings: int) -> None:
            """Note that the follower has looked, and found nothing."""
            waits.set()
            await super().after(rings)

    async def after_a_look(write: Callable[[], object]) -> Any:
        waits.clear()
        item = asyncio.ensure_future(anext(items))
        await waits.wait()
        write()
        return await item

    items = follow(log_of(tmp_path), Silent())
    async with asyncio.timeout(PATIENCE), aclosing(items):
        made: list[CellWriter] = []
        assert isinstance(await after_a_look(lambda: made.append(writer_of(tmp_path))), Begin)
        (writer,) = made
        assert isinstance(await after_a_look(lambda: writer.write("stdout", b"hello")), StreamChange)
        assert await anext(items) == Piece("stdout", 0, b"hello")
        assert isinstance(await after_a_look(lambda: finish(writer)), End)


async def test_a_follower_that_finds_nothing_looks_ever_more_rarely() -> None:
    pauses = [following.FIRST_LOOK_SECONDS]
    while pauses[-1] < following.LOOK_SECONDS:
        pauses.append(await following._news(Bell.closed(), 0, pauses[-1]))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert await following._news(Bell.closed(), 0, pauses[-1]) == following.LOOK_SECONDS


async def test_fifty_megabytes_pass_many_followers_within_little_memory(tmp_path: Path) -> None:
    """One follower reads while the writer writes, one comes late, one stalls until all is over; all get every byte."""
    bell, loop = Bell(), asyncio.get_running_loop()
    writer = writer_of(tmp_path)
    expected = hashlib.sha256()

    def produce() -> None:
        for number in range(500):
            block = b"%06d" % number + b"x" * 104_851 + b"\n"
            expected.update(block)
            writer.write("stdout" if number % 7 else "stderr", block)
            loop.call_soon_threadsafe(bell.ring)
        finish(writer)
        loop.call_soon_threadsafe(bell.close)

    async def digest(pause: asyncio.Event | None) -> str:
        seen = hashlib.sha256()
        async with aclosing(follow(log_of(tmp_path), bell)) as items:
            async for item in items:
                if isinstance(item, Piece):
                    assert len(item.data) <= 65536
                    seen.update(item.data)
                if pause is not None:
                    await pause.wait()
        return seen.hexdigest()

    stalled = asyncio.Event()
    thread = threading.Thread(target=produce)
    tracemalloc.start()
    try:
        async with asyncio.timeout(PATIENCE):
            followers = [asyncio.ensure_future(digest(None)), asyncio.ensure_future(digest(stalled))]
            thread.start()
            first = await followers[0]
            stalled.set()
            digests = [first, await followers[1], await digest(None)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        thread.join()
    assert set(digests) == {expected.hexdigest()}
    assert peak < 8 * 1024 * 1024


async def test_a_cell_whose_writer_was_killed_ends_with_the_bell(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"last words")
    bell = Bell()
    reading = asyncio.ensure_future(everything(log_of(tmp_path), bell))
    await asyncio.sleep(0)
    bell.close()
    items = await reading
    assert told(items) == [("stdout", b"last words")]
    assert not any(isinstance(item, End) for item in items)
    writer.close()


async def test_a_cell_that_never_began_gives_nothing(tmp_path: Path) -> None:
    bell = Bell()
    reading = asyncio.ensure_future(everything(log_of(tmp_path), bell))
    await asyncio.sleep(0)
    bell.close()
    assert await reading == []


async def test_a_cell_that_retention_took_is_said_to_be_gone(tmp_path: Path) -> None:
    with pytest.raises(OutputGoneError):
        await everything(log_of(tmp_path), Bell.closed())


async def test_files_that_vanish_under_a_follower_are_said_to_be_gone(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    log, bell = log_of(tmp_path), Bell()
    async with asyncio.timeout(PATIENCE), aclosing(follow(log, bell)) as items:
        assert isinstance(await anext(items), Begin)
        log.records_path.unlink()
        bell.ring()
        with pytest.raises(OutputGoneError):
            await anext(items)
    writer.close()


async def test_bytes_that_were_cut_off_again_do_not_hold_up_the_end(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"0123456789")
    finish(writer)
    log = log_of(tmp_path)
    with log.out_path.open("r+b") as file:
        file.truncate(4)
    items = await everything(log, Bell.closed())
    assert told(items) == [("stdout", b"0123")]
    assert isinstance(items[-1], End)


async def test_a_line_that_makes_no_sense_does_not_hold_up_what_follows(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"abc")
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b"nonsense\n")
    finish(writer)
    assert told(await everything(log, Bell.closed(), 1)) == [("stdout", b"bc")]


async def test_what_came_late_is_not_part_of_the_cell(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"in time")
    finish(writer)
    writer.write("stdout", b"too late")
    assert told(await everything(log_of(tmp_path), Bell.closed())) == [("stdout", b"in time")]


async def test_a_bell_wakes_everyone_and_remembers_for_those_who_were_away() -> None:
    bell = Bell()
    waiting = [asyncio.ensure_future(bell.after(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    bell.ring()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting[1:])
        await bell.after(0)
        bell.close()
        await bell.after(bell.rings)
