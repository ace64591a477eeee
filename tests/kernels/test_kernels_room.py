"""The room with real kernels: calls, sessions and cells, their ends, limits, and a new control
plane.
"""

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
from unittest.mock import AsyncMock

import psutil
import pytest
from structlog.testing import capture_logs

from kernels.cell_folder import finish, log_of, writer_of
from kernels.room_house import PATIENT, RoomHouse, eventually, room_house
from supervisord_py.errors import StartFailedError, UnknownUnitError
from supervisord_py.kernels import cell_store
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.live_session import CUT_OFF
from supervisord_py.kernels.session import CellStatus, Owner, SessionState, StartRequest
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.kernels import KernelCellRow, KernelSessionRow
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason

HOLDS = "import os, time\nopen('on', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[RoomHouse]:
    async with room_house(short_tmp, **PATIENT) as made:
        yield made


async def at_work(house: RoomHouse, code: str = HOLDS, **changes: Any) -> asyncio.Task[Any]:
    """Begin a call, and return when its cell has left the file `on`."""
    for mark in ("on", "go"):
        (house.cwd / mark).unlink(missing_ok=True)
    call = asyncio.ensure_future(house.run(code, **changes))
    await eventually(lambda: call.done() or (house.cwd / "on").exists(), "the cell's mark")
    return call


async def start(house: RoomHouse, name: str, owner: Owner) -> str:
    return (await house.room.start(StartRequest(name, cwd=str(house.cwd), owner=owner)))[1].id


def is_stopped(house: RoomHouse, session: str) -> bool:
    return house.room.find(session).state is SessionState.STOPPED


def kill(house: RoomHouse, session: str) -> int:
    pid = house.room.find(session).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def came_back(house: RoomHouse, session: str, before: int) -> None:
    def is_back() -> bool:
        view = house.room.find(session)
        return view.state is SessionState.IDLE and view.pid != before

    await eventually(is_back)


async def test_an_interrupt_reaches_the_cell_that_is_meant_or_what_others_run(
    house: RoomHouse,
) -> None:
    call = await at_work(house)
    view = house.room.snapshot()[0]
    assert await house.room.interrupt(view.id, cell="0" * 16) == (view.running, ())
    assert (await house.room.interrupt(view.id, cell=view.running))[1]
    (cell,) = (await call).cells
    assert (cell.status, [step.action for step in cell.steps]) == (CellStatus.CANCELLED, ["sigint"])
    running_cell, steps = await house.room.interrupt(view.id)
    assert (running_cell, [step.action for step in steps]) == (None, ["sigint"])
    await house.room.stop(view.id)
    assert await house.room.interrupt(view.id) == (None, ())


async def test_each_start_names_the_end_that_it_was_caused_by_and_tells_the_next_call_once(
    house: RoomHouse,
) -> None:
    session = (await house.run("1")).session_id
    await came_back(house, session, kill(house, session))
    await house.run("1")
    for reason in (Reason.EVICTED_TTL, Reason.STOPPED):
        await house.room.stop(session, reason)
        notices = (await house.run("1")).notices
    told = {
        name: [it for it in await house.said() if it.event == name]
        for name in ("died", "stopped", "starting")
    }
    (died,), evicted = told["died"], told["stopped"][0]
    assert [row.cause for row in told["starting"]] == [None, died.id, evicted.id, None]
    assert "it was stopped on request; its variables are gone" in notices[-1]
    assert not (await house.run("1")).notices, "once"
    await house.room.stop(await start(house, "unused", Owner.SESSION))
    assert not (await house.run("1", name="unused")).notices, "there were none"


async def test_a_session_that_its_front_end_ended_is_forgotten_and_what_somebody_may_look_at_is_not(
    house: RoomHouse,
) -> None:
    ended, used, own = [
        await start(house, name, owner)
        for name, owner in (("lab", Owner.JUPYTER), ("used", Owner.JUPYTER), ("own", Owner.SESSION))
    ]
    await house.run("1", name=used)
    for session in (ended, used, own):
        await house.room.stop(session)
    assert is_stopped(house, ended), "until there is another one"
    crashed = await start(house, "crashed", Owner.JUPYTER)
    kill(house, crashed)
    await eventually(lambda: is_stopped(house, crashed))
    await start(house, "next", Owner.JUPYTER)
    await house.replace()
    assert [is_stopped(house, session) for session in (used, own, crashed)] == [True] * 3
    with pytest.raises(UnknownUnitError):
        house.room.find(ended)


async def test_a_row_that_cannot_be_written_holds_no_cell_up(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalls(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def refuses(*_: object) -> None:
        "\ud800".encode()

    await house.run("1")
    monkeypatch.setattr(cell_store, "ROW_SECONDS", 0.01)
    for write in (stalls, refuses):
        monkeypatch.setattr(house.ledger, "write", write)
        with capture_logs() as logs:
            result = await house.run("1")
        assert result.cells[0].status is CellStatus.OK
        assert "cell_row_not_written" in [it["event"] for it in logs]


async def test_a_cancel_while_the_row_is_written_ends_the_cell(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.run("1")
    waiting, go = asyncio.Event(), asyncio.Event()

    async def write(*_: object) -> None:
        waiting.set()
        await go.wait()

    monkeypatch.setattr(house.ledger, "write", write)
    call = asyncio.ensure_future(house.run(HOLDS))
    await waiting.wait()
    (session_id, _), (kernel,) = next(iter(house.room.pool.running())), house.room.pool.kernels
    cancelling = asyncio.ensure_future(house.room.interrupt(session_id))
    await eventually(lambda: kernel.run._cut_as is not None, "the cancel")
    go.set()
    (cell,) = (await call).cells
    await cancelling
    assert (cell.status, [step.action for step in cell.steps]) == (CellStatus.CANCELLED, ["sigint"])


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
        await house.run(
            f"import atexit, os, signal, time\n{waits}atexit.register(wait); {deaf}; exit()"
        )
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
    rows = await house.room.cell_store.history(view.id)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert house.room.cell_store.log(view.id, rows[0].id).page(0, 100).data == b"before\nafter\n"


async def test_shell_cells_take_no_kernels_place(short_tmp: Path) -> None:
    async with room_house(short_tmp, max_sessions=1) as house:
        await house.run("x = 1")
        for name in ("one", "two"):
            assert (await house.run("true", name=name, language="bash")).status is CellStatus.OK
        assert (await house.run("x")).cells[0].text == "1\n", "its variables are there"


async def test_a_call_of_its_own_that_lost_its_client_is_cleared_away(house: RoomHouse) -> None:
    call = await at_work(house, owner=Owner.PER_CALL)
    await house.replace()
    with pytest.raises(Exception, match="replaced"):
        await call
    (house.cwd / "go").touch()
    await eventually(lambda: house.room.snapshot() == ())


async def test_a_kernel_that_came_back_and_changed_hands_still_tells_its_first_call(
    house: RoomHouse,
) -> None:
    await house.run("x = 1")
    await house.replace()
    assert not (await house.run("x")).notices, "it only changed hands"
    await came_back(house, "default", kill(house, "default"))
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE, "taken over"
    assert (await house.run("1")).notices == (CUT_OFF,)
    await house.replace()
    assert not (await house.run("1")).notices, "told once"
    shutil.rmtree(house.config.cells_dir)
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE, (
        "also where its cells were swept away"
    )


@pytest.mark.parametrize("why", ["no backend takes it", "a note of another version"])
async def test_a_kernel_that_cannot_be_taken_over_is_stopped_and_recorded(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    result = await house.run("x = 1")
    pid = house.room.snapshot()[0].pid
    if why == "no backend takes it":
        monkeypatch.setattr(DirectBackend, "attach", AsyncMock(return_value=None))
    else:
        # its readiness is written down, and then noted: not behind our note
        await house.ledger.flush()
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
        (folder / "kernel.json").write_text(
            json.dumps({"argv": argv, "language": "python", "display_name": "own"})
        )
        with pytest.raises(StartFailedError, match=words):
            await house.run("1", kernelspec="own")
        with pytest.raises(StartFailedError, match=words):
            await house.room.restart(house.room.find("default").id)


async def test_every_open_row_that_nobody_follows_is_closed_by_what_is_known(
    house: RoomHouse,
) -> None:
    ledger, cells = house.ledger, house.config.cells_dir
    kernel_rows.remember(
        ledger, KernelSessionRow("sh-1", "sh", "/", "bash", "bash", "bash", "session", 1.0, "busy")
    )

    async def sent(cell: str, instance: str | None, session: str = "s-1") -> Any:
        row = KernelCellRow(cell, session, "call", 0, "1", "running", 90.0, 100.0, instance)
        await ledger.write(kernel_rows.CELLS.insert(row))
        writer = writer_of(cells / session, cell)
        writer.write("stdout", b"12345")
        writer.close()
        return writer

    finish(await sent("told", "k1"), count=4)
    (await sent("left", "k1")).end("error", execution_count=5, duration=1.0, ask_exit=True)
    held = {
        "sealed": "k1",
        "followed": "k1",
        "dead": "k1",
        "found": "k2",
        "unknown": None,
        "away": "k2",
    }
    for name, instance in held.items():
        await sent(name, instance)
    sealed = log_of(cells / "s-1", "sealed")
    with sealed.records_path.open("ab") as file:
        file.write(b'{"kind":"result","data":{"text/plain":"' + b"x" * 100_000)
    # the first end stands
    for error in ({"name": "E", "value": "no", "traceback": ["line"]}, None):
        sealed.seal(error, 3.0)
    await sent("shell", "life", "sh-1")
    (cells / "s-1/away.jsonl").unlink()
    await ledger.flush()
    segv = End(
        Reason.SIGNAL,
        ExitRecord("k1", "", Identity(1, 1, "b"), 50.0, 104.0, None, 11, 0.0, 0.0, 0, 0, 0),
    )
    await house.room.cell_store.close_cut_off(
        {"followed"}, {"k1": segv, "k2": End(Reason.REPLACED)}
    )
    await ledger.flush()
    rows = {row.id: row for row in await kernel_rows.of_session(ledger, "s-1")}
    assert {cell: (row.status, row.variables) for cell, row in rows.items()} == {
        "told": ("ok", "kept"),
        "left": ("error", "lost"),
        "sealed": ("error", "lost"),
        "followed": ("running", None),
        "dead": ("error", "lost"),
        "found": ("cancelled", "lost"),
        "unknown": ("error", "lost"),
        "away": ("aborted", "lost"),
    }
    told, dead = rows["told"], rows["dead"]
    assert (told.execution_count, told.total_bytes, told.duration_seconds) == (4, 5, 0.5)
    assert rows["sealed"].error == {"name": "E", "value": "no", "traceback": ["line"]}
    assert (rows["sealed"].duration_seconds, sealed.page(0).complete) == (3.0, True)
    assert not log_of(cells / "s-1", "away").exists(), "where nothing is kept nothing is written"
    assert "SIGSEGV" in (dead.error or {})["value"]
    assert (dead.ended_at, dead.duration_seconds, dead.total_bytes) == (104.0, 4.0, 5)
    (shell,) = await kernel_rows.of_session(ledger, "sh-1")
    assert (shell.status, shell.variables) == ("error", "lost")
    assert "variables" not in (shell.error or {})["value"]


async def test_a_cell_whose_files_go_or_cannot_be_made_says_that_output_is_lost_and_the_next_is_kept(
    house: RoomHouse,
) -> None:
    cells = house.config.cells_dir
    call = await at_work(house)
    shutil.rmtree(cells)
    cells.write_text("in the way")
    (house.cwd / "go").touch()
    for result in (await call, await house.run("print('hello')")):
        (cell,) = result.cells
        assert (cell.status, cell.lossy) == (CellStatus.ERROR, True)
        assert "Output of this cell is lost" in cell.notices[0]
    cells.unlink()
    (kept,) = (await house.run("print('hello')")).cells
    assert (kept.text, kept.lossy, kept.notices) == ("hello\n", False, ())
    call = await at_work(house)
    shutil.rmtree(cells)
    kill(house, "default")
    assert (await call).cells[0].status is CellStatus.ERROR
    assert not list(cells.rglob("*.jsonl")), "what is gone stays gone"
