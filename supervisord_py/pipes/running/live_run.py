"""One execution that is not final: in line, being started, running, ending.

Law: why it is to end is decided once, the first reason stands. The room has one of these for each open row, and for
nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.pipes.execution import Status
from supervisord_py.pipes.outcome import Cause

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.pipes.execution import Execution, Usage
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.run_terms import RunTerms
    from supervisord_py.process.model import Child, ExitRecord


class Bell:
    """Rung at each news; closed when nothing more will come."""

    __slots__ = ("_next", "is_closed", "rings")

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None
        """There while somebody waits: most rings are for nobody."""
        self.rings = 0
        self.is_closed = False

    def ring(self) -> None:
        """Wake whoever waits."""
        self.rings += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    def close(self) -> None:
        """Ring for the last time."""
        self.is_closed = True
        self.ring()

    async def after(self, rings: int) -> None:
        """Wait until it has rung more than `rings` times; at once when it is closed."""
        while self.rings <= rings and not self.is_closed:
            if self._next is None:
                self._next = asyncio.Event()
            await self._next.wait()


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class LiveRun:
    """One execution at work.

    Attributes:
        execution: As it stands, without the texts of its output.
        definition: What its pipe was when it was queued; None where that is not known any more.
        cause, detail: Why it is to end, in words; NOBODY while it is not.
        turn: Set whenever it is to end, or to be let go.
        left: Set when this control plane goes; the run goes on without it.
        terms: How its agent is to be read and judged; None before it was started.
        child: Its process.
        secrets: Values that must not be stored of it; None where another control plane started it, and knew them.
        deadline: When its timeout is over, on the clock that counts suspend.
        following: Reads its output.
        heard_at: When it last said something, same clock.
        event: Id of the last event about it: the cause of the next one.
        bell: Rung at every change.
        done: Set when its row is final and it is forgotten here.
        texts: Of its whole output, stdout and stderr, once its end is recorded: a full disk may not show them yet.
    """

    execution: Execution
    definition: PipeDefinition | None = None
    cause: Cause = Cause.NOBODY
    detail: str | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    terms: RunTerms | None = None
    child: Child | None = None
    secrets: tuple[str, ...] | None = field(default=None, repr=False)
    deadline: float = 0.0
    following: Following | None = None
    heard_at: float = 0.0
    record: ExitRecord | None = None
    survivors: tuple[int, ...] = ()
    event: int | None = None
    bell: Bell = field(default_factory=Bell)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    texts: tuple[str | None, str | None] | None = None
    _attempt: tuple[asyncio.Event, asyncio.Future[Any]] | None = None

    @property
    def id(self) -> int:
        """Of the execution."""
        return self.execution.id

    @property
    def pipe(self) -> str:
        """Name of its pipe."""
        return self.execution.pipe_name

    @property
    def key(self) -> str:
        """The placement's key of its process; "" before it has one."""
        return self.execution.instance or ""

    @property
    def is_wanted(self) -> bool:
        """Whether nobody wants it to end."""
        return self.cause is Cause.NOBODY

    @property
    def is_leaving_line(self) -> bool:
        """Whether it is to end, or has ended, before it ran."""
        return not self.is_wanted and self.execution.started_at is None

    def become(self, **changes: Any) -> Execution:
        """Change what is known of the execution, and tell followers."""
        self.execution = replace(self.execution, **changes)
        self.bell.ring()
        return self.execution

    def has_given(self, output: Output, usage: Usage) -> None:
        """Know how much it has given and used so far; who follows its output has heard of it already."""
        self.execution = replace(
            self.execution,
            stdout_bytes=output.stdout_bytes,
            stderr_bytes=output.stderr_bytes,
            lost_bytes=output.lost_bytes,
            invalid_utf8=output.invalid_utf8,
            usage=usage,
        )

    def with_texts(self, stdout: str | None, stderr: str | None) -> Execution:
        """Return the execution with the text of its output."""
        return replace(self.execution, stdout=stdout, stderr=stderr)

    def end(self, cause: Cause, detail: str | None = None) -> bool:
        """Want its end; say whether this was the first to want it."""
        if self.cause is not Cause.NOBODY:
            return False
        self.cause, self.detail = cause, detail
        self.turn.set()
        self._give_up()
        return True

    def let_go(self) -> None:
        """Have it go on without this control plane."""
        self.left.set()
        self.turn.set()
        self._give_up()
        self.bell.ring()

    # -- what is given up when it turns ------------------------------------------------------------------------------

    async def attempt(
        self, work: Coroutine[Any, Any, T] | asyncio.Future[T], *, until: asyncio.Event
    ) -> asyncio.Future[T]:
        """Do something to its end, or until it is to end (`turn`) or to be let go (`left`).

        Returns:
            What is done, or was given up: `cancelled()` says so.
        """
        doing = asyncio.ensure_future(work)
        self._attempt = (until, doing)
        if until.is_set():
            asyncio.get_running_loop().call_soon(doing.cancel)  # its first step is taken: what is sent at once, is sent
        try:
            await asyncio.wait((doing,))
        finally:
            self._attempt = None
            if not doing.done():
                doing.cancel()
                await asyncio.wait((doing,))
        return doing

    def _give_up(self) -> None:
        if self._attempt is not None and self._attempt[0].is_set():
            self._attempt[1].cancel()


class Roster:
    """Who is at work, and who waits."""

    def __init__(self) -> None:
        self._runs: dict[int, LiveRun] = {}
        self._of_pipes: dict[str, dict[int, LiveRun]] = {}

    def add(self, live: LiveRun) -> None:
        """Take one in."""
        self._runs[live.id] = self._of_pipes.setdefault(live.pipe, {})[live.id] = live

    def remove(self, live: LiveRun) -> None:
        """Forget one whose row is final."""
        self._runs.pop(live.id, None)
        of_pipe = self._of_pipes.get(live.pipe, {})
        of_pipe.pop(live.id, None)
        if not of_pipe:
            self._of_pipes.pop(live.pipe, None)

    def get(self, execution: int) -> LiveRun | None:
        """Return one by id."""
        return self._runs.get(execution)

    def all(self) -> tuple[LiveRun, ...]:
        """Return everyone, oldest first."""
        return tuple(self._runs[key] for key in sorted(self._runs))

    def refused_output(self) -> dict[str, str]:
        """Return the units whose output the disk refuses at present, and why."""
        following = ((it.execution.unit, it.following) for it in self.all())
        return {unit: it.trouble for unit, it in following if it is not None and it.trouble is not None}

    def of_pipe(self, pipe: str) -> tuple[LiveRun, ...]:
        """Return those of one pipe, oldest first."""
        found = self._of_pipes.get(pipe, {})
        return tuple(found[key] for key in sorted(found))

    def count(self, pipe: str) -> int:
        """Return how many there are of one pipe."""
        return len(self._of_pipes.get(pipe, ()))

    def running(self, pipe: str) -> LiveRun | None:
        """Return the one of a pipe that runs."""
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[LiveRun, ...]:
        """Return those of a pipe that wait, oldest first."""
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)
