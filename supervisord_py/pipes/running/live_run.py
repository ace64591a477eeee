"""One execution that is not final: in line, being started, running, ending.

Law: why it is to end is decided once, the first reason stands. The room has one of these for each open row, and for
nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.pipes.judging.values import Cause
from supervisord_py.pipes.running.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from supervisord_py.ledger.pipe_executions import Output
    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.execution import Execution, Usage
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.run_terms import RunTerms
    from supervisord_py.process.spec import Child, ExitRecord

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
