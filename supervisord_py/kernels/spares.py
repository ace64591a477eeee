"""What the room has to do with kernels that are started ahead: shows them, begins with one, and ends leftovers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.kernel_driver import KernelInstance, launch_of
from supervisord_py.kernels.session import BackendName
from supervisord_py.kernels.session_register import LiveSession
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Backends, Launch, SpareView
    from supervisord_py.kernels.kernel_pool import KernelPool
    from supervisord_py.kernels.resolver import InterpreterResolver

UNITS = "kernel-spare:"  # how the units of spares begin
FIRST_SECONDS = 3.0  # from the opening of the room to the first spare: those who waited for the daemon come first
LATELY_SECONDS = 24 * 3600.0
_log = structlog.get_logger(__name__)


def spares_of(backends: Backends) -> tuple[SpareView, ...]:
    direct: Any = backends.present().get(BackendName.DIRECT)
    pool = getattr(direct, "spares", None)
    return () if pool is None else pool.views()


async def end_left_over(pool: KernelPool) -> None:
    """End the spares of an earlier control plane; they end by themselves, but their records are to be released."""
    for child in await pool.placement.list(UNITS):
        pool.supervisor.task(_end(pool, child.key))


async def _end(pool: KernelPool, key: str) -> None:
    report = await pool.placement.stop(key, grace_seconds=0.0, reason=Reason.REPLACED.value)
    if not report.survivors:
        await pool.placement.release(key)


async def begin(pool: KernelPool, resolver: Callable[[], InterpreterResolver]) -> None:
    """Have a spare for the interpreter that was used last, if that was not long ago."""
    await asyncio.sleep(FIRST_SECONDS)
    session = _last_used(pool)
    if session is None or not pool.config.spares:
        return
    try:
        launch = await _launch(pool, resolver(), session)
        backend: Any = await pool.driver.backends.get(BackendName.DIRECT)
        backend.expect(launch)
        await backend.preload()
    except (PxError, OSError) as error:
        _log.info("no_first_spare", session=session.id, why=str(error))


def _last_used(pool: KernelPool) -> LiveSession | None:
    fitting = [it for it in pool.register.everything() if it.key.backend is BackendName.DIRECT and not it.kernelspec]
    newest = max(fitting, key=lambda it: it.last_used or 0.0, default=None)
    return newest if newest is not None and time.time() - (newest.last_used or 0.0) <= LATELY_SECONDS else None


async def _launch(pool: KernelPool, resolver: InterpreterResolver, session: LiveSession) -> Launch:
    """Return what the next kernel of a session would be started from; nothing is decided for it by that."""
    deadline = asyncio.get_running_loop().time() + pool.config.start_seconds
    alike = LiveSession(session.key, session.language, session.created)
    alike.adopt(await resolver.resolve(session.choose_request(deadline), pool.config, install=False))
    return await asyncio.to_thread(launch_of, KernelInstance("", alike), pool.config)
