"""What a pipe is to be: the values that a `pipe.md` is read into. Frozen, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from supervisord_py.config.documents import Problem, config_error
from supervisord_py.pipes.schedule import Schedule

if TYPE_CHECKING:
    from supervisord_py.errors import ConfigError

COMMAND = "command"
"""The agent that is a pipe's own program: its `command`. It needs no model."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Why a file of agents or presets cannot be used: what, where (line and column count from 1), and the cure."""

    detail: str
    hint: str
    file: str
    line: int | None = None
    column: int | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        """As it is shown: `agents.toml:3: <detail>; <hint>`."""
        return f"{self.finding}; {self.hint}"

    @property
    def finding(self) -> str:
        """The same without the cure, for those who show that apart."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.detail}"


class Fingerprint(msgspec.Struct, frozen=True):
    """When to read a file again: device, inode, size, time of the last change (ns), and SHA-256 of its bytes."""

    device: int
    inode: int
    size: int
    changed_ns: int
    digest: str


class EventPattern(msgspec.Struct, frozen=True):
    """An event that starts a pipe: `pipe_completed:x`, `pipe_failed:*`, `tool_failed:x`, `file_changed:PATH`, `NAME`.

    Attributes:
        event: The word before the colon.
        subject: What follows it; None is any. A path may hold `*`, `?` and `**`; relative to the pipe's folder.
    """

    event: str
    subject: str | None = None

    @property
    def text(self) -> str:
        """As it stands in the file."""
        return self.event if self.subject is None else f"{self.event}:{self.subject}"


class RetryRules(msgspec.Struct, frozen=True):
    """`retries`: how often and how patiently. None takes the daemon's setting."""

    max_retries: int | None = None
    on_timeout: bool = False
    delay_seconds: float | None = None


class BudgetRules(msgspec.Struct, frozen=True):
    """`budget`: what a pipe may use in a day of its time zone; None for none."""

    daily_tokens: int | None = None
    daily_cost: float | None = None


class RunLimits(msgspec.Struct, frozen=True):
    """`limits`: ceilings of one execution that end it; None takes the adapter's or the daemon's."""

    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    memory_bytes: int | None = None


class PipeDefinition(msgspec.Struct, frozen=True):
    """A readable pipe.

    Attributes:
        name: Folder name: `[A-Za-z0-9][A-Za-z0-9._-]*`, one portable path component.
        folder: The pipe's folder: cwd of the agent; `.env` and `output/` lie there.
        file: The path of `pipe.md` in the folder (maybe a symbolic link).
        schedule: Parsed; `schedule_text` as written.
        enabled: What the file says; the ledger may know better (device-local).
        presets: In order; `auto` is the default one, the last may be `*`; empty = model and provider of the file, else
            the default preset.
        command: Argv, for `agent: command`.
        redact: Regular expressions whose matches are never stored.
        unknown: Keys that nobody here knows, kept in the file.
        warnings: Sentences for people.
        lines: Of the file's keys, counted from 1: where somebody is sent who has to mend one.
    """

    name: str
    folder: Path
    file: Path
    fingerprint: Fingerprint
    schedule: Schedule
    schedule_text: str
    body: str
    title: str | None = None
    description: str | None = None
    enabled: bool = True
    agent: str = "pi"
    command: tuple[str, ...] = ()
    model: str | None = None
    provider: str | None = None
    presets: tuple[str, ...] = ()
    effort: str | None = None
    timeout_seconds: float | None = None
    run_on_enable: bool = True
    history: bool = False
    allow_empty: bool = False
    events: tuple[EventPattern, ...] = ()
    retries: RetryRules = RetryRules()
    budget: BudgetRules = BudgetRules()
    limits: RunLimits = RunLimits()
    redact: tuple[str, ...] = ()
    timezone: str | None = None
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    lines: Mapping[str, int] = {}

    def problem(self, key: str, message: str, hint: str) -> Problem:
        """Return what is wrong with a key of a file that reads well."""
        return Problem(message=message, file=str(self.file), line=self.lines.get(key), pointer=f"/{key}", hint=hint)


class BrokenPipe(msgspec.Struct, frozen=True):
    """A folder whose `pipe.md` cannot be used at present. It is listed, and never runs.

    Attributes:
        problem: The first thing that is wrong.
        more: All further ones, in the order of the file, so that a person mends it in one go.
    """

    name: str
    folder: Path
    problem: Problem
    fingerprint: Fingerprint | None = None
    more: tuple[Problem, ...] = ()

    def error(self) -> ConfigError:
        """Return all of it as the error of every surface."""
        return error_of((self.problem, *self.more), self.name)


Declared: TypeAlias = PipeDefinition | BrokenPipe


def problem_text(problem: Problem, *, cure: bool = True) -> str:
    """Return `config_error` as it is shown: `pipe.md:3: <message>; <hint>`."""
    place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    return f"{place}: {problem.message}{f'; {problem.hint}' if problem.hint and cure else ''}"


def error_of(problems: Sequence[Problem], pipe: str) -> ConfigError:
    """Return what is wrong with a pipe, of which there is at least one, as the error of every surface."""
    error = config_error(problems, f"pipe:{pipe}")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    error.detail = f"{problem_text(problems[0], cure=False)}{more}"
    return error
