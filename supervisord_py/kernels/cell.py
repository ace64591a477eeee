"""Calls, cells, and what came of them: frozen values shared by sessions, backends, and the API."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.session import BackendName


class CellStatus(StrEnum):
    """How a cell ended (CONTRACT §6). `ABORTED`: not run, because an earlier one failed or the call ended."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"


class Variables(StrEnum):
    """What became of the session's state; always the truth, never a hope. Shell cells leave none: LOST."""

    KEPT = "kept"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of code."""

    code: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class CellError:
    """What a cell raised. `traceback` is as the kernel gave it, with its colours."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of the ladder that was climbed to end a cell.

    Attributes:
        action: `sigint`, `nudge`, `sigterm`, `sigkill`, `rest_interrupt`, `delete`.
        after_seconds: Since the first rung.
        detail: What it met, where that is known.
    """

    action: str
    after_seconds: float
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came of one cell.

    Attributes:
        id: Names its files and `/api/kernels/{k}/cells/{id}/output`.
        text: What is shown of its output: head and tail where `truncated`; rich outputs by the MIME rules.
        outputs: Rich outputs in order, as in nbformat, larger ones by reference; stream text as shown.
        artifact: Id under which the complete output is kept, None where there was none.
        total_bytes, total_lines: Of the complete stream output. `shown_bytes` of it are in `text`.
        duration_seconds: Wall clock of the cell alone.
        steps: Rungs that ended it.
        lossy: The backend could not promise all of the output; `notices` says why.
        variables: What the next call finds of the session's state after this cell.
    """

    id: str
    title: str | None
    status: CellStatus
    text: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()
    error: CellError | None = None
    truncated: bool = False
    artifact: str | None = None
    total_bytes: int = 0
    total_lines: int = 0
    shown_bytes: int = 0
    duration_seconds: float | None = None
    execution_count: int | None = None
    steps: tuple[Step, ...] = ()
    lossy: bool = False
    notices: tuple[str, ...] = ()
    variables: Variables = Variables.KEPT


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call: cells to be run in order in one session.

    Attributes:
        session: Name or id of a session; a name is made a session by cwd, interpreter and backend.
        cells: At least one.
        cwd: Absolute; must exist. None: that of the session when an id is given, else the daemon's home directory.
        interpreter, kernelspec, backend: None lets settings and candidates decide.
        language: `python` or `bash`.
        timeout_seconds: As asked for, before clamping; None is the default.
        reset: Replace the kernel before the first cell.
        per_call: A kernel of its own, removed afterwards.
        caller_instance: PX_INSTANCE of whoever calls, to refuse a cell that calls its own session.
        arrived_at: Monotonic time (the event loop's) of the request's arrival.
        environ: PI_/PX_ variables and VIRTUAL_ENV, CONDA_PREFIX, PATH of the caller, where a client sends them;
            decides between interpreters, never passed on unfiltered.
    """

    session: str
    cells: tuple[Cell, ...]
    arrived_at: float
    cwd: str | None = None
    interpreter: str | None = None
    kernelspec: str | None = None
    backend: BackendName | None = None
    language: str = "python"
    timeout_seconds: float | None = None
    reset: bool = False
    per_call: bool = False
    caller_instance: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallResult:
    """What came of a call: one result for each cell that was asked for.

    Attributes:
        session_id: Of the session that it ran in.
        timeout_seconds: In force, after clamping; `clamped` says whether that changed it.
        notices: Sentences for people: clamped, recycled, restarted, degraded.
        message: The sentence of the failing cell, or of the timeout; None when all is well.
    """

    session_id: str
    cwd: str
    interpreter: str
    backend: BackendName
    variables: Variables
    cells: tuple[CellResult, ...]
    timeout_seconds: float
    clamped: bool = False
    cold_start_ms: int | None = None
    instance: str | None = None
    notices: tuple[str, ...] = ()
    message: str | None = None

    @property
    def status(self) -> CellStatus:
        """That of the first cell which did not end well, else ok."""
        return next((cell.status for cell in self.cells if cell.status is not CellStatus.OK), CellStatus.OK)


# -- while it runs: what followers of a call are told, in order -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queued:
    """The call waits; `position` 1 is next."""

    position: int


@dataclass(frozen=True, slots=True)
class KernelStarting:
    """The session's kernel is being started."""

    session_id: str
    interpreter: str


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A cell was sent to the kernel of `session_id`; `count` is how many cells the call has."""

    index: int
    id: str
    title: str | None
    session_id: str = ""
    code: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class CellNews:
    """There is something new in the files of a cell: followers read it there, each at its own speed."""

    id: str


@dataclass(frozen=True, slots=True)
class RungClimbed:
    """A step was taken to end a cell."""

    id: str
    step: Step


@dataclass(frozen=True, slots=True)
class CellDone:
    """A cell ended."""

    result: CellResult


@dataclass(frozen=True, slots=True)
class Notice:
    """Something for people."""

    text: str


CallEvent = Queued | KernelStarting | CellStarted | CellNews | RungClimbed | CellDone | Notice
