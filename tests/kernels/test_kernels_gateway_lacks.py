"""What a kernel at somebody else's server has not is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import kernel_house
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig, ProcessLimits
from supervisord_py.kernels.gateway.external import GatewayExternal
from supervisord_py.kernels.gateway.lacks import lacks, unlimited_memory

if TYPE_CHECKING:
    from pathlib import Path

    from kernels.kernel_rig import KernelRig

FREE = ProcessLimits(soft_memory_bytes=None, hard_memory_bytes=None)


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


# -- what is said ------------------------------------------------------------------------------------------------------


def told(folder: Path, limits: ProcessLimits, *, cwd: str | None = None, **changes: Any) -> str | None:
    launch = Launch("s", "i", None, "/w", {}, folder, **changes)
    return lacks("http://h", launch, config_with(folder, limits), cwd)


def test_nothing_is_said_where_nothing_is_missing(tmp_path: Path) -> None:
    assert told(tmp_path, FREE, cwd="'/w'", modules=(str(tmp_path), "/nowhere")) is None
    assert unlimited_memory("http://h", FREE) is None


def test_limits_modules_and_the_directory_are_said(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    limits = replace(FREE, hard_memory_bytes=1, open_files=5)
    text = str(told(tmp_path, limits, cwd="'/'", modules=(str(tmp_path),)))
    assert "The directory /w does not exist at http://h: the kernel works in '/'." in text
    assert "Limits do not hold for a kernel at http://h: kernels.hard_memory_mb, kernels.open_files." in text
    assert f"Kernels of an external gateway have no modules: those of {tmp_path} are not there." in text
    memory_only = "Limits do not hold for a kernel at http://h: kernels.hard_memory_mb."
    assert unlimited_memory("http://h", limits) == memory_only


async def test_the_first_answer_of_a_kernel_says_what_it_lacks_and_no_other(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server() as server:
        server.on_execute = type(server).end_cell
        modules = short_tmp / "modules"
        modules.mkdir()
        (modules / "mine.py").touch()
        house = House(rig, backend_at(rig, server.url))
        await house.open(modules=(str(modules),))
        first, second = await house.run("1"), await house.run("2")
        assert "kernels.soft_memory_mb, kernels.hard_memory_mb" in str(first.reply.notice)
        assert f"those of {modules} are not there" in str(first.reply.notice)
        assert (first.reply.lossy, second.reply.notice) == (False, None)
        await house.backend.close(stop=True)


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
