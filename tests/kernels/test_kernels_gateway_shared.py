"""The shared gateway: one for all who share its directory, private, replaced only when it is really gone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import stat
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House, local_of
from kernels.gateway_peers import ENTERPRISE, NEEDS_PEERS
from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.errors import ReadinessTimeoutError, StartFailedError, TimedOutError
from supervisord_py.kernels import gateway, gateway_server
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.gateway_local import GatewayLocal
from supervisord_py.kernels.gateway_server import GatewayRecord
from supervisord_py.process import host
from supervisord_py.process.model import ChildSpec, ResourceLimit

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


def record_of(house: House) -> GatewayRecord:
    """Return what is written of the gateway."""
    record = house.backend._shared.read()
    assert record is not None
    return record


def write_record(house: House, record: GatewayRecord) -> None:
    """Write something down in its place."""
    house.rig.config.gateway.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    (house.rig.config.gateway.dir / "gateway.json").write_bytes(msgspec.json.encode(record))


async def gateways_of(rig: KernelRig) -> list[int]:
    """Return the pids of gateways that the keeper holds."""
    return [each.identity.pid for each in await rig.placement.list(UNIT) if each.unit == UNIT and each.exit is None]


def lives(pid: int) -> bool:
    return host.start_time(pid) is not None


# -- what was wrong with the first design ------------------------------------------------------------------------------


async def test_d2_the_token_is_in_no_argv_no_log_and_no_kernel(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        await house.open()
        record = record_of(house)
        token = Path(record.token_file).read_text()
        assert stat.S_IMODE(os.stat(record.token_file).st_mode) == 0o600
        assert token not in (house.rig.config.gateway.dir / "gateway.json").read_text()
        assert not any(token in word for word in psutil.Process(record.pid).cmdline())
        ran = await house.run(f"import os; print({token!r} in os.environ.values(), sorted(os.environ))")
        known = {*house.launch.env, "PX_INSTANCE", "PX_UNIT"}
        seen, names = ran.out.decode().split(" ", 1)
        assert seen == "False"
        assert not {"KG_AUTH_TOKEN", "JUPYTER_PATH", "JUPYTER_RUNTIME_DIR"} & set(json.loads(names.replace("'", '"')))
        assert known <= set(json.loads(names.replace("'", '"')))
        log = b"".join(path.read_bytes() for path in Path(house.rig.keeper.log_dir).rglob("*.log"))
        assert token.encode() not in log


async def test_d3_each_session_has_the_interpreter_of_its_project(short_tmp: Path, require: Require) -> None:
    require(OLD_KERNEL.exists(), NEEDS_PEERS)
    async with local_house(short_tmp) as house:
        code = "import ipykernel, sys; print(sys.prefix, ipykernel.__version__.split('.')[0])"
        await house.open("new-000000")
        new = await house.run(code)
        await house.open("old-000000", interpreter=str(OLD_KERNEL))
        old = await house.run(code)
        assert new.out.decode().split() == [sys.prefix, "7"]
        assert old.out.decode().split() == [str(OLD_KERNEL.parents[1]), "6"]
        assert len(await gateways_of(house.rig)) == 1


async def test_d9_the_token_goes_to_nobody_but_the_gateways_own_process(short_tmp: Path) -> None:
    """A record whose port another process listens on is stale; that process is asked nothing."""
    async with local_house(short_tmp) as house, fake_server() as squatter:
        who = host.identity_of(house.rig.keeper.process.pid)
        assert who is not None
        token = house.rig.config.gateway.dir / "token-other.one"
        write_record(
            house,
            GatewayRecord(
                squatter.url, who.pid, who.start_time, who.boot_id, str(token), "other", "other.one", "/py", 1.0
            ),
        )
        token.touch(mode=0o600)
        token.write_text("secret")
        await house.open()
        assert squatter.asked == []
        assert record_of(house).url != squatter.url
        assert lives(who.pid), "a process that is not ours is left alone"
        assert not token.exists()


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


@pytest.mark.deep
async def test_two_daemons_share_one_gateway(short_tmp: Path) -> None:
    """The second finds the first one's; it ends with its owner; that is noticed at once, and the second has its own."""
    (short_tmp / "a").mkdir()
    (short_tmp / "b").mkdir()
    async with kernel_house(short_tmp / "a") as first, kernel_house(short_tmp / "b") as second:
        backends = [await local_of(rig, dir=short_tmp / "gateway") for rig in (first, second)]
        mine, theirs = House(first, backends[0]), House(second, backends[1])
        await mine.open()
        await theirs.open()
        assert await gateways_of(second) == []
        assert len(await gateways_of(first)) == 1
        await mine.run("x = 'mine'")
        await theirs.run("x = 'theirs'")
        assert (await mine.run("print(x)")).out == b"mine\n"
        assert await theirs.backend.held() == ()
        _, task = await theirs.begin_and_wait("import time; time.sleep(600)")
        await mine.backend.close(stop=True)
        assert await gateways_of(first) == [], "a daemon leaves nothing behind"
        with pytest.raises(KernelGoneError, match=r"is gone: .* variables are lost"):
            await asyncio.wait_for(task, 60)
        await theirs.open("again-000000")
        assert (await theirs.run("1")).reply.status is CellStatus.OK
        assert len(await gateways_of(second)) == 1, "now it is ours"
        await theirs.backend.close(stop=True)
        assert await gateways_of(second) == []


async def test_a_gateway_is_found_again_by_the_next_control_plane(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        await house.open()
        before = record_of(house)
        await house.backend.close(stop=False)
        await house.rig.replace()
        house.backend = await local_of(house.rig)
        await house.open("t-000000")
        assert record_of(house) == before
        assert await gateways_of(house.rig) == [before.pid]
        await house.backend.close(stop=True)
        assert await gateways_of(house.rig) == []
        assert not (house.rig.config.gateway.dir / "gateway.json").exists()


async def test_a_gateway_that_a_dead_control_plane_was_starting_is_stopped(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        key = house.rig.placement.new_key()
        spec = ChildSpec(UNIT, (sys.executable, "-c", "import time; time.sleep(600)"), "/", {"PATH": "/bin"})
        stray = await house.rig.placement.spawn(key, spec)
        daemon = house.rig.keeper.daemon_id
        write_record(house, GatewayRecord("http://127.0.0.1:1", 1, 1, "gone", "/t", daemon, "gone.one", "/py", 1.0))
        await house.open()
        assert stray.identity.pid not in await gateways_of(house.rig)
        assert not lives(stray.identity.pid)


@pytest.mark.deep
@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"start_time": 1}, {"token_file": "/nowhere"}])
async def test_stale_metadata_is_cleaned_and_a_new_gateway_started(change: dict[str, Any], short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        await house.open()
        before = record_of(house)
        await house.backend.close(stop=False)
        write_record(house, msgspec.structs.replace(before, **change))
        house.backend = await local_of(house.rig)
        await house.open("t-000000")
        assert record_of(house).instance != before.instance
        assert not lives(before.pid), "ours is stopped before another one is started"


async def test_a_gateway_that_does_not_answer_is_replaced_at_the_next_start(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_house(short_tmp) as house:
        first = await house.open()
        (pid,) = await gateways_of(house.rig)
        house.backend._shared.own.stop_seconds = 0.2
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(gateway_server, "ANSWER_SECONDS", 0.2)
            patch.setattr(gateway, "remaining", lambda _: 0.2)
            with pytest.raises(StartFailedError, match="not reachable"):
                await house.open("t-000000")
        await asyncio.wait_for(asyncio.shield(first.died), 60)
        await house.open("t-000000")
        assert (await house.run("1")).reply.status is CellStatus.OK
        assert await gateways_of(house.rig) != [pid]


async def test_the_end_of_the_gateway_is_the_end_of_its_kernels_at_once(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        handle = await house.open()
        (pid,) = await gateways_of(house.rig)
        kernel = int((await house.run("import os; print(os.getpid())")).out)
        _, task = await house.begin_and_wait("import time; time.sleep(600)")
        os.kill(kernel, signal.SIGSTOP)  # it would end by itself a second later
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(KernelGoneError, match=r"is gone: The gateway at \S+ is not reachable"):
            await asyncio.wait_for(task, 60)
        assert await handle.shutdown(0.0, "exit") == ()
        await house.open("t-000000")
        assert (await house.run("1")).reply.status is CellStatus.OK


async def test_who_waits_too_long_for_the_lock_is_told(short_tmp: Path) -> None:
    async with local_house(short_tmp, lock_seconds=0.0) as house:
        folder = house.rig.config.gateway.dir
        folder.mkdir(mode=0o700, parents=True)
        with (folder / "gateway.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(TimedOutError, match="Timed out waiting for shared gateway lock"):
                await house.open()


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


async def test_a_kernel_has_its_directory_environment_and_limits(short_tmp: Path) -> None:
    async with local_house(short_tmp) as house:
        env = {"PRICE": "5$HOME ${HOME}", "OMP_NUM_THREADS": "3"}
        await house.open(env=env, limits=(ResourceLimit("nofile", 777, 888),))
        ran = await house.run(
            "import os, resource\n"
            "print(os.getcwd(), os.environ['PRICE'], os.environ['OMP_NUM_THREADS'], os.environ['PX_INSTANCE'],"
            " resource.getrlimit(resource.RLIMIT_NOFILE)[1], sep='|')"
        )
        assert ran.out.decode().strip().split("|") == [
            house.launch.cwd,
            "5$HOME ${HOME}",
            "3",
            house.launch.instance,
            "888",
        ]
        specs = list((house.rig.config.gateway.dir / "kernelspecs" / "kernels").iterdir())
        assert specs == [], "the kernelspec, with the environment in it, is gone when it has served"


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
