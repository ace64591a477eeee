"""Short programs run to their end below a real keeper; what they print is told, and nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

from process.real_keeper import RealKeeper
from supervisord_py.errors import StartFailedError
from supervisord_py.process import program
from supervisord_py.process.keeper_client import KeeperClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
async def client(short_tmp: Path) -> AsyncIterator[KeeperClient]:
    keeper = RealKeeper(short_tmp)
    try:
        channel = await asyncio.to_thread(keeper.channel)
        client = await KeeperClient.connect(channel, daemon_id=keeper.daemon_id, log_dir=keeper.log_dir)
        yield client
        client.close()
    finally:
        await asyncio.to_thread(keeper.close)


async def run(client: KeeperClient, code: str, **options: object) -> program.Completed:
    argv = [sys.executable, "-c", code]
    given = {"name": "test", "cwd": "/", "env": ENV, "timeout": 60.0, **options}
    return await program.run(client, argv, **given)  # type: ignore[arg-type]


async def test_its_streams_are_told_apart_and_its_code_is_told(client: KeeperClient) -> None:
    done = await run(client, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.code, done.signal, done.stdout, done.stderr) == (3, None, "out\n", "err\n")
    assert done.last_line == "err"
    assert "out" not in repr(done)
    assert await client.list("program:") == ()


async def test_lines_come_as_they_are_printed(client: KeeperClient, tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys, time; print('a', flush=True); sys.stderr.write('50%\\r100%\\n'); sys.stderr.flush(); input()"
    work = asyncio.create_task(run(client, code.replace("; input()", ""), on_line=lines.append))
    await work
    assert lines == ["a", "50%", "100%"]


async def test_a_program_that_takes_too_long_is_stopped_with_its_tree(client: KeeperClient) -> None:
    child = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    with pytest.raises(TimeoutError):
        await run(client, child, timeout=1.0)
    assert await client.list("program:") == ()


async def test_a_program_that_is_not_there_is_a_clear_error(client: KeeperClient) -> None:
    with pytest.raises(StartFailedError, match="no-such-program"):
        await program.run(client, ["/no-such-program"], name="test", cwd="/", env=ENV, timeout=9.0)
