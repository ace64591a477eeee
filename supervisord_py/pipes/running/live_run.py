"""One execution that is not final: in line, being started, running, ending.

Law: why it is to end is decided once, the first reason stands. The room has one of these for each open row, and for
nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.judging.values import Cause
from supervisord_py.pipes.running.bell import Bell

if TYPE_CHECKING:
    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.following import Following
    from supervisord_py.pipes.running.run_terms import RunTerms
    from supervisord_py.process.spec import Child, ExitRecord


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
    deadline: float = 0.0
    following: Following | None = None
    heard_at: float = 0.0
    record: ExitRecord | None = None
    survivors: tuple[int, ...] = ()
    event: int | None = None
    bell: Bell = field(default_factory=Bell)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    texts: tuple[str | None, str | None] | None = None

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

    def become(self, **changes: Any) -> Execution:
        """Change what is known of the execution, and tell followers."""
        self.execution = replace(self.execution, **changes)
        self.bell.ring()
        return self.execution

    def with_texts(self, stdout: str | None, stderr: str | None) -> Execution:
        """Return the execution with the text of its output."""
        return replace(self.execution, stdout=stdout, stderr=stderr)

    def end(self, cause: Cause, detail: str | None = None) -> bool:
        """Want its end; say whether this was the first to want it."""
        if self.cause is not Cause.NOBODY:
            return False
        self.cause, self.detail = cause, detail
        self.turn.set()
        return True

    def let_go(self) -> None:
        """Have it go on without this control plane."""
        self.left.set()
        self.turn.set()
        self.bell.ring()
