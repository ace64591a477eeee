"""Kernels at a server that the settings name no more wait; of one in our own gateway the memory is limited."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import pytest
from structlog.testing import capture_logs

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig, ProcessLimits
from supervisord_py.kernels.gateway.external import GatewayExternal
from supervisord_py.kernels.lives import tree_memory
from supervisord_py.kernels.lives.kernel_life import KernelLife
from supervisord_py.kernels.lives.memory_watch import MemoryWatch
from supervisord_py.kernels.session import BackendName, SessionKey
from supervisord_py.process import identity
from supervisord_py.process.spec import Identity, Reason

if TYPE_CHECKING:
    from pathlib import Path

    from kernels.kernel_rig import KernelRig

FREE = ProcessLimits(soft_memory_bytes=None, hard_memory_bytes=None)
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); sys.stdin.read()"
PLAIN = "import sys; print('on', flush=True); sys.stdin.read()"


def backend_at(rig: KernelRig, url: str | None, **changes: Any) -> GatewayExternal:
    gateway = GatewayConfig(dir=rig.folder / "gateway", url=url)
    return GatewayExternal(replace(rig.config, gateway=gateway, **changes), daemon=rig.keeper.daemon_id)


def config_with(folder: Path, limits: ProcessLimits) -> KernelsConfig:
    return KernelsConfig(
        run_dir=folder,
        cells_dir=folder,
        data_dir=folder,
        modules_dir=folder,
        gateway=GatewayConfig(dir=folder),
        limits=limits,
    )


# -- what waits for its server -----------------------------------------------------------------------------------------


async def test_kernels_at_a_server_that_is_named_no_more_wait_without_noise(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server() as server:
        before = backend_at(rig, server.url)
        await House(rig, before).open()
        await before.close(stop=True)
        nowhere = backend_at(rig, None)
        (left,) = await nowhere.held()
        with capture_logs() as logs:
            assert await nowhere.sweep() == 0
            assert await nowhere.attach(rig.launch(instance=left.key), left) is None
        assert {(each["event"], each["log_level"]) for each in logs} == {("gateway_left_alone", "info")}
        again = backend_at(rig, server.url)
        assert await again.held() == (left,)
        assert await again.sweep() == 1
        assert server.state is None
        await again.close(stop=True)


# -- memory in our own gateway -----------------------------------------------------------------------------------------


@dataclass
class Near:
    """As much of a handle as is looked at."""

    process: Identity | None


class Memory:
    """A watch over one kernel that no keeper holds, with a process of ours in its place."""

    def __init__(self, code: str, folder: Path, **limits: Any) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        key = SessionKey("s", "/w", "/py", BackendName.GATEWAY_LOCAL)
        self.life = KernelLife(1, "d.one", key, 0.0, 0.0, busy=True)
        self.life.handle = Near(identity.identity_of(self.child.pid))  # type: ignore[assignment]
        config = config_with(folder, replace(FREE, **limits))
        self.watch = MemoryWatch(None, lambda: [self.life], lambda: config)  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        assert self.child.stdout is not None
        await asyncio.to_thread(self.child.stdout.readline)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.child.stdin is not None:
            self.child.stdin.close()  # ends a child of it, too
        self.child.kill()
        await asyncio.to_thread(self.child.wait)
        if self.child.stdout is not None:
            self.child.stdout.close()

    async def look(self) -> int | None:
        """Be one second of `keep_watch`."""
        rss = await self.watch.measure(self.life)
        self.watch.end_those_over([self.life])
        return rss


async def test_a_kernel_in_our_gateway_is_measured_with_its_descendants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', {PLAIN!r}])"
    async with Memory(code, tmp_path, soft_memory_bytes=1) as memory:
        both = await memory.look()
        monkeypatch.setattr(tree_memory, "PROC", tmp_path)  # as on a system without it
        assert await memory.look() == pytest.approx(both, rel=0.2)
        monkeypatch.setattr(tree_memory, "_children", lambda _: [])
        alone = await memory.look()
        assert both is not None
        assert alone is not None
        assert both > alone > 0
        assert memory.watch.is_over(memory.life.rss_bytes)
        assert memory.life.wanted is None, "no hard limit"
    assert await memory.watch.measure(memory.life) is None, "it is gone"


@pytest.mark.parametrize(("code", "signum"), [(PLAIN, signal.SIGTERM), (DEAF, signal.SIGKILL)])
async def test_one_over_the_hard_limit_is_ended_first_kindly(code: str, signum: int, tmp_path: Path) -> None:
    async with Memory(code, tmp_path, hard_memory_bytes=1, memory_grace_seconds=0.0) as memory:
        await memory.look()
        assert memory.life.wanted is Reason.MEMORY_LIMIT
        if signum == signal.SIGKILL:
            await memory.look()
        await eventually(lambda: memory.child.poll() is not None, "its end")
        assert memory.child.returncode == -signum
        memory.watch.end_those_over([memory.life])  # what is gone is sent nothing
