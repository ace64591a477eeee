"""A child that is fed from a deposited file."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from process.fake_keeper import DAEMON, FakeKeeper, child_message
from process.real_keeper import RealKeeper
from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.process.local import LocalPlacement
from supervisord_py.process.output import OutputReader
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Connect = Callable[..., Awaitable[LocalPlacement]]

PATIENCE = 60
KEY = f"{DAEMON}.000000abcdef"
SPEC = ChildSpec(unit="pipe:x", argv=("/bin/cat",), cwd="/", env={"PATH": "/usr/bin:/bin"})
FED = replace(SPEC, stdin_name="prompt")


@pytest.fixture
async def placement(short_tmp: Path) -> AsyncIterator[LocalPlacement]:
    """A real keeper."""
    keeper = RealKeeper(short_tmp)
    try:
        channel = await asyncio.to_thread(keeper.channel)
        made = await LocalPlacement.connect(channel, daemon_id=keeper.daemon_id, log_dir=keeper.log_dir)
        yield made
        made.close()
    finally:
        await asyncio.to_thread(keeper.close)


async def test_a_prompt_that_lies_in_a_file_is_read_whole_and_ends(placement: LocalPlacement, short_tmp: Path) -> None:
    (short_tmp / "prompt").write_bytes(b"do it\n" * 50_000)
    fd = os.open(short_tmp / "prompt", os.O_RDONLY)
    try:
        await placement.put_fd("prompt", fd)
    finally:
        os.close(fd)
    key = placement.new_key()
    await placement.spawn(key, FED)
    await placement.drop_fd("prompt")
    async with asyncio.timeout(PATIENCE):
        assert (await placement.wait(key)).code == 0
    reader = OutputReader.of(placement.log_dir, SPEC.unit)
    assert await asyncio.to_thread(reader.tail_bytes, 0, limit=1 << 20) == b"do it\n" * 50_000
    with pytest.raises(PxError, match=r"no descriptor is stored under the name .nobody") as caught:
        await placement.spawn(placement.new_key(), replace(FED, stdin_name="nobody"))
    assert caught.value.unit == SPEC.unit


async def test_what_an_older_keeper_cannot_do_is_refused_and_not_done_by_halves(
    keeper: FakeKeeper, connect: Connect
) -> None:
    keeper.verbs["spawn"] = lambda _m, _f: {"child": child_message(KEY, "pipe:x")}
    placement = await connect()
    with pytest.raises(StartFailedError, match="older") as caught:
        await placement.spawn(KEY, FED)
    assert caught.value.hint == "run `pxctl daemon restart --all` to replace both"
    assert "spawn" not in keeper.verbs_asked()
    await placement.spawn(KEY, SPEC)
    assert "stdin_name" not in keeper.asked[-1]
