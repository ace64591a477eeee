"""What is asked of the room, and of its history: values that carry a request through it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.execution import Status

DEFAULT_PAGE = 50
MOST_PAGE = 500


class OutputStream(StrEnum):
    """What can be read of an execution's output: its text, its complaints, and the agent's own event lines."""

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run by hand.

    Attributes:
        context: JSON values that the prompt shows to the agent; None for none.
        queue: Wait in line where the pipe runs already, instead of being refused.
        timeout_seconds: Of this run alone; None for the pipe's own.
    """

    context: Mapping[str, Any] | None = None
    queue: bool = False
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ExecutionFilter:
    """Which executions, newest first.

    Attributes:
        pipe: Of this pipe alone; None for all.
        statuses: Only these; empty for all.
        since, until: Queued at or after, and before: Unix seconds.
        before_id: The `next_cursor` of the page before.
        limit: 1..500.
    """

    pipe: str | None = None
    statuses: tuple[Status, ...] = ()
    since: float | None = None
    until: float | None = None
    before_id: int | None = None
    limit: int = DEFAULT_PAGE


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """Something that happened, which may start pipes.

    Attributes:
        name: The word before the colon of a pattern, or a webhook's name.
        subject: What follows the colon: a pipe, a tool, a path; None for a webhook.
        key: Names this one happening: each pipe claims it once. None makes each call a happening of its own.
        facts: JSON values for the prompt.
        source: The pipe whose execution caused it, or None.
    """

    name: str
    subject: str | None = None
    key: str | None = None
    facts: Mapping[str, Any] | None = None
    source: str | None = None
