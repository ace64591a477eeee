"""What the room does with calls, sessions and cells, shown with kernels that behave as told."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kernels.cell_folder import finish, log_of, writer_of
from kernels.fake_backend import FakeBackend
from kernels.room_house import PATIENT, RoomHouse, eventually, room_house
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels import cell_store
from supervisord_py.kernels.cell_files import folder_of_cells
from supervisord_py.kernels.session import CellError, CellStatus, Owner, SessionState, StartRequest
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.kernels import KernelCellRow, KernelSessionRow
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    async with room_house(short_tmp, backend, **PATIENT, stop_seconds=0.5) as made:
        yield made


async def running(house: RoomHouse, backend: FakeBackend) -> asyncio.Task[Any]:
    """Begin a call whose cell holds, and return when it does."""
    backend.held.clear()
    call = asyncio.ensure_future(house.run("hold"))
    await asyncio.wait_for(backend.held.wait(), 30)
    return call


async def start(house: RoomHouse, name: str, owner: Owner) -> str:
    return (await house.room.start(StartRequest(name, cwd=str(house.cwd), owner=owner)))[1].id


def is_stopped(house: RoomHouse, session: str) -> bool:
    return house.room.find(session).state is SessionState.STOPPED


async def test_an_interrupt_reaches_the_cell_that_is_meant_or_what_others_run(
    house: RoomHouse, backend: FakeBackend
) -> None:
    call = await running(house, backend)
    view = house.room.snapshot()[0]
    assert await house.room.interrupt(view.id, cell="0" * 16) == (view.running, ())
    assert backend.handle.rungs == []
    assert (await house.room.interrupt(view.id, cell=view.running))[1]
    assert (await call).cells[0].status is CellStatus.CANCELLED
    running_cell, steps = await house.room.interrupt(view.id)
    assert (running_cell, [step.action for step in steps]) == (None, ["sigint"])
    await house.room.stop(view.id)
    assert await house.room.interrupt(view.id) == (None, ())


async def test_each_start_names_the_end_that_it_was_caused_by(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.run("ok")).session_id
    backend.handle.die(None, 11)
    await eventually(lambda: len(backend.handles) == 2)
    await house.run("ok")
    for reason in (Reason.EVICTED_TTL, Reason.STOPPED):
        await house.room.stop(session, reason)
        await house.run("ok", name=session)
    told = {name: [it for it in await house.said() if it.event == name] for name in ("died", "stopped", "starting")}
    (died,), evicted = told["died"], told["stopped"][0]
    assert [row.cause for row in told["starting"]] == [None, died.id, evicted.id, None]


async def test_a_session_that_its_front_end_ended_is_forgotten_and_what_somebody_may_look_at_is_not(
    house: RoomHouse, backend: FakeBackend
) -> None:
    ended, used, own = [
        await start(house, name, owner)
        for name, owner in (("lab", Owner.JUPYTER), ("used", Owner.JUPYTER), ("own", Owner.SESSION))
    ]
    await house.run("ok", name=used)
    for session in (ended, used, own):
        await house.room.stop(session)
    assert is_stopped(house, ended), "until there is another one"
    crashed = await start(house, "crashed", Owner.JUPYTER)
    backend.handle.die(None, 11)
    await eventually(lambda: is_stopped(house, crashed))
    await start(house, "next", Owner.JUPYTER)
    await house.replace()
    assert [is_stopped(house, session) for session in (used, own, crashed)] == [True] * 3
    with pytest.raises(UnknownUnitError):
        house.room.find(ended)


async def test_of_variables_that_are_gone_the_next_call_is_told(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.run("ok")).session_id
    await house.room.stop(session)
    assert "it was stopped on request; its variables are gone" in (await house.run("ok")).notices[-1]
    assert not (await house.run("ok")).notices, "once"
    unused = await start(house, "unused", Owner.SESSION)
    await house.room.stop(unused)
    assert not (await house.run("ok", name="unused")).notices, "there were none"


@pytest.mark.parametrize("problem", ["stalls", "refuses"])
async def test_a_row_that_cannot_be_written_holds_no_cell_up(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    async def write(*_: object) -> None:
        if problem == "stalls":
            await asyncio.get_running_loop().create_future()
        "\ud800".encode()

    monkeypatch.setattr(cell_store, "ROW_SECONDS", 0.01)
    monkeypatch.setattr(house.ledger, "write", write)
    with capture_logs() as logs:
        result = await house.run("ok")
    assert result.cells[0].status is CellStatus.OK
    assert "cell_row_not_written" in [it["event"] for it in logs]


async def test_a_cancel_while_the_row_is_written_ends_the_cell(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.run("ok")
    waiting, go = asyncio.Event(), asyncio.Event()

    async def write(*_: object) -> None:
        waiting.set()
        await go.wait()

    monkeypatch.setattr(house.ledger, "write", write)
    call = asyncio.ensure_future(house.run("hold"))
    await waiting.wait()
    (session_id, _), (kernel,) = next(iter(house.room.pool.running())), house.room.pool.kernels
    cancelling = asyncio.ensure_future(house.room.interrupt(session_id))
    await eventually(lambda: kernel.run._cut_as is not None, "the cancel")
    go.set()
    (cell,) = (await call).cells
    await cancelling
    assert (cell.status, backend.handle.rungs) == (CellStatus.CANCELLED, ["interrupt"])


async def test_every_open_row_that_nobody_follows_is_closed_by_what_is_known(house: RoomHouse) -> None:
    ledger, cells = house.ledger, house.config.cells_dir
    kernel_rows.remember(ledger, KernelSessionRow("sh-1", "sh", "/", "bash", "bash", "bash", "session", 1.0, "busy"))

    async def sent(cell: str, instance: str | None, session: str = "s-1") -> Any:
        row = KernelCellRow(cell, session, "call", 0, "1", "running", 90.0, 100.0, instance)
        await ledger.write(kernel_rows.CELLS.insert(row))
        writer = writer_of(cells / session, cell)
        writer.write("stdout", b"12345")
        writer.close()
        return writer

    finish(await sent("told", "k1"), count=4)
    (await sent("left", "k1")).end("error", execution_count=5, duration=1.0, ask_exit=True)
    held = {"sealed": "k1", "followed": "k1", "dead": "k1", "found": "k2", "unknown": None, "away": "k2"}
    for name, instance in held.items():
        await sent(name, instance)
    log_of(cells / "s-1", "sealed").seal({"name": "E", "value": "no", "traceback": ["line"]}, 3.0)
    await sent("shell", "life", "sh-1")
    (cells / "s-1/away.jsonl").unlink()
    await ledger.flush()
    segv = End(Reason.SIGNAL, ExitRecord("k1", "", Identity(1, 1, "b"), 50.0, 104.0, None, 11, 0.0, 0.0, 0, 0, 0))
    await house.room.cell_store.close_cut_off({"followed"}, {"k1": segv, "k2": End(Reason.REPLACED)})
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
    assert "SIGSEGV" in (dead.error or {})["value"]
    assert (dead.ended_at, dead.duration_seconds, dead.total_bytes) == (104.0, 4.0, 5)
    (shell,) = await kernel_rows.of_session(ledger, "sh-1")
    assert (shell.status, shell.variables) == ("error", "lost")
    assert "variables" not in (shell.error or {})["value"]


async def test_a_cell_whose_files_go_or_cannot_be_made_says_that_output_is_lost_and_the_next_is_kept(
    house: RoomHouse, backend: FakeBackend
) -> None:
    cells = house.config.cells_dir
    call = await running(house, backend)
    shutil.rmtree(cells)
    cells.write_text("in the way")
    backend.handle.release()
    for result in (await call, await house.run("say hello")):
        (cell,) = result.cells
        assert (cell.status, cell.lossy) == (CellStatus.ERROR, True)
        assert "Output of this cell is lost" in cell.notices[0]
    cells.unlink()
    (kept,) = (await house.run("say hello")).cells
    assert (kept.text, kept.lossy, kept.notices) == ("hello", False, ())
    call = await running(house, backend)
    shutil.rmtree(cells)
    backend.handle.die(None, 11)
    assert (await call).cells[0].status is CellStatus.ERROR
    assert not list(cells.rglob("*.jsonl")), "what is gone stays gone"


def test_a_folder_is_private_with_all_that_is_made_above_it_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        folder = folder_of_cells(tmp_path / "state" / "cells", "a-1")
    finally:
        os.umask(before)
    assert [it.stat().st_mode & 0o777 for it in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    assert folder_of_cells(tmp_path / "state" / "cells", "a-1") == folder


def test_an_end_is_written_once_after_the_last_whole_line(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b'{"kind":"result","data":{"text/plain":"' + b"x" * 100_000)
    log.seal({"name": "KernelDied", "value": "gone", "traceback": []}, 5.0)
    log.seal(None, 6.0)
    end = log.ended()
    assert end is not None
    assert (end.status, end.duration, end.error) == (CellStatus.ERROR, 5.0, CellError("KernelDied", "gone"))
    assert log.page(0).complete
    log_of(tmp_path, "none").seal(None, 1.0)
    assert not log_of(tmp_path, "none").exists(), "where nothing is kept nothing is written"
