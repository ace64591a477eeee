"""The same cells give the same results through every backend, and through every kind of server."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from kernels.gateway_house import EVERYBODY, EXTERNALS, GATEWAYS, house_of
from kernels.gateway_peers import TOKEN
from kernels.kernel_rig import eventually
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.cell_files import CellLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernels.gateway_house import House

    Require = Callable[[object, str], None]

pytestmark = pytest.mark.deep

BIG = 20_000_000
DEATHS = ("os._exit(3)", "os.kill(os.getpid(), 9)", "import ctypes; ctypes.string_at(0)")
QUICK = (
    "--ZMQChannelsWebsocketConnection.limit_rate=False",
    "--KernelRestarter.time_to_dead=0.3",
    "--KernelManager.shutdown_wait_time=0.5",
)
SCRIPT = """
import sys
for number in range(3):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
"""
WHERE = "import os, sys; print('' in sys.path or os.getcwd() in sys.path, os.path.basename(os.getcwd()))"
CELLS = [  # code, the record that it makes besides begin and end, what that says, output
    ("x = 20", None, "", ""),
    ("x + 1", "result", "21", ""),
    ("print('ü\\ud800'.encode('utf-8', 'ignore').decode(), end='')", None, "", "ü"),
    (WHERE, None, "", "True cwd\n"),
    ("print('before')\ndef f():\n    return 1 / 0\nf()", "error", "ZeroDivisionError: division by zero", "before\n"),
    ("input('? ')", "error", "StdinNotImplementedError", ""),
    ("x", "result", "20", ""),  # an error costs no variables
]


@pytest.mark.parametrize("kind", EVERYBODY)
async def test_the_same_cells_give_the_same_results(kind: str, short_tmp: Path, require: Require) -> None:
    async with house_of(kind, short_tmp, require) as house:
        await house.open()
        for number, (code, kind_of_record, said, out) in enumerate(CELLS, 1):
            ran = await house.run(code)
            kinds = ["begin", *filter(None, [kind_of_record]), "end"]
            assert (ran.kinds(), ran.out.decode(), ran.reply.lossy) == (kinds, out, False), code
            assert ran.records[-1]["execution_count"] == ran.reply.execution_count == number
            if kind_of_record == "error":
                assert ran.reply.error is not None
                assert f"{ran.reply.error.name}: {ran.reply.error.value}".startswith(said)
                assert len(ran.reply.error.traceback) > 1
                assert (ran.records[-1]["status"], ran.reply.status) == ("error", CellStatus.ERROR)
                assert ran.records[-1]["error"]["name"] == ran.reply.error.name
            else:
                assert ran.reply.status is CellStatus.OK
                assert not said or ran.records[-2]["data"] == {"text/plain": said}
        await _streams_in_order(house)
        await _rich_outputs(house)
        await _a_lot_of_output(house)
        await _an_interrupt_keeps_the_variables(house)


async def _streams_in_order(house: House) -> None:
    ran = await house.run(SCRIPT)
    assert ran.out == b"out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"
    assert list(CellLog(ran.request.cells_dir, ran.request.cell_id).pieces()) == [
        (stream, start, start + 6) for start in (0, 6, 12) for stream in ("stdout", "stderr")
    ]
    assert not ran.reply.lossy


async def _rich_outputs(house: House) -> None:
    ran = await house.run(
        "from IPython.display import HTML, clear_output, display\n"
        "shown = display(HTML('<b>1</b>'), display_id='d')\n"
        "shown.update(HTML('<b>2</b>'))\n"
        "display({'application/json': {'a': [1]}}, raw=True)\n"
        "display({'application/x-px-status+json': {'op': 'read'}}, raw=True)\n"
        "clear_output(wait=True)"
    )
    assert ran.kinds() == ["begin", "display", "display", "display", "status", "clear", "end"]
    one, two, three = (each for each in ran.records if each["kind"] == "display")
    assert (one["data"]["text/html"], one["display_id"], one["update"]) == ("<b>1</b>", "d", False)
    assert (two["data"]["text/html"], two["display_id"], two["update"]) == ("<b>2</b>", "d", True)
    assert three["data"] == {"application/json": {"a": [1]}}
    assert ran.records[-3]["event"] == {"op": "read"}


async def _a_lot_of_output(house: House) -> None:
    ran = await house.run(f"import sys\nfor each in range({BIG} // 50000):\n    sys.stdout.write('0123456789' * 5000)")
    wanted = hashlib.sha256(b"0123456789" * (BIG // 10)).hexdigest()
    assert (len(ran.out), hashlib.sha256(ran.out).hexdigest()) == (BIG, wanted)
    assert not ran.reply.lossy


async def _an_interrupt_keeps_the_variables(house: House) -> None:
    """Also where the cell awaits, which no server's interrupt alone can end: the request behind it does."""
    await house.run("kept = 7; import asyncio, time")
    for code, names in (
        ("time.sleep(600)", ("KeyboardInterrupt",)),
        ("await asyncio.sleep(600)", ("CancelledError", "KeyboardInterrupt")),
        ("while True: pass", ("KeyboardInterrupt",)),
    ):
        _, task = await house.begin_and_wait(code)
        assert await house.handle.interrupt() in ("sigint", "rest_interrupt")
        reply = await asyncio.wait_for(task, 60)
        assert reply.status is CellStatus.ERROR
        assert reply.error is not None
        assert reply.error.name in names
    assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "7"}


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_every_end_of_a_kernel_is_told_and_touches_no_other(kind: str, short_tmp: Path, require: Require) -> None:
    async with house_of(kind, short_tmp, require, *QUICK) as house:
        other = await house.open("other-000000")
        await house.run("kept = 1")
        theirs = house.launch
        for number, how in enumerate(DEATHS):
            await house.open(f"s{number}-000000")
            await _d4_a_death_fails_the_cell_at_once(house, how)
        await house.open("exit-000000")
        await _d11_exit_is_the_cells_own_wish(house)
        await house.open("gil-000000")
        await _one_that_holds_the_gil_is_deleted(house)
        house.handle, house.launch = other, theirs
        assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "1"}


async def _d4_a_death_fails_the_cell_at_once(house: House, how: str) -> None:
    """No reply ever comes; the server restarts the kernel behind its id; neither is waited for."""
    handle = house.handle
    request, task = house.begin(f"import os\nprint('last words', flush=True)\n{how}")
    with pytest.raises(KernelGoneError):
        await asyncio.wait_for(task, 60)
    await asyncio.wait_for(asyncio.shield(handle.died), 60)
    if house.peer is None:  # a stock kernel takes what it has not sent yet with it
        assert house.rig.out(request) == b"last words\n"
    with pytest.raises(KernelGoneError):
        await house.run("1")
    assert await handle.shutdown(2.0, "exit") == ()


async def _d11_exit_is_the_cells_own_wish(house: House) -> None:
    ran = await house.run("print('bye'); exit()")
    assert (ran.reply.status, ran.reply.asked_exit, ran.out) == (CellStatus.OK, True, b"bye\n")
    await asyncio.wait_for(asyncio.shield(house.handle.died), 60)
    assert await house.handle.shutdown(2.0, "exit") == ()


async def _one_that_holds_the_gil_is_deleted(house: House) -> None:
    """The rungs below the interrupt: terminate begins the DELETE, kill waits for its end."""
    mark = house.rig.folder / "in the loop"
    code = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(mark)!r}).touch(); sum(range(10**11))"
    _, task = house.begin(code)
    await eventually(mark.exists, "the loop")
    assert await house.handle.terminate() == "delete"
    assert await house.handle.kill() == "delete"
    with pytest.raises(KernelGoneError):
        await asyncio.wait_for(task, 60)
    assert house.handle.died.done()
    assert await house.handle.shutdown(0.0, "timeout") == ()


@pytest.mark.parametrize("kind", EXTERNALS)
async def test_what_a_kernel_elsewhere_is_told_and_tells(kind: str, short_tmp: Path, require: Require) -> None:
    """Secrets stay here, the harmless part goes; a directory that the server does not have is told, once."""
    async with house_of(kind, short_tmp, require) as house:
        env = {**house.rig.launch().env, "PI_MODE": "there", "PI_TOKEN": "hush", "SECRET_KEY": "hush"}
        await house.open(env=env)
        ran = await house.run("import os; print(os.environ['PI_MODE'], 'hush' in os.environ.values())")
        assert ran.out == b"there False\n"
        assert "directory" not in str(ran.reply.notice), "it is there"
        await house.open("t-000000", cwd="/only/here")
        first, second = await house.run("1"), await house.run("1")
        assert "/only/here does not exist" in str(first.reply.notice)
        assert not first.reply.lossy
        assert second.reply.notice is None
        assert house.peer is not None
        assert TOKEN not in house.peer.log


@pytest.mark.parametrize("kind", ["kernel_gateway", "jupyter_server"])
async def test_a_server_that_rations_output_makes_the_cell_lossy(kind: str, short_tmp: Path, require: Require) -> None:
    """Servers drop output beyond their limits, with nothing but a text on stderr."""
    limit = "--ZMQChannelsWebsocketConnection.iopub_data_rate_limit=100000"
    async with house_of(kind, short_tmp, require, limit) as house:
        await house.open()
        ran = await house.run("for each in range(100): print('x' * 100_000, flush=True)")
        assert ran.reply.lossy
        assert "IOPub data rate exceeded" in str(ran.reply.notice)
        assert b"rate exceeded" not in ran.out, "the server's words are no output of the cell"
        assert len(ran.out) < 10_000_000
        again = await house.run("print('small')")
        assert (again.reply.lossy, again.out) == (False, b"small\n")
