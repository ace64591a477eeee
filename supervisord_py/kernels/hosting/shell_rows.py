"""The processes of shell cells: each is a child of its own, and has a row of its own.

Law: what is told here is written in order, before the keeper forgets the child. The note with it names the cell, so
that a later control plane can follow it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisord_py.kernels.kernel_endings import KernelEnd
from supervisord_py.ledger import instances
from supervisord_py.process.lifecycle import outcome

if TYPE_CHECKING:
    from supervisord_py.kernels.bash.backend import ShellChild
    from supervisord_py.kernels.hosting.kernel_pool import KernelPool
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.spec import ExitRecord


class ShellRows:
    """Writes down the processes of shell cells."""

    def __init__(self, ledger: Ledger, pool: KernelPool) -> None:
        self._ledger = ledger
        self._pool = pool

    async def shell_began(self, child: ShellChild) -> None:
        """A shell cell's process was spawned: put the cell into its note, and write its row."""
        held = child.child
        life = self._life(child.session_id)
        if life is not None:
            life.shells.add(held.key)
            await self._pool.placement.annotate(held.key, self._pool.tag_of(life))
        row = instances.Starting(held.key, held.unit, held.started_at, start_method="bash")
        who = held.identity
        spawned = instances.Spawned(who.pid, who.start_time, who.boot_id, held.started_at, held.log_position)
        await instances.insert_starting(self._ledger, row)
        await instances.spawned(self._ledger, held.key, spawned)
        await instances.ready(self._ledger, held.key, time.time())

    def shell_ended(self, child: ShellChild, record: ExitRecord, survivors: tuple[int, ...]) -> None:
        """Nothing of it is left but the survivors."""
        life = self._life(child.session_id)
        wanted = life.wanted if life is not None else None
        if life is not None:
            life.shells.discard(child.child.key)
            if survivors:
                self._pool.chronicle.say("survivors", life, pids=list(survivors))
        end = KernelEnd(outcome(record, wanted, ready=True), record)
        self._pool.run_task(self._pool.chronicle.ended(child.child.key, end))

    def _life(self, session_id: str) -> KernelLife | None:
        session = self._pool.register.get(session_id)
        return session.life if session is not None else None
