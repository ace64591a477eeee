"""Taking over what an earlier control plane left: same process, same variables, and the cell that it was at."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.backend import StartMethod
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.execution import CellWork
from supervisord_py.kernels.hosting.launching import launch_of
from supervisord_py.kernels.lives import kernel_tags
from supervisord_py.kernels.lives.kernel_life import KernelLife
from supervisord_py.kernels.messages import KernelEnd, how_it_ended
from supervisord_py.kernels.room_requests import Owner
from supervisord_py.kernels.session import BackendName
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.ledger.kernels import RUNNING, KernelCellRow
from supervisord_py.process import clock
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.cell import CallEvent
    from supervisord_py.kernels.hosting.live_session import LiveSession
    from supervisord_py.kernels.lives.kernel_tags import KernelTag
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.process.model import Child, ExitRecord

GATEWAY_UNIT = "kernel:gateway"
"""The shared gateway's own process: its backend looks after it."""
REMOTE_SECONDS = 10.0
"""How long a gateway may take to say what it has of ours, before the doors open without it."""
_log = structlog.get_logger(__name__)


class KernelAdoption:
    """Done once, when the room opens."""

    def __init__(self, room: Kernels) -> None:
        self._room = room
        self._pool = room.pool
        self._followed: set[str] = set()
        self._unsure: set[BackendName] = set()
        """Backends that could not say of a kernel whether it is there."""
        self._ends: dict[str, KernelEnd] = {}
        """Of kernels that were found dead, or are stopped because nobody can go on with them."""

    async def adopt_all(self) -> None:
        """Go through everything that is held, the newest kernel of a session first; returns when all is decided."""
        held = [it for it in await self._pool.placement.list("kernel:") if it.unit != GATEWAY_UNIT]
        claimed: set[str] = set()
        work = []
        for child in sorted(held, key=lambda it: it.started_at, reverse=True):
            tag = kernel_tags.decode(child.tag)
            work.append(self._decide_safely(child, tag, is_first=tag is not None and tag.key.id not in claimed))
            if tag is not None:
                claimed.add(tag.key.id)
        await asyncio.gather(*work)
        await self._adopt_remotely()
        await self._room.cell_store.close_cut_off(self._followed, self._ends)

    async def _decide_safely(self, child: Child, tag: KernelTag | None, *, is_first: bool) -> None:
        try:
            await self._decide(child, tag, is_first=is_first)
        except KeeperLostError:
            raise
        except Exception:
            _log.exception("adoption_failed", unit=child.unit, instance=child.key)
            self._pool.run_task(self._stop_left_over(child, tag, Reason.REPLACED))

    async def _decide(self, child: Child, tag: KernelTag | None, *, is_first: bool) -> None:
        is_shell = tag is not None and tag.key.backend is BackendName.BASH
        if tag is not None and is_shell and is_first and tag.cell is not None:
            await self._take_over(child, tag)  # also one that ended meanwhile: its cell has still to be closed
        elif child.exit is not None:
            await self._bury(child, child.exit, tag)
        elif tag is None or tag.wanted is not None or not is_first or not await self._take_over(child, tag):
            reason = (tag.wanted if tag else None) or Reason.REPLACED
            self._ends[child.key] = KernelEnd(reason)
            self._pool.run_task(self._stop_left_over(child, tag, reason))

    async def _adopt_remotely(self) -> None:
        """Take over kernels of gateways: nobody holds their processes for us, the backends remember them."""
        notes = self._room.config.gateway.dir / "held"
        if not await asyncio.to_thread(lambda: notes.is_dir() and any(notes.iterdir())):
            return
        gateways = (BackendName.GATEWAY_LOCAL, BackendName.GATEWAY_EXTERNAL)
        await asyncio.gather(*(self._adopt_from(name) for name in gateways))

    async def _adopt_from(self, name: BackendName) -> None:
        """Take over what one gateway has of ours; what it lost is swept, unless it could not be asked."""
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                backend: Any = await self._pool.backend(name)
                for child in await backend.held():
                    tag = kernel_tags.decode(child.tag)
                    if tag is not None and tag.key.backend is name and tag.wanted is None and self._is_free(tag):
                        await self._take_over(child, tag)
        except (PxError, OSError, TimeoutError) as error:
            _log.warning("gateway_not_asked", backend=name.value, detail=str(error))
        else:
            if name not in self._unsure:
                self._pool.run_task(_swept(backend))

    def _is_free(self, tag: KernelTag) -> bool:
        session = self._room.register.get(tag.key.id)
        return session is None or session.life is None

    # -- taking over -------------------------------------------------------------------------------------------------

    async def _take_over(self, child: Child, tag: KernelTag) -> bool:
        """Attach to a kernel and go on with it; False when it does not answer or cannot be."""
        session = self._session(tag)
        life = KernelLife(self._pool.set.reserve_serial(), child.key, session.key, 0.0, child.started_at)
        life.launch = await asyncio.to_thread(launch_of, session, life, self._room.config)
        if session.key.backend is BackendName.DIRECT:
            life.child = child
        try:
            backend = await self._pool.backend(session.key.backend)
            life.handle = await backend.attach(life.launch, child)
        except PxError as error:
            self._unsure.add(session.key.backend)
            _log.warning("kernel_not_attached", unit=child.unit, instance=child.key, detail=error.detail)
        if life.handle is None:
            return False
        life.ready_at = child.started_at
        life.cold_start_ms, life.start_method = tag.cold_start_ms, StartMethod(tag.start_method)
        life.cell, life.cell_deadline = tag.cell, tag.deadline
        session.life = life
        self._pool.chronicle.say("adopted", life, pid=child.identity.pid or None)
        await self._go_on(session, life, tag)
        return True

    def _session(self, tag: KernelTag) -> LiveSession:
        session = self._room.register.ensure(tag.key, tag.language, Owner(tag.owner))
        session.created, session.last_used = tag.created, tag.last_used
        session.kernelspec, session.interrupt_mode = tag.kernelspec, tag.interrupt_mode
        session.restarts = tag.restarts
        session.has_cells = session.has_cells or tag.cell is not None
        return session

    async def _go_on(self, session: LiveSession, life: KernelLife, tag: KernelTag) -> None:
        sent = await self._in_flight(session, life)
        _settle_variables(session, life)
        ticket = self._pool.new_ticket() if sent is not None else None
        adopted = ev.Adopted(
            session.id,
            life.serial,
            clock.now() - max(0.0, time.time() - tag.last_used),
            ticket=ticket,
            per_call=session.owner is Owner.PER_CALL,
        )
        self._pool.adopt(life, adopted)
        life.task = self._pool.run_task(self._pool.lives.watch(life))
        if sent is not None and ticket is not None:
            self._followed.add(sent.id)
            self._pool.run_task(self._follow(session, life, sent, ticket))

    async def _in_flight(self, session: LiveSession, life: KernelLife) -> KernelCellRow | None:
        """Return the cell that the kernel was at, unless it has ended meanwhile."""
        row = await self._last_row(session, life)
        if life.cell is None:
            return None
        log = self._room.cell_store.log(session.id, life.cell)
        is_kept, ended = await asyncio.to_thread(lambda: (log.exists(), log.ended() if log.exists() else None))
        if ended is not None and (row is None or row.ended_at is not None):
            return None  # nothing is left to be followed or written down
        if not is_kept and row is not None and row.ended_at is not None:
            return None  # long over, and its files were swept away since
        if row is None:
            return KernelCellRow(life.cell, session.id, "", 0, "", RUNNING, time.time(), time.time(), life.key)
        return row

    async def _last_row(self, session: LiveSession, life: KernelLife) -> KernelCellRow | None:
        """Return the row of the last cell that was sent; one too young for the note of a gateway has only that.

        How much time its call had is not known then: it gets the most there is, so that no work is cut short.
        """
        # A shell is a process of its own for each cell: its row was written before there was one to name.
        instance = None if session.key.backend is BackendName.BASH else life.key
        newest = await self._room.cell_store.open_row(session.id, instance)
        if newest is not None and newest.id != life.cell:
            limit = self._room.config.timeout_max_seconds
            life.cell, life.cell_deadline = newest.id, clock.now() + limit - max(0.0, time.time() - newest.queued_at)
        if newest is not None or life.cell is None:
            return newest
        return await self._room.cell_store.row(life.cell)

    async def _follow(self, session: LiveSession, life: KernelLife, sent: KernelCellRow, ticket: int) -> None:
        """Wait for the end of a cell in flight, or make it end when the time of its call is over."""
        if life.handle is None:
            return
        left = (life.cell_deadline or clock.now()) - clock.now()
        deadline = asyncio.get_running_loop().time() + left
        work = CellWork(self._room, session, life, life.handle)
        run = work.begin(sent, deadline, _nobody)
        done = await work.perform(run, sent, deadline)
        if done.result.status is CellStatus.OK:
            self._pool.report(ev.Succeeded(ticket))
        self._pool.report(ev.Ended(ticket))
        if life.exiting:
            self._pool.life_died(life)
        self._room.register.used(session)

    # -- clearing away -----------------------------------------------------------------------------------------------

    async def _bury(self, child: Child, record: ExitRecord, tag: KernelTag | None) -> None:
        """Record an end that happened while no control plane was there."""
        wanted = tag.wanted if tag else None
        await self._recorded(child, record, wanted, tag, event="stopped" if wanted else "died")

    async def _stop_left_over(self, child: Child, tag: KernelTag | None, reason: Reason) -> None:
        placement = self._pool.placement
        await placement.stop(child.key, grace_seconds=self._pool.stop_seconds, reason=reason.value)
        await self._recorded(child, await placement.wait(child.key), reason, tag, event="stopped")

    async def _recorded(
        self, child: Child, record: ExitRecord, wanted: Reason | None, tag: KernelTag | None, *, event: str
    ) -> None:
        placement, chronicle = self._pool.placement, self._pool.chronicle
        end = KernelEnd(outcome(record, wanted, ready=tag.ready if tag else False), record)
        self._ends.setdefault(child.key, end)
        await placement.stop(child.key, grace_seconds=0.0, reason=Reason.EXIT.value)
        await chronicle.ended(child.key, end)
        facts = {"instance": child.key, "pid": child.identity.pid, "code": end.code, "signal": end.signal}
        chronicle.say_of_session(event, child.unit, end.reason, **facts)
        session = self._room.register.get(tag.key.id) if tag else None
        if session is not None and session.life is None:
            session.reason = end.reason
            if session.keeps_variables:
                session.lost = f"The session's last kernel {how_it_ended(end)}; its variables are gone."
            self._room.register.settle(session)
        await placement.release(child.key)


async def _swept(backend: Any) -> None:
    """Have a gateway drop the kernels of ours that nobody took over."""
    await backend.sweep()


def _settle_variables(session: LiveSession, life: KernelLife) -> None:
    """See whether the variables of the session's last cells are this kernel's; if not, its first call is to be told."""
    if life.cell is None and session.newest is not None and session.newest.instance == life.key:
        life.cell = session.newest.id  # too short for the note of a gateway
    if life.cell is not None:
        session.lost = None


def _nobody(_: CallEvent) -> None:
    """Nobody is told."""
