"""Kernels at a server that the settings name no more wait for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import kernel_house
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.gateway import GatewayExternal

if TYPE_CHECKING:
    from pathlib import Path

    from kernels.kernel_rig import KernelRig


def backend_at(rig: KernelRig, url: str | None, **changes: Any) -> GatewayExternal:
    gateway = GatewayConfig(dir=rig.folder / "gateway", url=url)
    return GatewayExternal(replace(rig.config, gateway=gateway, **changes), daemon=rig.keeper.daemon_id)


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
