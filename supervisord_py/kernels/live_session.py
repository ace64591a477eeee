"""One session that is known, the kernel that is there for it, and the cell that this is at; what is said of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.kernels.backend import StartMethod
from supervisord_py.kernels.choice import BASH, PYTHON, SPEC_PREFIX, ChooseRequest
from supervisord_py.kernels.messages import hard_failure, how_it_ended
from supervisord_py.kernels.session import BackendName, Owner, SessionKey, SessionState
from supervisord_py.kernels.session_set import KernelSlot
from supervisord_py.ledger.kernels import KernelSessionRow
from supervisord_py.process.instance import Instance, Phase
from supervisord_py.process.model import Reason, StopReport, Survivor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import KernelHandle, Launch
    from supervisord_py.kernels.choice import Choice
    from supervisord_py.ledger.kernels import Newest
    from supervisord_py.process.instance import End, Note
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ChildSpec


class SessionView(KernelSessionRow, frozen=True, kw_only=True):
    """One session as it is shown now: its row, and what is true of this moment. Times are Unix seconds."""

    backend: BackendName
    state: SessionState
    reason: Reason | None = None  # why the last process ended, where none runs; or why it stops
    pid: int | None = None
    queued: int = 0  # calls in line, the running one not counted
    running: str | None = None  # id of the cell that runs
    started_at: float | None = None
    rss_bytes: int | None = None
    notices: tuple[str, ...] = ()  # what its last start or recycling had to say
    start_method: str | None = None  # `spawn` or `zygote`: how its process came about, if there is one
    cold_start_ms: int | None = None  # how long its start took, None while it lasts

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.name, self.cwd, self.interpreter, self.backend)

    @property
    def unit(self) -> str:
        return f"kernel:{self.id}"


class LiveSession(KernelSlot):
    """One session: who it is, what is asked of its next kernel, and the kernel that is there."""

    def __init__(self, key: SessionKey, language: str, created: float, owner: Owner = Owner.SESSION) -> None:
        super().__init__(per_call=owner is Owner.PER_CALL)
        self.key = key
        self.id = key.id
        self.keeps_variables = key.backend is not BackendName.BASH  # shell cells leave no state
        self.language = language
        self.created = created
        self.owner = owner
        self.kernelspec: str | None = None
        self.interrupt_mode = "signal"
        self.last_used: float | None = None  # Unix seconds, as it is shown; `used_at` decides
        self.choice: Choice | None = None  # what the next kernel is started from, if that has been decided
        self.extra: Mapping[str, str] = {}  # variables that Jupyter's front end sent
        self.arguments: tuple[str, ...] = ()  # what it sent for the kernel's command line
        self.environ: Mapping[str, str] = {}  # the caller's variables at the last choice
        self.reason: Reason | None = None  # why its last kernel ended
        self.notices: tuple[str, ...] = ()  # what its last start had to say
        self.newest: Newest | None = None  # the cell that was sent last when this control plane began
        self.lost: str | None = None  # why variables of earlier calls are gone, until a call has been told
        self.kernel: KernelInstance | None = None  # the one that is there, also while it starts or stops
        self.has_cells = False  # a cell of ours was run in it
        self.ended_by: int | None = None  # event of its kernel's end that nobody asked for: the cause of the next start
        self.rested_at = 0.0  # Unix seconds of the end of its last kernel; 0 before the first that we saw
        self.written_use: float | None = None  # `last_used` as its row has it

    @property
    def unit(self) -> str:
        return f"kernel:{self.id}"

    @property
    def is_at_rest(self) -> bool:
        """Nothing of a kernel is there, and nobody waits for one."""
        return self.kernel is None and self.phase is Phase.COLD and not self.line

    def adopt(self, choice: Choice) -> None:
        """Have the next kernel be started from a choice; what the present one is, stays."""
        self.choice = choice
        if self.kernel is None or self.kernel.handle is None:
            self.language = choice.language
            self.kernelspec = choice.kernelspec
            self.interrupt_mode = choice.interrupt_mode

    def choose_request(self, deadline: float) -> ChooseRequest:
        """Return what is to be asked for when its next kernel is chosen; `deadline` in loop time."""
        key, is_bash = self.key, not self.keeps_variables
        has_spec = key.interpreter.startswith(SPEC_PREFIX)
        return ChooseRequest(
            cwd=key.cwd,
            interpreter=None if has_spec or is_bash else key.interpreter,
            kernelspec=key.interpreter.removeprefix(SPEC_PREFIX) if has_spec else None,
            backend=key.backend,
            language=BASH if is_bash else PYTHON,
            extra=self.extra,
            environ=self.environ,
            deadline=deadline,
        )

    def view(self) -> SessionView:
        kernel = self.kernel
        return SessionView(
            id=self.id,
            **msgspec.structs.asdict(self.key),
            created_at=self.created,
            state=self.state,
            reason=kernel.wanted if kernel else self.reason,
            pid=kernel.pid if kernel else None,
            queued=len(self.line),
            running=kernel.run.cell_id if kernel and kernel.run else None,
            last_used=self.last_used,
            started_at=kernel.started_at if kernel else None,
            rss_bytes=kernel.rss_bytes if kernel else None,
            instance=kernel.key if kernel else None,
            restarts=self.restarts,
            failure=hard_failure(self.failure, self.unit).problem() if self.failure else None,
            owner=self.owner.value,
            kernelspec=self.kernelspec,
            language=self.language,
            notices=self.notices,
            start_method=kernel.method.value if kernel and kernel.child else None,
            cold_start_ms=kernel.cold_start_ms if kernel and kernel.ready_at is not None else None,
        )


class KernelNote(msgspec.Struct, frozen=True):
    """What is kept with a kernel beside what is kept with every instance: the row of its session, and more."""

    session: KernelSessionRow
    interrupt_mode: str  # as in Launch
    cold_start_ms: int = 0
    method: StartMethod = StartMethod.SPAWN


def own_of(note: Note | None) -> KernelNote | None:
    """Return what a note says of a kernel; None when it is none of ours, or of another version."""
    try:
        return None if note is None else msgspec.convert(note.own, KernelNote)
    except msgspec.ValidationError:
        return None


class KernelInstance(Instance):
    """One kernel of a session."""

    def __init__(self, key: str, session: LiveSession, unit: str | None = None) -> None:
        super().__init__(key, unit or session.unit)
        self.session = session
        self.start_method = session.key.backend.value
        self.launch: Launch | None = None  # what was asked of the backend
        self.backend: Any = None
        self.handle: KernelHandle | None = None  # what came of it
        self.give_up_at = 0.0  # loop time by which it must answer
        self.cold_start_ms = 0  # from the decision to readiness
        self.method = StartMethod.SPAWN
        self.run: Any = None  # the CellExecution that it is at, until it is known how that ended
        self.has_run = False  # a cell of ours was sent to it: there are variables to be lost
        self.foreign_used_at: float | None = None  # when a client that is not ours used it, as far as we have seen
        self.exiting = False  # a cell said exit(): it ends by its own wish
        self.rss_bytes: int | None = None
        self.problem: dict[str, object] = {}  # of its end, filled as more becomes known; kept with a hard failure

    @property
    def died(self) -> bool:
        """Whether it ended unasked: not by a stop, not by exit() in a cell."""
        return super().died and not self.exiting

    @property
    def ending(self) -> bool:
        return self.phase in {Phase.STOPPING, Phase.COLD}

    @property
    def process_key(self) -> str | None:
        """Instance key of the process of ours that runs its cells: a shell has one for each. None: there is none."""
        if self.session.keeps_variables or self.handle is None:
            return self.key if self.is_ours else None
        return self.handle.child.key if self.handle.child is not None else None

    def is_called_by(self, caller: str | None) -> bool:
        """Say whether a call from an instance of ours comes from a cell on this kernel."""
        return caller is not None and caller in {self.key, self.process_key}

    def explain(self, end: End) -> None:
        self.problem.update(end.facts(), detail=f"The kernel {how_it_ended(end)}.")

    def facts(self) -> dict[str, Any]:
        return {"start_method": self.method.value} if self.is_ours else {}

    def own_note(self) -> dict[str, Any]:
        note = KernelNote(self.session.view(), self.session.interrupt_mode, self.cold_start_ms, self.method)
        return dict(msgspec.to_builtins(note))

    async def spawn(self, placement: KeeperClient, spec: ChildSpec) -> Child:
        """Have its process: forked by a zygote, where there is one."""
        child: Child | None = await self.backend.fork(self.launch, spec)
        if child is None:
            return await super().spawn(placement, spec)
        self.method = StartMethod.ZYGOTE
        return child

    async def annotate(self, placement: KeeperClient) -> None:
        """Have the keeper remember the note, or the backend."""
        if self.is_ours:
            await super().annotate(placement)
        elif self.backend is not None:
            await self.backend.annotate(self.key, self.note())

    async def shut_down(self, placement: KeeperClient) -> StopReport:
        """End it, as politely as it can be spoken to."""
        reason = (self.wanted or Reason.EXIT).value
        if self.handle is not None:
            pids = await self.handle.shutdown(self.stop_seconds, reason)
            return StopReport(self.key, tuple(Survivor(pid, "", 0) for pid in pids))
        if not self.is_ours:
            return StopReport(self.key)
        grace = 0.0 if self.ready_at is None else self.stop_seconds
        return await placement.stop(self.key, grace_seconds=grace, reason=reason)
