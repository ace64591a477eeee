"""The room with real kernels: calls, their ends, limits, and a new control plane."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import PATIENT, RoomHouse, eventually, room_house
from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.live_session import CUT_OFF
from supervisord_py.kernels.session import CellStatus, Owner, SessionState


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[RoomHouse]:
    async with room_house(short_tmp, **PATIENT) as made:
        yield made


async def at_work(house: RoomHouse, code: str, **changes: Any) -> asyncio.Task[Any]:
    """Begin a call, and return when its cell has left the file `on`."""
    call = asyncio.ensure_future(house.run(code, **changes))
    await eventually(lambda: call.done() or (house.cwd / "on").exists(), "the cell's mark")
    return call


async def test_a_kernel_that_is_slow_to_leave_after_exit_is_told_with_its_code(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with room_house(short_tmp, stop_seconds=60.0) as house:
        await house.run("1")
        (life,) = house.room.pool.kernels
        kernel: Any = life.handle
        shutdown = kernel.shutdown

        async def leaves_now(grace_seconds: float, reason: str) -> tuple[int, ...]:
            (house.cwd / "go").touch()
            return cast("tuple[int, ...]", await shutdown(grace_seconds, reason))

        monkeypatch.setattr(kernel, "shutdown", leaves_now)
        waits = "def wait():\n    while not os.path.exists('go'): time.sleep(0.01)\n"
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        await house.run(f"import atexit, os, signal, time\n{waits}atexit.register(wait); {deaf}; exit()")
        row = await house.ended_row(life.key)
        assert (row.reason, row.code) == ("exit", 0)


async def test_a_shell_cell_in_flight_is_followed(house: RoomHouse) -> None:
    code = "echo before; touch on; while [ ! -e go ]; do sleep 0.05; done; echo after"
    call = await at_work(house, code, language="bash")
    await house.replace()
    with pytest.raises(Exception, match="replaced"):
        await call
    view = house.room.snapshot()[0]
    assert view.running is not None
    (house.cwd / "go").touch()
    following = await house.run('[ "$HOME" ] && echo next', language="bash")
    assert following.status is CellStatus.OK, "in the session's environment"
    await house.ledger.flush()
    rows = await house.room.cells(view.id)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert house.room.cell_store.log(view.id, rows[0].id).page(0, 100).data == b"before\nafter\n"


async def test_a_call_of_its_own_that_lost_its_client_is_cleared_away(house: RoomHouse) -> None:
    code = "import pathlib, time\npathlib.Path('on').touch()\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    call = await at_work(house, code, owner=Owner.PER_CALL)
    await house.replace()
    with pytest.raises(Exception, match="replaced"):
        await call
    (house.cwd / "go").touch()
    await eventually(lambda: house.room.snapshot() == ())


async def test_a_kernel_that_came_back_and_changed_hands_still_tells_its_first_call(house: RoomHouse) -> None:
    await house.run("x = 1")
    await house.replace()
    assert not (await house.run("x")).notices, "it only changed hands"
    before = house.room.snapshot()[0].pid
    os.kill(before or 0, signal.SIGKILL)

    def is_back() -> bool:
        view = house.room.snapshot()[0]
        return view.state is SessionState.IDLE and view.pid not in {None, before}

    await eventually(is_back)
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE, "taken over"
    assert (await house.run("1")).notices == (CUT_OFF,)
    await house.replace()
    assert not (await house.run("1")).notices, "told once"
    shutil.rmtree(house.config.cells_dir)
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE, "also where its cells were swept away"


@pytest.mark.parametrize("why", ["no backend takes it", "a note of another version"])
async def test_a_kernel_that_cannot_be_taken_over_is_stopped_and_recorded(house: RoomHouse, why: str) -> None:
    result = await house.run("x = 1")
    pid = house.room.snapshot()[0].pid
    if why == "no backend takes it":
        house.backend = FakeBackend()
    else:
        await house.ledger.flush()  # its readiness is written down, and then noted: not behind our note
        await house.rig.placement.ask("annotate", key=str(result.instance), tag='{"v": 99}')
    await house.replace()
    assert (await house.ended_row(str(result.instance))).reason == "replaced"
    await eventually(lambda: not psutil.pid_exists(pid or 0), "its end")
    view = house.room.snapshot()[0]
    assert (view.state, view.pid) == (SessionState.STOPPED, None)


async def test_a_kernelspec_that_was_changed_is_read_again_at_the_next_start(
    house: RoomHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    folder = tmp_path / "kernels" / "own"
    folder.mkdir(parents=True)
    for words in ("first", "second"):
        argv = [sys.executable, "-c", f"import sys; sys.exit('{words}')", "{connection_file}"]
        (folder / "kernel.json").write_text(json.dumps({"argv": argv, "language": "python", "display_name": "own"}))
        with pytest.raises(StartFailedError, match=words):
            await house.run("1", kernelspec="own")
        with pytest.raises(StartFailedError, match=words):
            await house.room.restart(house.room.find("default").id)
