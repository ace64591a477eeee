"""Who runs kernels, made when first asked for: importing ZMQ or a client of gateways costs more than some need."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import KernelBackend
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.supervisor import Supervisor

_MODULES = {
    BackendName.DIRECT: "supervisord_py.kernels.direct",
    BackendName.GATEWAY_LOCAL: "supervisord_py.kernels.gateway_local",
    BackendName.GATEWAY_EXTERNAL: "supervisord_py.kernels.gateway",
    BackendName.BASH: "supervisord_py.kernels.bash",
}


class Backends:
    """The backends of one daemon.

    Args:
        supervisor: Where processes come from.
        config: As at present; `reconfigure` replaces it.
        make: Makes a backend; tests put their own here.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        config: KernelsConfig,
        make: Callable[[BackendName, KernelsConfig], Awaitable[KernelBackend]] | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._placement = supervisor.placement
        self._config = config
        self._make = make or self._import
        self._made: dict[BackendName, asyncio.Future[KernelBackend]] = {}

    async def get(self, name: BackendName) -> KernelBackend:
        """Return a backend, made when it is first asked for; whoever comes meanwhile waits for the same one."""
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = asyncio.ensure_future(self._make(name, self._config))
        try:
            return await asyncio.shield(made)
        except Exception:
            self._made.pop(name, None)
            raise

    def present(self) -> dict[BackendName, KernelBackend]:
        """Return those that were made."""
        whole = {name: made for name, made in self._made.items() if made.done() and not made.cancelled()}
        return {name: made.result() for name, made in whole.items() if made.exception() is None}

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for what is started from now on."""
        self._config = config
        for backend in self.present().values():
            if (take := getattr(backend, "reconfigure", None)) is not None:
                take(config)

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end what they run for themselves."""
        for made in self._made.values():
            if not made.done():
                made.cancel()
        await asyncio.gather(*(each.close(stop=stop) for each in self.present().values()), return_exceptions=True)
        self._made.clear()

    async def _import(self, name: BackendName, config: KernelsConfig) -> KernelBackend:
        module = await asyncio.to_thread(importlib.import_module, _MODULES[name])
        backend = self._construct(name, module, config)
        if name is BackendName.DIRECT:
            await module.sweep_stale(config.run_dir, {child.key for child in await self._placement.list("kernel:")})
        return backend

    def _construct(self, name: BackendName, module: Any, config: KernelsConfig) -> KernelBackend:
        backend: KernelBackend
        match name:
            case BackendName.DIRECT:
                backend = module.DirectBackend(self._placement, config)
            case BackendName.GATEWAY_LOCAL:
                backend = module.GatewayLocal(self._supervisor, config)
            case BackendName.GATEWAY_EXTERNAL:
                backend = module.GatewayExternal(config, daemon=self._placement.new_key().split(".")[0])
            case BackendName.BASH:
                backend = module.BashBackend(self._supervisor)
        return backend
