"""Real servers: the same results as directly, ends that are told, kernels that outlive us, the
one gateway of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels.gateway_house import EVERYBODY, EXTERNALS, GATEWAYS, TOKEN, House, house_of
from kernels.kernel_rig import KernelRig, eventually, kernel_house
from kernels.resolver_house import script
from supervisord_py.errors import ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels import gateway, gateway_local
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.gateway_kernel import GatewayClient
from supervisord_py.kernels.gateway_local import GatewayLocal
from supervisord_py.kernels.session import CellStatus
from supervisord_py.process.model import Child

Require = Callable[[object, str], None]

pytestmark = pytest.mark.deep

BIG = 5_000_000
DEATHS = ("os._exit(3)", "os.kill(os.getpid(), 9)", "import ctypes; ctypes.string_at(0)")
QUICK = (
    "--ZMQChannelsWebsocketConnection.limit_rate=False",
    "--KernelRestarter.time_to_dead=0.3",
    "--KernelManager.shutdown_wait_time=0.5",
)
RICH = """
from IPython.display import HTML, clear_output, display
shown = display(HTML('<b>1</b>'), display_id='d')
shown.update(HTML('<b>2</b>'))
display({'application/x-px-status+json': {'op': 'read'}}, raw=True)
clear_output(wait=True)
"""
SCRIPT = """
import sys
for number in range(3):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
"""
CELLS = [  # code, the record that it makes besides begin and end, what that says, output
    ("x = 20", None, "", ""),
    ("x + 1", "result", "{'text/plain': '21'}", ""),
    ("print('ü\\ud800'.encode('utf-8', 'ignore').decode(), end='')", None, "", "ü"),
    (
        "print('before')\ndef f():\n    return 1 / 0\nf()",
        "error",
        "ZeroDivisionError: division by zero",
        "before\n",
    ),
    ("input('? ')", "error", "StdinNotImplementedError", ""),
    (SCRIPT, None, "", "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\n"),
    ("x", "result", "{'text/plain': '20'}", ""),  # an error costs no variables
    (
        f"import sys\nfor each in range({BIG} // 50000):\n    sys.stdout.write('x' * 50000)",
        None,
        "",
        "x" * BIG,
    ),
]
TICKS = (
    "import time\nfor n in range(5):\n    time.sleep(0.2)\n    print(n, flush=True)\nprint('end')"
)


@pytest.mark.parametrize("kind", EVERYBODY)
async def test_cells_give_the_same_results_and_an_interrupt_keeps_the_variables(
    kind: str, short_tmp: Path, require: Require
) -> None:
    """Of a direct kernel, of our own gateway's and of each kind of server.

    Also where the cell awaits, which no server's interrupt alone can end: the request behind it
    does.
    """
    async with house_of(kind, short_tmp, require) as house:
        await house.open()
        for number, (code, kind_of_record, said, out) in enumerate(CELLS, 1):
            ran = await house.run(code)
            kinds = ["begin", *filter(None, [kind_of_record]), "end"]
            assert (ran.kinds(), ran.out.decode(), ran.reply.lossy) == (kinds, out, False), code
            assert ran.records[-1]["execution_count"] == ran.reply.execution_count == number
            error = ran.reply.error
            assert (
                f"{error.name}: {error.value}" if error else str(ran.records[-2].get("data", ""))
            ).startswith(said)
        ran = await house.run(RICH)
        assert ran.kinds() == ["begin", "display", "display", "status", "clear", "end"]
        shown = [each for each in ran.records if each["kind"] == "display"]
        told = [(each["data"]["text/html"], each["display_id"], each["update"]) for each in shown]
        assert told == [("<b>1</b>", "d", False), ("<b>2</b>", "d", True)]
        assert ran.records[-3]["event"] == {"op": "read"}
        await house.run("kept = 7; import asyncio, time")
        for code in ("time.sleep(600)", "await asyncio.sleep(600)", "while True: pass"):
            _, task = await house.begin_and_wait(code)
            assert await house.handle.interrupt() in ("sigint", "rest_interrupt")
            reply = await asyncio.wait_for(task, 60)
            assert reply.error is not None
            assert reply.error.name == "KeyboardInterrupt" or (
                reply.error.name == "CancelledError" and "await" in code
            )
        assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "7"}


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_every_end_of_a_kernel_is_told_and_touches_no_other(
    kind: str, short_tmp: Path, require: Require
) -> None:
    async with house_of(kind, short_tmp, require, *QUICK) as house:
        other = await house.open("other-000000")
        await house.run("kept = 1")
        theirs = house.launch
        for number, how in enumerate(DEATHS):
            await house.open(f"s{number}-000000")
            await _d4_a_death_fails_the_cell_at_once(house, how)
        await house.open("exit-000000")
        ran = await house.run("print('bye'); exit()")  # D11: that is the cell's own wish
        assert (ran.reply.status, ran.reply.ask_exit, ran.out) == (CellStatus.OK, True, b"bye\n")
        await asyncio.wait_for(asyncio.shield(house.handle.died), 60)
        await house.open("gil-000000")
        await _one_that_holds_the_gil_is_deleted(house)
        house.handle, house.launch = other, theirs
        assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "1"}


async def _d4_a_death_fails_the_cell_at_once(house: House, how: str) -> None:
    """No reply ever comes; the server restarts the kernel behind its id; neither is waited for."""
    request, task = house.begin(f"import os\nprint('last words', flush=True)\n{how}")
    with pytest.raises(KernelGoneError):
        await asyncio.wait_for(task, 60)
    if house.peer is None:  # a stock kernel takes what it has not sent yet with it
        assert house.rig.out(request) == b"last words\n"
    with pytest.raises(KernelGoneError):
        await house.run("1")
    assert await house.handle.shutdown(2.0, "exit") == ()


async def _one_that_holds_the_gil_is_deleted(house: House) -> None:
    """The rungs below the interrupt: terminate begins the DELETE, kill waits for its end."""
    mark = house.rig.folder / "in the loop"
    code = (
        f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(mark)!r}).touch(); "
        "sum(range(10**11))"
    )
    _, task = house.begin(code)
    await eventually(mark.exists, "the loop")
    assert await house.handle.terminate() == "delete"
    assert await house.handle.kill() == "delete"
    with pytest.raises(KernelGoneError):
        await asyncio.wait_for(task, 60)
    assert await house.handle.shutdown(0.0, "timeout") == ()


@pytest.mark.parametrize("kind", EXTERNALS)
async def test_what_a_kernel_elsewhere_is_told_and_tells(
    kind: str, short_tmp: Path, require: Require
) -> None:
    """Secrets stay here, the harmless part goes; a directory that the server does not have is
    told, once.
    """
    async with house_of(kind, short_tmp, require) as house:
        await house.open(env={"PI_MODE": "there", "PI_TOKEN": "hush", "SECRET_KEY": "hush"})
        ran = await house.run(
            "import os; print(os.environ['PI_MODE'], 'hush' in os.environ.values())"
        )
        assert ran.out == b"there False\n"
        assert "directory" not in str(ran.reply.notice), "it is there"
        await house.open("t-000000", cwd="/only/here")
        first, second = await house.run("1"), await house.run("1")
        assert "/only/here does not exist" in str(first.reply.notice)
        assert (first.reply.lossy, second.reply.notice) == (False, None)
        assert house.peer is not None
        assert TOKEN not in house.peer.log


async def held(house: House) -> Child:
    (child,) = await house.backend.held()
    assert (child.key, child.unit) == (house.launch.instance, house.launch.unit)
    found: Child = child
    return found


@pytest.mark.parametrize("kind", ["local", "kernel_gateway", "enterprise_gateway"])
async def test_variables_and_running_cells_survive_the_control_plane(
    kind: str, short_tmp: Path, require: Require
) -> None:
    """A kernel that writes by itself loses nothing; elsewhere the server replays, and the cell
    counts as lossy.
    """
    async with house_of(kind, short_tmp, require) as house:
        await house.open(tag="first")
        await house.run("kept = 11")
        await house.backend.annotate(house.launch.instance, "second")
        request, task = await house.begin_and_wait(TICKS)
        await house.replace()
        await asyncio.wait([task])
        child = await held(house)
        assert child.tag == "second"
        house.handle = await house.backend.attach(house.launch, child)
        reply = await house.handle.execute(request, is_sent=True)
        assert (reply.status, reply.lossy) == (CellStatus.OK, kind != "local")
        out = house.rig.out(request).decode()
        assert out.endswith("end\n")
        assert kind != "local" or out == "on\n0\n1\n2\n3\n4\nend\n"
        assert len(house.rig.records(request, "end")) == 1
        assert (await house.handle.execute(request, is_sent=True)).status is CellStatus.OK, (
            "its end is on disk by now"
        )
        assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "11"}
        assert await house.backend.sweep() == 0
        assert await house.handle.shutdown(1.0, "stopped") == ()
        assert await house.backend.held() == ()


async def test_what_was_restarted_meanwhile_or_lost_its_server_is_not_taken_for_the_old_one(
    short_tmp: Path, require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a busy machine a new process is late, too
    monkeypatch.setattr(gateway, "BUSY_SECONDS", 60.0)
    async with house_of("jupyter_server", short_tmp, require) as house:
        await house.open()
        assert house.peer is not None
        client = GatewayClient(house.peer.url, TOKEN, "")
        kernel = house.handle.held.kernel
        await house.replace()
        await client._json("POST", f"api/kernels/{kernel}/restart", "restart", 60, {})
        assert await house.backend.attach(house.launch, await held(house)) is None
        await eventually(lambda: not house.backend._notes, "its note goes")
        assert await client.model(kernel) is None, "the new process is deleted"
        await client.close()
        await house.open("t-000000")
        await house.replace()
        child = await held(house)
        await house.peer.end()
        assert await house.backend.attach(house.launch, child) is None
        await house.peer.start()
        assert await house.backend.attach(house.launch, child) is None, (
            "a new server does not know it"
        )


# -- the shared gateway ----------------------------------------------------------------------------

UNIT = "kernel:gateway"


async def gateways_of(rig: KernelRig) -> list[int]:
    return [
        each.identity.pid
        for each in await rig.placement.list(UNIT)
        if each.unit == UNIT and each.exit is None
    ]


async def test_the_shared_gateway_is_private_and_replaced_where_it_does_not_answer(
    short_tmp: Path, require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: no other user can listen to a kernel: they talk over sockets in a private directory."""
    async with house_of("local", short_tmp, require) as local:
        first = await local.open()
        runtime = local.rig.config.run_dir / "gw"
        (file,) = runtime.glob("kernel-*.json")
        assert (
            stat.S_IMODE(runtime.stat().st_mode) & 0o777,
            stat.S_IMODE(file.stat().st_mode),
        ) == (0o700, 0o600)
        assert json.loads(file.read_text())["transport"] == "ipc"
        (pid,) = await gateways_of(local.rig)
        local.backend.gateway.stop_seconds = 0.2
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(gateway_local, "ANSWER_SECONDS", 0.2)
            await local.backend._gateway_for(local.rig.launch("t-000000"))
        await asyncio.wait_for(asyncio.shield(first.died), 60)
        with pytest.raises(StartFailedError, match="before it was ready") as refused:
            await local.open("u-000000", arguments=("--px-modules",))
        # What the kernel's launcher said; the server may have had a last word about its websocket.
        assert "expected one argument" in refused.value.extra["stderr_tail"]
        await local.open("t-000000")
        assert (await local.run("1")).reply.status is CellStatus.OK
        assert await gateways_of(local.rig) != [pid]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("echo no good >&2; exit 3", StartFailedError, "exited with code 3 before"),
        (
            "echo No module named kernel_gateway >&2; exit 1",
            StartFailedError,
            "has no kernel_gateway",
        ),
        ("sleep 600", ReadinessTimeoutError, "did not answer in time"),
    ],
    ids=["exit", "missing", "silent"],
)
async def test_a_gateway_that_does_not_come_up_is_told_and_cleared(
    code: str,
    kind: type[StartFailedError],
    words: str,
    short_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = script(short_tmp / "program", code)  # that is taken for an interpreter
    monkeypatch.setattr(
        gateway_local, "plan_for", lambda _: gateway_local.GatewayPlan(str(program), {})
    )
    async with kernel_house(short_tmp) as rig:
        seconds = 0.3 if "sleep" in code else 30.0
        config = replace(rig.config, gateway_start_seconds=seconds)
        backend = GatewayLocal(await rig.supervise(), lambda: config)
        with pytest.raises(kind, match=words) as caught:
            await rig.start(backend, rig.launch())
        if "No module" in code:
            assert caught.value.hint == f"{program} -m pip install jupyter_kernel_gateway"
        elif "echo" in code:
            assert "no good" in caught.value.extra["stderr_tail"]
        await backend.close(stop=True)
        assert await rig.placement.list("") == ()
