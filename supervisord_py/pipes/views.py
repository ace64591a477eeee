"""What the room shows of itself: frozen values. Times are Unix seconds, sizes bytes; what is not known is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import Execution, Group, Status
    from supervisord_py.pipes.room_requests import OutputStream


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler last decided about a pipe, in a sentence."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class PipeView:
    """A pipe as it stands.

    Attributes:
        enabled: The wish of this machine, else what the file says.
        schedule: As written in the file.
        next_run: None where nothing is due by itself.
        running: Id of the execution that runs.
        queued: How many wait.
        config_error: Why it cannot run at present, with file and line; None when it can.
        slower_than_schedule: On average it takes longer than the time between two runs.
        pid, instance, started_at: Of the running execution.
    """

    name: str
    enabled: bool
    schedule: str | None
    next_run: float | None = None
    last_run: float | None = None
    last_success: float | None = None
    last_status: Status | None = None
    running: int | None = None
    queued: int = 0
    consecutive_failures: int = 0
    config_error: str | None = None
    warnings: tuple[str, ...] = ()
    title: str | None = None
    description: str | None = None
    agent: str | None = None
    presets: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    last_decision: Decision | None = None
    average_duration_seconds: float | None = None
    slower_than_schedule: bool = False
    pid: int | None = None
    instance: str | None = None
    started_at: float | None = None
    folder: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """One line and its slots. `waiting` is in order; blobs are absent in all of them."""

    group: Group
    slots: int
    running: tuple[Execution, ...]
    waiting: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class QueueView:
    """All lines."""

    groups: tuple[GroupView, ...]


@dataclass(frozen=True, slots=True)
class NextReport:
    """When a pipe is due, and why.

    Attributes:
        summary: The schedule in words.
        upcoming: Unix seconds, ascending; empty where nothing is due by itself.
        sentences: Why it runs next when it does, or why it does not.
        now: What holds at this moment, in a sentence: what it waits for. None where it does not run by itself.
        events: What else starts it.
        last_decision: What was last done about it: started, skipped, refused; None before. That it waits is none.
    """

    name: str
    enabled: bool
    schedule: str | None
    summary: str
    upcoming: tuple[float, ...]
    sentences: tuple[str, ...]
    timezone: str | None = None
    last_decision: Decision | None = None
    now: str | None = None
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A piece of an execution's output.

    Attributes:
        offset: Where `data` begins; not before what was asked for.
        total_bytes: Of the stream so far, those included that were not kept.
        complete: `data` reaches the end, no more will come, and nothing of the stream is missing.
        truncated: Of an execution that is over: not all of the stream was kept. An empty page is the end then.
    """

    data: bytes
    offset: int
    total_bytes: int
    complete: bool
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """Executions, newest first. `next_cursor` is the `before_id` of the next page; None at the end."""

    executions: tuple[Execution, ...]
    next_cursor: int | None = None


@dataclass(frozen=True, slots=True)
class FollowStart:
    """First of a follow: the execution as it stands."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class FollowOutput:
    """Bytes of a stream, in order, each once. `offset` is of the first byte."""

    stream: OutputStream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """The execution's status, position or place of running changed."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class FollowDone:
    """Last of a follow: the execution is final, what was kept of its output was given."""

    execution: Execution


FollowItem = FollowStart | FollowOutput | FollowStatus | FollowDone


@dataclass(frozen=True, slots=True)
class Claimed:
    """A pipe that an event starts, and the execution that came of it."""

    pipe: str
    execution: int


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A pipe whose pattern fits, and why it was not started."""

    pipe: str
    why: str


@dataclass(frozen=True, slots=True)
class EventClaims:
    """What became of an event."""

    claimed: tuple[Claimed, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()


@dataclass(frozen=True, slots=True)
class PipesHealth:
    """How the room is.

    Attributes:
        scheduler_running: False before the listener is up, and after the end.
        scheduler_restarts: How often its loop died and was started again.
        scheduler_error: Of the last such death.
        broken: Pipes with a config_error.
        ledger: Why the ledger takes nothing at present; None when all is well.
        catalog: Why the folder of pipes cannot be looked at; what was seen is kept.
    """

    scheduler_running: bool
    scheduler_restarts: int
    scheduler_error: str | None
    pipes: int
    broken: int
    queued: int
    running: int
    ledger: str | None
    catalog: str | None = None
