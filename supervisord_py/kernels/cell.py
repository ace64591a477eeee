"""Calls, cells, and what came of them: frozen values shared by sessions, backends, and the API."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


class Cell(Struct, frozen=True):
    """One piece of code."""

    code: str
    title: str | None = None


class CellError(Struct, frozen=True):
    """What a cell raised. `traceback` is as the kernel gave it, with its colours."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()


class Step(Struct, frozen=True):
    """One rung of the ladder that was climbed to end a cell."""

    action: str  # `sigint`, `sigterm`, `sigkill`, `rest_interrupt`, `delete`
    after_seconds: float  # since the first rung
    detail: str | None = None  # what it met, where that is known


class InterruptReport(Struct, frozen=True):
    """What an interrupt did.

    Without a cell of ours a start under way was ended, or the kernel was interrupted once, because a client that is not
    ours may have it at work.
    """

    session_id: str
    running: str | None  # id of the cell that was running
    steps: tuple[Step, ...] = ()  # so far; more may follow while the cell does not end


class CellResult(Struct, frozen=True):
    """What came of one cell."""

    id: str  # names its files and `/api/kernels/{k}/cells/{id}/output`
    title: str | None
    status: CellStatus
    text: str = ""  # what is shown of its output: head and tail where `truncated`; rich outputs by the MIME rules
    outputs: tuple[Mapping[str, Any], ...] = ()  # as in nbformat, larger ones by reference; stream text as shown
    error: CellError | None = None
    truncated: bool = False
    artifact: str | None = None  # id under which the complete output is kept, None where there was none
    total_bytes: int = 0  # of the complete stream output
    duration_seconds: float | None = None  # wall clock of the cell alone
    execution_count: int | None = None
    steps: tuple[Step, ...] = ()  # rungs that ended it
    lossy: bool = False  # the backend could not promise all of the output; `notices` says why
    notices: tuple[str, ...] = ()
    variables: Variables = Variables.KEPT  # what the next call finds of the session's state after this cell


class CallRequest(Struct, frozen=True):
    """One call: cells to be run in order in one session."""

    session: str  # name or id; a name is made a session by cwd, interpreter and backend
    cells: tuple[Cell, ...]  # at least one
    arrived_at: float  # monotonic time (the event loop's)
    cwd: str | None = None  # absolute; None: that of the session when an id is given, else the daemon's home directory
    interpreter: str | None = None  # None lets settings and candidates decide, here and in the next two
    kernelspec: str | None = None
    backend: BackendName | None = None
    language: str = "python"  # or `bash`
    timeout_seconds: float | None = None  # as asked for, before clamping; None is the default
    reset: bool = False  # replace the kernel before the first cell
    per_call: bool = False  # a kernel of its own, removed afterwards
    caller: Callable[[], str | None] = lambda: None  # finds PX_INSTANCE of whoever calls: own sessions are refused
    environ: Mapping[str, str] = field(default_factory=dict)  # of the caller; decides between interpreters, and is
    # never passed on unfiltered


class CallResult(Struct, frozen=True):
    """What came of a call: one result for each cell that was asked for."""

    session_id: str  # of the session that it ran in
    cwd: str
    interpreter: str
    backend: BackendName
    variables: Variables
    cells: tuple[CellResult, ...]
    timeout_seconds: float  # in force, after clamping
    clamped: bool = False
    cold_start_ms: int | None = None
    instance: str | None = None
    notices: tuple[str, ...] = ()  # sentences for people: clamped, recycled, restarted, degraded
    message: str | None = None  # the sentence of the failing cell, or of the timeout; None when all is well

    @property
    def status(self) -> CellStatus:
        """That of the first cell which did not end well, else ok."""
        return next((cell.status for cell in self.cells if cell.status is not CellStatus.OK), CellStatus.OK)


# -- while it runs: what followers are told, in order; the tag is the event's name -------------------------------------


class Queued(Struct, frozen=True, tag="queued"):
    """The call waits; `position` 1 is next."""

    position: int


class KernelStarting(Struct, frozen=True, tag="starting"):
    """The session's kernel is being started."""

    kernel: str  # id of the session
    interpreter: str


class CellStarted(Struct, frozen=True, tag="cell_started"):
    """A cell was sent to the kernel of a session; `count` is how many cells the call has."""

    index: int
    id: str
    title: str | None
    kernel: str = ""
    code: str = ""
    count: int = 0


class RungClimbed(Struct, frozen=True, tag="rung"):
    """A step was taken to end a cell."""

    id: str
    step: Step


class CellDone(Struct, frozen=True, tag="cell_done"):
    """A cell ended."""

    result: CellResult


class Notice(Struct, frozen=True, tag="notice"):
    """Something for people."""

    text: str


CallEvent = Queued | KernelStarting | CellStarted | RungClimbed | CellDone | Notice
