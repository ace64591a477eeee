"""Sessions, what was chosen for them, calls, cells, and what came of them: frozen values for all.

No I/O.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import asdict

from supervisord_py.errors import InvalidInputError

if TYPE_CHECKING:
    from supervisord_py.kernels.environment import Filtered
    from supervisord_py.process.child_environment import Environment

BASH = "bash"
PYTHON = "python"
PROGRAMS = "kernel-"  # how the names of programs begin that are run for kernels
SPEC_PREFIX = "spec:"  # before the name of a kernelspec that is a session's interpreter
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
JUPYTER_NAMESPACE = uuid.UUID("6d0f3f64-0d6e-5d8b-9d5a-3c1b6f8f2f10")
CallEvent = dict[str, Any]
"""What happens in a call, as its followers are told it, in order; `event` is one of:

- `queued`: it waits, and its `position` (1 is next). `starting`: the kernel of session `kernel`, by
  `interpreter`.
- `preparing`: what the interpreter lacks is being installed; `text` says how far that is,
  `packages` how many are named so far, `log` where the installer's output is.
- `cell_started`: a cell was sent: `index`, `id`, `title`, `kernel` (its session), `code`, and the
  `count` of all cells.
- `rung`: a step was taken to end the cell `id`, with the members of Step. `cell_done`: the document
  of a `cell`.
- `notice`: `text` for people.
"""


# -- sessions --------------------------------------------------------------------------------------


class BackendName(StrEnum):
    DIRECT = "direct"
    GATEWAY_LOCAL = "gateway-local"
    GATEWAY_EXTERNAL = "gateway-external"
    BASH = "bash"


class SessionState(StrEnum):
    """What is observed of a session.

    `STOPPED` ones are remembered, hold no process, and start with the next call.
    """

    PREPARING = "preparing"  # what its interpreter lacks is being installed; no kernel runs yet
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    UNRESPONSIVE = "unresponsive"  # nothing of ours runs in it, and its process does not answer
    STOPPING = "stopping"
    FAILED = "failed"
    STOPPED = "stopped"


class Owner(StrEnum):
    """Who made a session, and who ends it."""

    SESSION = "session"
    PER_CALL = "per_call"
    # a front end whose own program (our provisioner) watches it and starts it anew after a crash
    JUPYTER = "jupyter"
    # one that came by Jupyter's REST API, where that is left to the server: to us
    JUPYTER_API = "jupyter_api"


def session_name(asked: str) -> str:
    """Return the name of a session as asked for. Raises InvalidInputError: it cannot be one."""
    if NAME.fullmatch(asked):
        return asked
    message = (
        "A name is 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit; not "
        f"{asked[:64]!a}."
    )
    raise InvalidInputError.at("/name", message, "Without a name it is `default`.")


class SessionKey(Struct, frozen=True):
    """What makes two calls share one kernel."""

    name: str  # chosen by the user; `default` where none is given
    cwd: str  # real path
    # A path (its directory made real: a venv's python is a link), `spec:NAME` of a kernelspec, or
    # `bash`.
    interpreter: str
    backend: BackendName

    @property
    def kernelspec(self) -> str | None:
        return (
            self.interpreter.removeprefix(SPEC_PREFIX)
            if self.interpreter.startswith(SPEC_PREFIX)
            else None
        )

    @property
    def id(self) -> str:
        """The `{k}` of the routes and the name of the unit: the name and six hex digits of the
        whole key.

        Two keys may have the same: `SessionRegister` gives the second one its `long_id`.
        """
        return f"{self.name}-{self._digest[:6]}"

    @property
    def long_id(self) -> str:
        return f"{self.name}-{self._digest[:32]}"

    @property
    def jupyter_id(self) -> str:
        """The id by which Jupyter's own clients call it: a UUID, as their routes demand."""
        return str(uuid.uuid5(JUPYTER_NAMESPACE, self._whole))

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self._whole.encode()).hexdigest()

    @property
    def _whole(self) -> str:
        return f"{self.name}\0{self.cwd}\0{self.interpreter}\0{self.backend}"


class StartRequest(Struct, frozen=True):
    # name or id of a session; a name is made a session by cwd, interpreter and backend
    name: str = "default"
    cwd: str | None = None  # absolute; None is the home directory
    # a path (of a program, or of an environment), a name on PATH, or `managed`
    interpreter: str | None = None
    # `python3` leaves the choice to us unless one of that name says which
    kernelspec: str | None = None
    backend: BackendName | None = None
    language: str = PYTHON  # or `bash`; a kernelspec has its own
    owner: Owner = Owner.SESSION  # an existing session keeps its own; `per_call` is for calls
    # for the kernel's command line, behind its own (Jupyter's front ends send some)
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = {}  # beyond what the filter lets through; ours win
    timeout_seconds: float | None = None  # as asked for; None is the default of the settings
    # of the caller: decides between interpreters, is never passed on unfiltered
    environ: Mapping[str, str] = {}

    @property
    def is_bash(self) -> bool:
        return self.language == BASH or self.backend is BackendName.BASH


# -- what a session's kernel is started from, and why with this and not with another ---------------


class Source(StrEnum):
    """Where a candidate comes from, in the words that people are shown."""

    REQUEST = "request"
    SETTING = "kernels.python"
    KERNELSPEC = "kernelspec"
    VIRTUAL_ENV = "VIRTUAL_ENV"
    CONDA_PREFIX = "CONDA_PREFIX"
    DOT_VENV = ".venv"
    VENV = "venv"
    MANAGED = "managed"
    PATH = "PATH"


DECISIVE = frozenset({Source.REQUEST, Source.SETTING, Source.KERNELSPEC})
"""What somebody named: nothing else is taken in its place."""


class CandidateVerdict(StrEnum):
    """What came of a candidate. The words are machine-readable; `Attempt.detail` is for people."""

    TAKEN = "taken"
    MISSING = "missing"
    UNUSABLE = "unusable"
    NOT_NEEDED = "not_needed"


class Attempt(Struct, frozen=True):
    source: Source
    path: str  # of the interpreter, or where it would be
    verdict: CandidateVerdict = field(default=CandidateVerdict.NOT_NEEDED, name="reason")
    detail: str = "was not needed: an earlier one runs"  # a phrase that can follow its name
    version: str | None = None
    remedy: str | None = None  # the command that would make it usable
    overlay: str | None = None  # folder with ipykernel, where it has none itself

    @property
    def sentence(self) -> str:
        return f"{self.path} ({self.source.value}) {self.detail}"

    def document(self) -> dict[str, Any]:
        return {**to_builtins(self), "taken": self.verdict is CandidateVerdict.TAKEN}


class Choice(Struct, frozen=True):
    """Everything that a start needs to know about where and with what, and how it came about; or
    why there is none.
    """

    cwd: str  # real path
    key: str  # for `SessionKey.interpreter`
    backend: BackendName  # BASH for bash cells, else as asked for
    environment: Filtered  # complete; for an external gateway only what the session brings
    attempts: tuple[Attempt, ...] = ()  # all candidates in their order
    language: str = PYTHON  # `python`, `bash`, or that of the kernelspec
    interpreter: str | None = None  # Python for our launcher; the bash, for bash cells
    overlay: str | None = None  # folder with ipykernel to be appended to sys.path
    modules: tuple[str, ...] = ()  # folders that exist, the user's before the project's
    kernelspec: str | None = None  # one that was asked for, or is to be asked for at a gateway
    # with `{connection_file}`; None where `interpreter` is to be run
    kernelspec_argv: tuple[str, ...] | None = None
    interrupt_mode: str = "signal"  # or `message`
    notices: tuple[str, ...] = ()  # for people
    failure: str | None = None  # why nothing can be started

    @property
    def env(self) -> Environment:
        return self.environment.env

    def document(self) -> dict[str, Any]:
        dropped = [
            {"name": name, "why": why.value} for name, why in self.environment.dropped.items()
        ]
        return {
            "cwd": self.cwd,
            "kernelspec": self.kernelspec,
            "interpreter": self.interpreter,
            "overlay": self.overlay,
            "candidates": [each.document() for each in self.attempts],
            "environment": {"passed": sorted(self.env), "dropped": dropped},
            "modules": list(self.modules),
            "failure": self.failure,
        }


# -- calls and cells -------------------------------------------------------------------------------


class CellStatus(StrEnum):
    """How a cell ended (CONTRACT §6).

    `ABORTED`: not run, because an earlier one failed or the call ended.
    """

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"


class Variables(StrEnum):
    """What became of the session's state; always the truth, never a hope.

    Shell cells leave none: LOST.
    """

    KEPT = "kept"
    LOST = "lost"


class Cell(Struct, frozen=True):
    code: str
    title: str | None = None
    allow_error: bool = False  # an exception is no failure: the next cells are run


class CellError(Struct, frozen=True):
    name: str
    value: str
    traceback: tuple[str, ...] = ()  # as the kernel gave it, with its colours


class Step(Struct, frozen=True):
    """One rung of the ladder that was climbed to end a cell."""

    action: str  # `sigint`, `sigterm`, `sigkill`, `rest_interrupt`, `delete`
    after_seconds: float  # since the first rung
    detail: str | None = None  # what it met, where that is known


class CellResult(Struct, frozen=True):
    id: str  # names its files and `/api/kernels/{k}/cells/{id}/output`
    title: str | None
    status: CellStatus
    # what is shown of its output: head and tail where `truncated`; rich outputs by the MIME rules
    text: str = ""
    # as in nbformat, larger ones by reference; stream text as shown
    outputs: tuple[Mapping[str, Any], ...] = ()
    error: CellError | None = None
    truncated: bool = False
    # id under which the complete output is kept, None where there was none
    artifact: str | None = None
    total_bytes: int = 0  # of the complete stream output
    duration_seconds: float | None = None  # wall clock of the cell alone
    execution_count: int | None = None
    steps: tuple[Step, ...] = ()  # rungs that ended it
    lossy: bool = False  # the backend could not promise all of the output; `notices` says why
    notices: tuple[str, ...] = ()
    # what the next call finds of the session's state after this cell
    variables: Variables = Variables.KEPT
    # it ended as a program does, by `sys.exit`: 0 is a good end of the call
    exit_code: int | None = None
    error_allowed: bool = False  # it raised what it was allowed to: no failure of the call

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "duration": self.duration_seconds}


class CallRequest(StartRequest, frozen=True, kw_only=True):
    """One call: cells to be run in order in one session; with the owner `per_call` in a kernel
    of its own.
    """

    cells: tuple[Cell, ...]  # at least one
    arrived_at: float  # monotonic time (the event loop's)
    reset: bool = False  # replace the kernel before the first cell
    file: str | None = None  # absolute path of the script whose cells these are
    # finds PX_INSTANCE of whoever calls: own sessions are refused
    caller: Callable[[], str | None] = lambda: None


class CallResult(Struct, frozen=True):
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
    # the sentence of the failing cell, or of the timeout; None when all is well
    message: str | None = None

    @property
    def status(self) -> CellStatus:
        for cell in self.cells:
            if cell.error_allowed:
                continue
            if cell.status is not CellStatus.OK:
                return cell.status
            if cell.exit_code is not None:
                # later cells were left out because this one ended the call well
                return CellStatus.OK
        return CellStatus.OK
