"""Taking over what an earlier control plane left: same process, same variables, and the cell that it was at.

Direct kernels are the supervisor's to adopt; sessions of shell cells and kernels of gateways, for which the keeper
holds no process, are looked for here. Then every cell that was in flight is followed, or closed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.execution import CellExecution
from supervisord_py.kernels.live_session import own_of
from supervisord_py.kernels.session import BackendName
from supervisord_py.kernels.session_set import Waiter
from supervisord_py.process import clock
from supervisord_py.process.instance import End, read_note
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.cell_store import CellStore
    from supervisord_py.kernels.kernel_pool import KernelPool
    from supervisord_py.kernels.live_session import KernelInstance, KernelNote
    from supervisord_py.ledger.kernels import KernelCellRow
    from supervisord_py.process.model import Child

REMOTE_SECONDS = 10.0  # how long a gateway may take to say what it has of ours, before the doors open without it
_log = structlog.get_logger(__name__)


class KernelAdoption:
    """Done once, when the room opens."""

    def __init__(self, pool: KernelPool, cell_store: CellStore) -> None:
        self._pool, self._driver = pool, pool.driver
        self._cell_store = cell_store
        self._followed: set[str] = set()

    async def adopt_all(self) -> None:
        """Go through everything that is held; returns when all is decided."""
        for instance in await self._pool.supervisor.adopt(self._driver):
            await self._go_on(instance)
        await self._adopt_shells()
        await self._adopt_remotely()
        left = [it for it in self._driver.revived if it.session.kernel is not it]
        ends = {it.key: it.end or End(it.wanted or Reason.REPLACED) for it in left}
        await self._cell_store.close_cut_off(self._followed, ends)

    async def _adopt_shells(self) -> None:
        """Go on with the newest cell of each session of shells; also with one that ended meanwhile, to close it."""
        held = await self._pool.placement.list("kernel:")
        for child in sorted(held, key=lambda it: it.started_at, reverse=True):
            note = read_note(child.tag)
            own = own_of(note)
            if note is None or own is None or own.session.backend != BackendName.BASH:
                continue
            lives_on = child.exit is None and note.stopping is None
            is_open = lives_on or await self._cell_store.open_row(own.session.id, None) is not None
            if not is_open or not await self._take_over(child, own):
                self._pool.supervisor.task(self._stop_shell(child))

    async def _stop_shell(self, child: Child) -> None:
        instance = self._driver.found(child, None)
        instance.child, instance.record = child, child.exit
        await self._pool.supervisor.stop(self._driver, instance, None if child.exit else Reason.REPLACED)

    async def _adopt_remotely(self) -> None:
        """Take over kernels of gateways: nobody holds their processes for us, the backends remember them."""
        notes = self._pool.config.gateway_dir / "held"
        if not await asyncio.to_thread(lambda: notes.is_dir() and any(notes.iterdir())):
            return
        gateways = (BackendName.GATEWAY_LOCAL, BackendName.GATEWAY_EXTERNAL)
        await asyncio.gather(*(self._adopt_from(name) for name in gateways))

    async def _adopt_from(self, name: BackendName) -> None:
        """Take over what one gateway has of ours; what it lost is swept, unless it could not be asked."""
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                backend: Any = await self._driver.backends.get(name)
                for child in await backend.held():
                    note = read_note(child.tag)
                    own = own_of(note)
                    if note and not note.stopping and own is not None and own.session.backend == name:
                        await self._take_over(child, own)
        except (PxError, OSError, TimeoutError) as error:
            _log.warning("gateway_not_asked", backend=name.value, detail=str(error))
        else:
            if name not in self._driver.unsure:
                self._pool.supervisor.task(backend.sweep())

    async def _take_over(self, child: Child, own: KernelNote) -> bool:
        """Go on with a kernel that is not the supervisor's, unless its session has another."""
        session = self._pool.register.sessions.get(own.session.id)
        instance = self._driver.found(child, own)
        if (session is not None and session.kernel is not None) or not await self._driver.take_over(instance, own):
            return False
        self._pool.supervisor.say("adopted", instance, pid=child.identity.pid or None)
        await self._go_on(instance)
        return True

    # -- going on ----------------------------------------------------------------------------------------------------

    async def _go_on(self, kernel: KernelInstance) -> None:
        session = kernel.session
        # A shell is a process of its own for each cell: its row was written before there was one to name.
        instance = kernel.key if session.keeps_variables else None
        sent = await self._cell_store.open_row(session.id, instance)
        if sent is not None or (session.newest is not None and session.newest.instance == kernel.key):
            kernel.has_run, session.lost = True, None  # the variables of the session's last cells are this kernel's
        session.used_at = clock.now() - max(0.0, time.time() - (session.last_used or kernel.started_at))
        running = Waiter(session) if sent is not None else None
        self._pool.adopt(kernel, running)
        if sent is not None and running is not None:
            self._followed.add(sent.id)
            self._pool.supervisor.task(self._follow(kernel, sent, running))

    async def _follow(self, kernel: KernelInstance, sent: KernelCellRow, running: Waiter) -> None:
        """Wait for the end of a cell in flight, or make it end when the time of its call is over."""
        seconds = sent.timeout_seconds or self._pool.config.timeout_max_seconds
        left = sent.queued_at + seconds - time.time()
        run = CellExecution(self._pool, self._cell_store, kernel, sent, asyncio.get_running_loop().time() + left)
        result, _ = await run.perform()
        if result.status is CellStatus.OK:
            kernel.session.clear_failures()
        self._pool.release(running, kernel)
