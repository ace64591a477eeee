"""A child that is fed from a deposited file and held back for its follower, through the port."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from process.fake_keeper import DAEMON, HELLO, FakeKeeper, child_message, refusal
from process.real_keeper import RealKeeper
from supervisord_py.errors import ConflictError, PxError, StartFailedError
from supervisord_py.process.local import LocalPlacement
from supervisord_py.process.output import Chunk, Cursor, OutputReader
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Connect = Callable[..., Awaitable[LocalPlacement]]

PATIENCE = 60
KEY = f"{DAEMON}.000000abcdef"
SPEC = ChildSpec(unit="pipe:x", argv=("/bin/cat",), cwd="/", env={"PATH": "/usr/bin:/bin"})
HELD = replace(SPEC, stdin_name="prompt", hold_bytes=1 << 20)
LINE = b"%09d\n"


@pytest.fixture
async def placement(short_tmp: Path) -> AsyncIterator[LocalPlacement]:
    """A real keeper whose logs keep 8 MiB a unit."""
    keeper = RealKeeper(short_tmp)
    try:
        channel = await asyncio.to_thread(keeper.channel)
        made = await LocalPlacement.connect(channel, daemon_id=keeper.daemon_id, log_dir=keeper.log_dir)
        yield made
        made.close()
    finally:
        await asyncio.to_thread(keeper.close)


async def waits(placement: LocalPlacement, key: str) -> None:
    """Return when a child waits for its follower, or has ended: no reader can be slower."""
    child = None
    while child is None or not (child.held or child.exit):
        child = await placement.attach(key)
        await asyncio.sleep(0.002)


async def follow(placement: LocalPlacement, key: str, total: int) -> bytes:
    """Read all of it, never before the child waits for it, and say after each piece that it is safe."""
    reader, cursor, found = OutputReader.of(placement.log_dir, SPEC.unit), Cursor(0), bytearray()
    while len(found) < total:
        await waits(placement, key)
        batch = None
        while batch is None or not batch.at_end:
            batch = await asyncio.to_thread(reader.read, cursor, 1 << 19)
            assert all(isinstance(item, Chunk) for item in batch.items), "something was thrown away unread"
            found += b"".join(item.data for item in batch.items if isinstance(item, Chunk))
            cursor = batch.cursor
        await placement.seen(key, cursor.position)
    return bytes(found)


async def test_a_prompt_that_lies_in_a_file_is_read_whole_and_ends(placement: LocalPlacement, short_tmp: Path) -> None:
    (short_tmp / "prompt").write_bytes(b"do it\n" * 50_000)
    fd = os.open(short_tmp / "prompt", os.O_RDONLY)
    try:
        await placement.put_fd("prompt", fd)
    finally:
        os.close(fd)
    key = placement.new_key()
    await placement.spawn(key, HELD)
    await placement.drop_fd("prompt")
    async with asyncio.timeout(PATIENCE):
        assert (await placement.wait(key)).code == 0
        assert await follow(placement, key, 300_000) == b"do it\n" * 50_000
    with pytest.raises(PxError, match=r"no descriptor is stored under the name .nobody") as caught:
        await placement.spawn(placement.new_key(), replace(HELD, stdin_name="nobody"))
    assert caught.value.unit == SPEC.unit


async def test_a_flood_of_several_logs_is_followed_without_loss(placement: LocalPlacement) -> None:
    """The log keeps 8 MiB; a follower that is slower than the child gets all 12 MB, in order."""
    count = 1_200_000
    lines = "''.join('%09d\\n' % i for i in range(n, n + 1000))"
    script = f"import sys\nfor n in range(0, {count}, 1000): sys.stdout.write({lines})"
    spec = replace(SPEC, argv=(sys.executable, "-I", "-S", "-c", script), hold_bytes=2 << 20)
    key = placement.new_key()
    await placement.spawn(key, spec)
    async with asyncio.timeout(PATIENCE):
        found = await follow(placement, key, count * 10)
        record = await placement.wait(key)
    assert (record.code, record.log_end) == (0, count * 10)
    assert found[:20] == LINE % 0 + LINE % 1
    assert all(found[at * 10 : at * 10 + 10] == LINE % at for at in range(0, count, 997))


async def test_what_an_older_keeper_cannot_do_is_refused_and_not_done_by_halves(
    keeper: FakeKeeper, connect: Connect
) -> None:
    keeper.verbs["spawn"] = lambda _m, _f: {"child": child_message(KEY, "pipe:x")}
    placement = await connect()
    for spec in (replace(SPEC, stdin_name="prompt"), replace(SPEC, hold_bytes=1)):
        with pytest.raises(StartFailedError, match="older") as caught:
            await placement.spawn(KEY, spec)
        assert caught.value.hint == "run `pxctl daemon restart --all` to replace both"
    assert "spawn" not in keeper.verbs_asked()
    await placement.spawn(KEY, SPEC)
    assert not {"stdin_name", "hold_bytes"} & set(keeper.asked[-1])


async def test_seen_is_said_and_never_fails_for_who_is_gone(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["hello"] = lambda _m, _f: {**HELLO, "revision": 2}
    keeper.verbs["spawn"] = lambda _m, _f: {"child": child_message(KEY, "pipe:x")}
    placement = await connect()
    await placement.spawn(KEY, HELD)
    assert (keeper.asked[-1]["stdin_name"], keeper.asked[-1]["hold_bytes"]) == ("prompt", 1 << 20)
    await placement.seen(KEY, 4711)
    assert (keeper.asked[-1]["verb"], keeper.asked[-1]["position"]) == ("seen", 4711)
    for kind in ("unknown_key", "unknown_verb"):
        keeper.verbs["seen"] = lambda _m, _f, kind=kind: refusal(kind)
        await placement.seen(KEY, 1)
    keeper.verbs["seen"] = lambda _m, _f: refusal("dead")
    with pytest.raises(ConflictError):
        await placement.seen(KEY, 1)
