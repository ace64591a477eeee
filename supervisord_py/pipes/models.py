"""What a pipe is to be: the values that a `pipe.md` is read into. Frozen, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """When to read a file again: device, inode, size, time of the last change (ns), and SHA-256 of its bytes."""

    device: int
    inode: int
    size: int
    changed_ns: int
    digest: str


COMMAND = "command"
"""The agent that is a pipe's own program: its `command`. It needs no model."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Why a file cannot be used: what, where, and the cure.

    Attributes:
        detail: One sentence: what is wrong, with the text that is.
        hint: What to write instead.
        file: Path of the file.
        line, column: 1-based, of the text that is wrong; None where there is none.
        key: The front matter key, or None.
    """

    detail: str
    hint: str
    file: str
    line: int | None = None
    column: int | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        """`config_error` as it is shown: `pipe.md:3: <detail>; <hint>`."""
        return f"{self.finding}; {self.hint}"

    @property
    def finding(self) -> str:
        """The same without the cure, for those who show that apart."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.detail}"


@dataclass(frozen=True, slots=True)
class EventPattern:
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


@dataclass(frozen=True, slots=True)
class RetryRules:
    """`retries`: how often and how patiently. None takes the daemon's setting."""

    max_retries: int | None = None
    on_timeout: bool = False
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """`budget`: what a pipe may use in a day of its time zone; None for none."""

    daily_tokens: int | None = None
    daily_cost: float | None = None


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`limits`: ceilings of one execution that end it; None takes the adapter's or the daemon's."""

    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PipeDefinition:
    """A readable pipe.

    Attributes:
        name: Folder name: `[A-Za-z0-9][A-Za-z0-9._-]*`, one portable path component.
        folder: The pipe's folder: cwd of the agent; `.env` and `output/` lie there.
        file: The path of `pipe.md` in the folder (maybe a symbolic link).
        schedule: Parsed.
        schedule_text: As written.
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
    unknown: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokenPipe:
    """A folder whose `pipe.md` cannot be used at present. It is listed, and never runs.

    Attributes:
        problem: The first thing that is wrong.
        more: All further ones, in the order of the file, so that a person mends it in one go.
    """

    name: str
    folder: Path
    problem: ConfigProblem
    fingerprint: Fingerprint | None = None
    more: tuple[ConfigProblem, ...] = ()


Declared = PipeDefinition | BrokenPipe
