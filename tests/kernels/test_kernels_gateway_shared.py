"""The shared gateway: one for all sessions, private, replaced only when it is really gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from kernels.gateway_house import House, local_of
from kernels.gateway_peers import ENTERPRISE, NEEDS_PEERS
from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.errors import ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels import gateway, gateway_local
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.gateway_local import GatewayLocal, GatewayRecord
from supervisord_py.process import host
from supervisord_py.process.model import ChildSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernels.kernel_rig import KernelRig

    Require = Callable[[object, str], None]

pytestmark = pytest.mark.deep

OLD_KERNEL = ENTERPRISE.parents[2] / "ipykernel6" / "bin" / "python"
UNIT = "kernel:gateway"


@asynccontextmanager
async def local_house(folder: Path, **gateway: Any) -> AsyncIterator[House]:
    """A keeper and a backend over it; `gateway` replaces its settings."""
    async with kernel_house(folder) as rig:
        house = House(rig, await local_of(rig, **gateway))
        try:
            yield house
        finally:
            await house.backend.close(stop=True)


async def gateways_of(rig: KernelRig) -> list[int]:
    """Return the pids of gateways that the keeper holds."""
    return [each.identity.pid for each in await rig.placement.list(UNIT) if each.unit == UNIT and each.exit is None]


def lives(pid: int) -> bool:
    return host.start_time(pid) is not None


# -- what was wrong with the first design ------------------------------------------------------------------------------


async def test_d10_no_other_user_can_listen_to_a_kernel(short_tmp: Path) -> None:
    """Kernels talk over sockets in a private directory.

    The one TCP port that ipykernel opens takes the output of forked processes, by a secret, and gives nothing.
    """
    async with local_house(short_tmp) as house:
        await house.open()
        runtime = house.rig.config.run_dir / "gw"
        assert stat.S_IMODE(runtime.stat().st_mode) & 0o777 == 0o700
        (file,) = runtime.glob("kernel-*.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())["transport"] == "ipc"
        sockets = "kernel-*-ipc-*"  # that of the heartbeat is bound on a thread of its own
        await eventually(lambda: len([each for each in runtime.glob(sockets) if each.is_socket()]) == 5)


# -- one gateway for all -----------------------------------------------------------------------------------------------


async def test_a_gateway_that_a_dead_control_plane_was_starting_is_stopped(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        key = house.rig.placement.new_key()
        spec = ChildSpec(UNIT, (sys.executable, "-c", "import time; time.sleep(600)"), "/", {"PATH": "/bin"})
        stray = await house.rig.placement.spawn(key, spec)
        folder = house.rig.config.gateway.dir
        folder.mkdir(mode=0o700, parents=True)
        record = GatewayRecord("http://127.0.0.1:1", 1, "/t", key, "/py", 1.0)
        (folder / "gateway.json").write_bytes(msgspec.json.encode(record))
        await house.open()
        assert stray.identity.pid not in await gateways_of(house.rig)
        assert not lives(stray.identity.pid)


async def test_a_gateway_that_does_not_answer_is_replaced_at_the_next_start(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_house(short_tmp) as house:
        first = await house.open()
        (pid,) = await gateways_of(house.rig)
        house.backend._shared.own.stop_seconds = 0.2
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(gateway_local, "ANSWER_SECONDS", 0.2)
            patch.setattr(gateway, "remaining", lambda _: 0.2)
            with pytest.raises(StartFailedError, match="not reachable"):
                await house.open("t-000000")
        await asyncio.wait_for(asyncio.shield(first.died), 60)
        await house.open("t-000000")
        assert (await house.run("1")).reply.status is CellStatus.OK
        assert await gateways_of(house.rig) != [pid]


# -- starts that fail --------------------------------------------------------------------------------------------------


async def test_an_interpreter_without_kernel_gateway_is_told_with_the_command(
    short_tmp: Path, require: Require
) -> None:
    require(OLD_KERNEL.exists(), NEEDS_PEERS)
    async with kernel_house(short_tmp) as rig:
        backend = GatewayLocal(await rig.supervise(), rig.config, python=lambda _: str(OLD_KERNEL))
        with pytest.raises(StartFailedError, match="has no kernel_gateway") as caught:
            await rig.start(backend, rig.launch())
        assert caught.value.hint == f"{OLD_KERNEL} -m pip install jupyter_kernel_gateway"
        await backend.close(stop=True)
        assert await rig.placement.list("") == ()


def script(folder: Path, text: str) -> str:
    """Return a program that is taken for an interpreter."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("echo no good >&2; exit 3", StartFailedError, r"exited during startup \(code 3\)"),
        ("kill -9 $$", StartFailedError, r"exited during startup \(signal 9\)"),
        ("sleep 600", ReadinessTimeoutError, "did not answer in time"),
    ],
    ids=["exit", "signal", "silent"],
)
async def test_a_gateway_that_does_not_come_up_is_told_and_cleared(
    text: str, kind: type[StartFailedError], words: str, short_tmp: Path
) -> None:
    async with kernel_house(short_tmp) as rig:
        config = replace(
            rig.config, gateway=replace(rig.config.gateway, start_seconds=0.3 if "sleep" in text else 30.0)
        )
        program = script(short_tmp, text)
        backend = GatewayLocal(await rig.supervise(), config, python=lambda _: program)
        with pytest.raises(kind, match=words) as caught:
            await rig.start(backend, rig.launch())
        if "no good" in text:
            assert "no good" in caught.value.extra["stderr_tail"]
        await backend.close(stop=True)
        assert await rig.placement.list("") == ()
        assert not (config.gateway.dir / "gateway.json").exists()


async def test_a_kernel_that_does_not_come_up_says_what_its_launcher_said(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        with pytest.raises(StartFailedError, match="there is no such folder: /not/there"):
            await house.open(overlay="/not/there")
        assert await house.backend.held() == ()
        await house.open("t-000000")


# -- what a kernel is given --------------------------------------------------------------------------------------------


async def test_a_stock_kernel_in_the_shared_gateway_is_recorded_by_us(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        house.launch = house.rig.stock()
        house.handle = await house.rig.start(house.backend, house.launch)
        ran = await house.run("print('hello'); 5")
        assert (ran.out, ran.kinds(), ran.reply.lossy) == (b"hello\n", ["begin", "result", "end"], False)


async def test_stopping_a_kernel_ends_what_its_cells_left_behind(short_tmp: Path) -> None:
    """Also what put itself into a session of its own, out of the gateway's reach."""
    async with local_house(short_tmp) as house:
        handle = await house.open()
        ran = await house.run(
            "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
        )
        pid = int(ran.out)
        assert lives(pid)
        assert await handle.shutdown(1.0, "stopped") == ()
        assert not lives(pid)
