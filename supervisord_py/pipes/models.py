"""What the room is told, what a pipe is to be, what is asked of the room and what it shows. Frozen
values, no I/O.

Times are Unix seconds, sizes bytes; what is not known is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from supervisord_py.config.documents import Problem, config_error
from supervisord_py.config.settings import PipesSettings
from supervisord_py.ledger.pipes import Plan, Status
from supervisord_py.pipes.schedule import Schedule

COMMAND = "command"  # the agent that is a pipe's own program: its `command`. It needs no model.
DEFAULT_AGENT = "pi"
TOKEN_FILE_VARIABLE = "PX_API_TOKEN_FILE"  # noqa: S105 - the name of a variable


class PipesConfig(PipesSettings, frozen=True, kw_only=True):
    """The settings of pipes; and what is none."""

    pipes_dir: Path  # folders of pipes
    examples_dir: Path  # pipes that ship with the package
    presets_file: Path  # beside the settings, as is the next; both may be absent
    agents_file: Path
    # `<executions_dir>/<id>/` holds output files (0600) and private agent files of one execution
    executions_dir: Path
    socket: str  # path of the control socket
    # loopback address of the TCP listener, its port, and where its token lies, absolute
    api_host: str = "127.0.0.1"
    api_port: int | None = None
    api_token_file: str | None = None
    preflight_seconds: float = 5.0  # so long providers are asked before a spawn; 0 for not at all
    row_bytes: int = 256 * 1024  # of each stream as text in the row (head and tail)

    @property
    def api(self) -> str:
        """Where agents find the API: the TCP port where there is a listener, else the control
        socket.

        The port asks for a token. The agent is told in which file it lies; the token itself is in
        no prompt.
        """
        if self.api_port is None:
            return f"unix socket {self.socket}"
        host = f"[{self.api_host}]" if ":" in self.api_host else self.api_host
        return f"http://{host}:{self.api_port} (bearer token in the file ${TOKEN_FILE_VARIABLE})"


class RetryRules(msgspec.Struct, frozen=True):
    """`retries`: how often and how patiently. None takes the daemon's setting."""

    max_retries: int | None = None
    on_timeout: bool = False
    delay_seconds: float | None = None


class Remark(NamedTuple):
    """What is odd about a key of a file that reads well."""

    key: str  # or `prompt`, or `front_matter` for several
    message: str
    hint: str | None = None  # what to write instead
    line: int | None = None
    is_minor: bool = False  # it changes no run: only `validate` tells it

    @property
    def sentence(self) -> str:
        place = "" if self.line is None else f" (line {self.line})"
        return f"{self.message}{place}{f'; {self.hint}' if self.hint else ''}"


class PipeDefinition(msgspec.Struct, frozen=True):
    name: str  # folder name: `[A-Za-z0-9][A-Za-z0-9._-]*`, one portable path component
    folder: Path  # the pipe's folder: cwd of the agent; `.env` and `output/` lie there
    file: Path  # the path of `pipe.md` in the folder (maybe a symbolic link)
    schedule: Schedule  # parsed; `schedule_text` as written
    schedule_text: str
    body: str
    title: str | None = None
    description: str | None = None
    enabled: bool = True  # what the file says; the ledger may know better (device-local)
    plan: Plan = Plan()  # its agent, command and ceilings, as far as the file says
    model: str | None = None
    provider: str | None = None
    presets: tuple[str, ...] = ()  # in order; `auto` is the default one, the last may be `*`
    effort: str | None = None
    timeout_seconds: float | None = None
    run_on_enable: bool = True
    # that start it: `NAME`, or `NAME:SUBJECT`, where `*`, `?` and `**` stand for others
    events: tuple[str, ...] = ()
    retries: RetryRules = RetryRules()
    # what it may use in a day of its time zone, as is the next; None is no ceiling
    daily_tokens: int | None = None
    daily_cost: float | None = None  # US dollars
    redact: tuple[str, ...] = ()  # regular expressions whose matches are never stored
    timezone: str | None = None
    remarks: tuple[Remark, ...] = ()
    # of the file's keys, counted from 1: where somebody is sent who has to mend one
    lines: Mapping[str, int] = {}
    digest: str = ""  # SHA-256 of the file: another one is another pipe

    @property
    def warnings(self) -> tuple[str, ...]:
        """The remarks that matter for runs, as sentences."""
        return tuple(remark.sentence for remark in self.remarks if not remark.is_minor)

    def problem(self, key: str, message: str, hint: str) -> Problem:
        """Return what is wrong with a key of a file that reads well."""
        return Problem(
            message=message,
            file=str(self.file),
            line=self.lines.get(key),
            pointer=f"/{key}",
            hint=hint,
        )


class BrokenPipe(msgspec.Struct, frozen=True):
    """A folder whose `pipe.md` cannot be used at present. It is listed, and never runs."""

    name: str
    folder: Path
    problem: Problem
    digest: str = ""  # SHA-256 of the file; "" where it could not be read


Declared: TypeAlias = PipeDefinition | BrokenPipe


def usable(declared: Declared) -> PipeDefinition:
    """Return a pipe that can be used; ConfigError, with what is wrong, where it is broken."""
    if isinstance(declared, BrokenPipe):
        raise config_error([declared.problem], f"pipe:{declared.name}")
    return declared


# -- what is asked, and what is shown --------------------------------------------------------------


class PublishedEvent(NamedTuple):
    """Something that happened, which may start pipes."""

    name: str  # the word before the colon of a pattern, or a webhook's name
    subject: str | None = None  # what follows the colon: a pipe, a tool, a path; None for a webhook
    # names this one happening, which each pipe claims once; None makes each call one of its own
    key: str | None = None
    facts: Mapping[str, Any] | None = None  # JSON values for the prompt
    # the pipes whose executions led to it, one by the other, the last one its source
    chain: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.name if self.subject is None else f"{self.name}:{self.subject}"


class Check(NamedTuple):
    """One thing that `pxctl pipe validate` says of a pipe: what is wrong with a key, or odd, or
    that all is well.
    """

    name: str  # the key, or what else is looked at
    verdict: Literal["pass", "warn", "fail"]
    detail: str
    line: int | None = None  # of pipe.md
    hint: str | None = None


class PipeView(msgspec.Struct, frozen=True):
    name: str
    enabled: bool = False  # the wish of this machine, else what the file says
    schedule: str | None = None  # as written in the file
    next_run: float | None = None  # None where nothing is due by itself
    last_run: float | None = None
    last_success: float | None = None
    last_status: Status | None = None
    running: int | None = None  # id of the execution that runs
    queued: int = 0  # how many wait
    waits_for: str | None = None  # what keeps the first of them waiting, in words
    consecutive_failures: int = 0
    # why it cannot run at present, with file and line; None when it can
    config_error: str | None = None
    warnings: tuple[str, ...] = ()
    title: str | None = None
    description: str | None = None
    agent: str | None = None
    presets: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    # what was last done about it: `at` (RFC 3339), and `text`, a sentence
    last_decision: dict[str, str] | None = None
    pid: int | None = None  # of the running execution, as are the next two
    instance: str | None = None
    started_at: float | None = None
    folder: str | None = None
    file: str | None = None

    @property
    def state(self) -> str:
        """Return one of `running queued idle disabled failed`; failed is one that cannot run."""
        if self.running is not None:
            return "running"
        if self.queued:
            return "queued"
        if self.config_error is not None:
            return "failed"
        return "idle" if self.enabled else "disabled"
