"""Which kernels can be forked from which zygote, and which zygote is made before anybody asks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.kernel_driver import launch_of
from supervisord_py.kernels.kernelspecs import LAUNCHER
from supervisord_py.kernels.live_session import KernelInstance, LiveSession
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.zygote_pool import UNITS, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.kernel_pool import KernelPool
    from supervisord_py.kernels.resolver import InterpreterResolver

LATELY_SECONDS = 24 * 3600.0
_EARLY = ("HOME", "LANG", "LANGUAGE")
_EARLY_PREFIXES = (
    "PYTHON", "LD_", "LC_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "BLIS_", "OPENSSL_", "MALLOC_", "GLIBC_",
)  # fmt: skip
"""Variables that act while Python starts and imports: kernels that differ in one have different zygotes."""
_log = structlog.get_logger(__name__)


def recipe_of(launch: Launch) -> Recipe | None:
    """Return what a zygote for such launches is started from; None where there can be none."""
    python = launch.interpreter
    if python is None or not python.startswith("/") or "PYTHONHASHSEED" in launch.env:
        return None  # siblings share the hash seed
    if not all(entry.startswith("/") for entry in (launch.env.get("PYTHONPATH") or "/").split(":")):
        return None  # Python makes them absolute as it starts, in the folder that it is started in
    try:
        with open(python, "rb") as file:
            if file.read(2) == b"#!":
                return None  # a script that looks for an interpreter may find another one the next time
    except OSError:
        return None
    env = (each for each in launch.env.items() if each[0] in _EARLY or each[0].startswith(_EARLY_PREFIXES))
    overlay = () if launch.overlay is None else ("--px-overlay", launch.overlay)
    return Recipe((python, str(LAUNCHER), *overlay, "--px-zygote"), tuple(sorted(env)))


async def begin(pool: KernelPool, resolver: Callable[[], InterpreterResolver]) -> None:
    """End what an earlier control plane left; have a zygote for the interpreter used last, if that was not long ago."""
    session = _last_used(pool) if pool.config.zygotes else None
    if session is None and not await pool.placement.list(UNITS):
        return
    backend: Any = await pool.driver.backends.get(BackendName.DIRECT)
    await backend.zygotes.end_left_over()
    if session is not None and not backend.zygotes.views():  # else somebody has started one meanwhile
        try:
            backend.expect(await _launch(pool, resolver(), session))
            await backend.preload()
        except (PxError, OSError) as error:
            _log.info("no_first_zygote", session=session.id, why=str(error))


def _last_used(pool: KernelPool) -> LiveSession | None:
    fitting = [
        it for it in pool.register.sessions.values() if it.key.backend is BackendName.DIRECT and not it.kernelspec
    ]
    newest = max(fitting, key=lambda it: it.last_used or 0.0, default=None)
    return newest if newest is not None and time.time() - (newest.last_used or 0.0) <= LATELY_SECONDS else None


async def _launch(pool: KernelPool, resolver: InterpreterResolver, session: LiveSession) -> Launch:
    """Return what the next kernel of a session would be started from; nothing is decided for it by that."""
    deadline = asyncio.get_running_loop().time() + pool.config.start_seconds
    alike = LiveSession(session.key, session.language, session.created)
    alike.adopt(await resolver.resolve(session.choose_request(deadline), pool.config, install=False))
    return await asyncio.to_thread(launch_of, KernelInstance("", alike), pool.config)
