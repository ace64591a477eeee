"""The placement and the real keeper together: the promises of process/placement.py, on real processes."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from process.real_keeper import RealKeeper
from supervisord_py.errors import ConflictError
from supervisord_py.process import host
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.logs import Chunk, LogReader, Stream
from supervisord_py.process.model import ChildSpec, ExitRecord, GrantedFd, Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Until = Callable[[Callable[[], object]], Awaitable[None]]

PATIENCE = 60
ENV = {"PATH": "/usr/bin:/bin"}


class House:
    """A real keeper, and the placement of its present control plane."""

    def __init__(self, keeper: RealKeeper) -> None:
        self.keeper = keeper
        self.placement: KeeperClient

    async def connect(self) -> KeeperClient:
        """Be the next control plane."""
        channel = await asyncio.to_thread(self.keeper.channel)
        self.placement = await KeeperClient.connect(
            channel, daemon_id=self.keeper.daemon_id, log_dir=self.keeper.log_dir
        )
        return self.placement

    async def replace(self) -> KeeperClient:
        """Die as a control plane, and be the next one."""
        self.placement.close()
        self.keeper.end_control()
        return await self.connect()

    def shell(self, script: str, unit: str = "tool:x", **changes: object) -> ChildSpec:
        """Return the spec of a shell that runs a script."""
        spec = ChildSpec(unit, ("/bin/sh", "-c", script), str(self.keeper.folder), ENV)
        return replace(spec, **changes)  # type: ignore[arg-type]  # the tests name its fields


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[House]:
    keeper = RealKeeper(short_tmp)
    house = House(keeper)
    try:
        await house.connect()
        yield house
        house.placement.close()
    finally:
        await asyncio.to_thread(keeper.close)


async def ended(placement: KeeperClient, key: str) -> ExitRecord:
    async with asyncio.timeout(PATIENCE):
        return await placement.wait(key)


async def test_a_child_runs_with_its_marks_and_its_end_is_told(house: House) -> None:
    placement, key = house.placement, house.placement.new_key()
    child = await placement.spawn(key, house.shell('echo "$PX_INSTANCE $PX_UNIT"; echo oops >&2; exit 7'))
    record = await ended(placement, key)
    assert (record.code, record.signal, record.key, record.unit) == (7, None, key, "tool:x")
    assert record.identity == child.identity
    assert record.verdict is None
    assert outcome(record, None, ready=True) is Reason.EXIT
    reader = LogReader.of(placement.log_dir, "tool:x")
    async with asyncio.timeout(PATIENCE):
        seen: list[Chunk] = []
        async for item in reader.follow(child.log_position):
            assert isinstance(item, Chunk)
            seen.append(item)
            if sum(len(it.data) for it in seen) >= len(f"{key} tool:x\noops\n"):
                break
    said = {stream: b"".join(it.data for it in seen if it.stream is stream) for stream in Stream}
    assert said == {Stream.STDOUT: f"{key} tool:x\n".encode(), Stream.STDERR: b"oops\n"}
    assert reader.tail_bytes(child.log_position, record.log_end, Stream.STDERR) == b"oops\n"


async def test_spawn_is_idempotent_by_key(house: House) -> None:
    placement, key = house.placement, house.placement.new_key()
    spec = house.shell("exec sleep 600")
    first = await placement.spawn(key, spec)
    assert (await placement.spawn(key, spec)).identity == first.identity
    with pytest.raises(ConflictError):
        await placement.spawn(key, house.shell("exec sleep 601"))
    assert await placement.attach(key) == first
    assert not host.is_dead(first.identity)
    report = await placement.stop(key, grace_seconds=20, reason="stopped")
    assert report.survivors == ()
    record = await ended(placement, key)
    assert outcome(record, Reason.STOPPED, ready=True) is Reason.STOPPED


async def test_descriptors_outlive_the_control_plane_and_reach_the_child(house: House) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await house.placement.put_fd("tool:x/listen", listener.fileno())
    listener.close()
    placement = await house.replace()
    back = await placement.take_fd("tool:x/listen")
    assert back is not None
    with socket.socket(fileno=back) as copy:
        assert copy.getsockname()[1] == port
    key = placement.new_key()
    program = (
        "import os, socket as s; print(s.socket(fileno=3).getsockname()[1], os.environ['LISTEN_PID'], os.getpid())"
    )
    grants = (GrantedFd(3, "tool:x/listen"),)
    spec = ChildSpec("tool:x", (sys.executable, "-c", program), "/", ENV, grants=grants, listen_pid=True)
    await placement.spawn(key, spec)
    record = await ended(placement, key)
    assert record.code == 0
    reader = LogReader.of(placement.log_dir, "tool:x")
    async with asyncio.timeout(PATIENCE):
        item = await anext(aiter(reader.follow(0)))
    assert isinstance(item, Chunk)
    pid = record.identity.pid
    assert item.data == f"{port} {pid} {pid}\n".encode()
    await placement.drop_fd("tool:x/listen")
    assert await placement.take_fd("tool:x/listen") is None
