"""Calls, cells, and what came of them: frozen values shared by sessions, backends, and the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from supervisord_py.kernels.session import StartRequest

if TYPE_CHECKING:
    from supervisord_py.kernels.session import BackendName

CallEvent = dict[str, Any]
"""What happens in a call, as its followers are told it, in order; `event` is one of:

- `queued`: it waits, and its `position` (1 is next). `starting`: the kernel of session `kernel`, by `interpreter`.
- `cell_started`: a cell was sent: `index`, `id`, `title`, `kernel` (its session), `code`, and the `count` of all cells.
- `rung`: a step was taken to end the cell `id`, with the members of Step. `cell_done`: the document of a `cell`.
- `notice`: `text` for people.
"""


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

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "duration": self.duration_seconds}


class CallRequest(StartRequest, frozen=True, kw_only=True):
    """One call: cells to be run in order in one session; with the owner `per_call` in a kernel of its own."""

    cells: tuple[Cell, ...]  # at least one
    arrived_at: float  # monotonic time (the event loop's)
    reset: bool = False  # replace the kernel before the first cell
    caller: Callable[[], str | None] = lambda: None  # finds PX_INSTANCE of whoever calls: own sessions are refused


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
