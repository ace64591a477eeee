"""One kernel's life: a session's process from the decision to start it until nothing of it is left."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.backend import StartMethod
from supervisord_py.kernels.messages import how_it_ended
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from supervisord_py.errors import PxError
    from supervisord_py.kernels.backend import KernelHandle, Launch
    from supervisord_py.kernels.messages import KernelEnd
    from supervisord_py.kernels.session import SessionKey
    from supervisord_py.process.model import Child, ExitRecord, Reason


@dataclass(slots=True, eq=False)
class KernelLife:
    """One life.

    Attributes:
        serial: The session set's number for it.
        key: Instance key of the placement.
        session: Whose it is.
        asked_at: Loop time of the decision.
        started_at: Unix seconds of the decision, then of the spawn.
        launch: What was asked of the backend; None for a life that ended before that was known.
        child, handle: What came of it; no child where the process is not ours.
        ready_at: Unix seconds.
        cold_start_ms: From the decision to readiness.
        start_method: How its process came about.
        wanted: Why it is to end; the first such reason stands.
        failure: Why it never became ready.
        record, ended: How it ended, once that is known.
        survivors: Pids that outlived the last attempt to stop it.
        rss_bytes: As last measured.
        cell: Id of the last cell that was sent to it, with the end of its call on the clock that counts suspend.
        busy: A cell of ours runs on it, or has ended and it is not known yet how. `judged`: set when that is known.
        foreign_busy, foreign_used_at: What the set has heard of clients that are not ours.
        exiting: A cell said exit(): it ends by its own wish.
        ending: Its clearing up has begun.
        death_reported: The set has heard that it died.
        problem: Problem document of its end, filled as more becomes known: the set keeps it with a hard failure.
        event: Id of the last event about it: the cause of the next one.
        task: Brings it up and watches it.
        told: Set when `ended` is there.
        stopped: Set when nothing is left, or when something survived a first stop.
    """

    serial: int
    key: str
    session: SessionKey
    asked_at: float
    started_at: float
    launch: Launch | None = None
    child: Child | None = None
    handle: KernelHandle | None = None
    ready_at: float | None = None
    cold_start_ms: int = 0
    start_method: StartMethod = StartMethod.SPAWN
    wanted: Reason | None = None
    failure: PxError | None = None
    record: ExitRecord | None = None
    ended: KernelEnd | None = None
    survivors: tuple[int, ...] = ()
    rss_bytes: int | None = None
    cell: str | None = None
    cell_deadline: float | None = None
    busy: bool = False
    foreign_busy: bool = False
    foreign_used_at: float | None = None
    exiting: bool = False
    ending: bool = False
    death_reported: bool = False
    problem: dict[str, object] = field(default_factory=dict)
    event: int | None = None
    task: asyncio.Task[None] | None = None
    judged: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unit(self) -> str:
        """`kernel:<session id>`."""
        return self.session.unit

    @property
    def pid(self) -> int | None:
        """The pid of its process, where that is ours."""
        return self.child.identity.pid if self.child else None

    @property
    def is_ours(self) -> bool:
        """Whether its process is the keeper's child: such a life has a row and is released."""
        return self.session.backend is BackendName.DIRECT

    @property
    def shells(self) -> tuple[str, ...]:
        """Instance key of the process of its shell cell, where one runs."""
        shell = self.handle.started.child if self.handle and self.session.backend is BackendName.BASH else None
        return (shell.key,) if shell is not None else ()

    @property
    def is_over(self) -> bool:
        """Whether its end is known."""
        return self.told.is_set()

    def explain(self, end: KernelEnd) -> None:
        """Note what is known of its end so far, for whoever is refused because of it."""
        self.problem.update(end.facts(), detail=f"The kernel {how_it_ended(end)}.")

    def tell(self, end: KernelEnd) -> None:
        """Note how it ended; whoever waits for that hears of it."""
        self.explain(end)
        self.ended = end
        self.told.set()
