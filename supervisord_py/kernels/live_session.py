"""The sessions that are known, the kernel that is there for each; what is said and remembered of
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from supervisord_py.config.settings import MIB
from supervisord_py.errors import (
    AmbiguousNameError,
    ConflictError,
    InvalidInputError,
    UnknownUnitError,
)
from supervisord_py.kernels import messages
from supervisord_py.kernels.backend import KernelHandle, Launch
from supervisord_py.kernels.cell_files import folder_of_cells
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.folders import FolderIdentity, identity_of, is_within
from supervisord_py.kernels.session import (
    BackendName,
    Choice,
    Owner,
    SessionKey,
    SessionState,
    StartRequest,
)
from supervisord_py.kernels.session_set import KernelSlot, Waiter
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.kernels import KernelSessionRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process import clock
from supervisord_py.process.instance import Instance, Note, Phase
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Child, ChildSpec, Reason, StopReport, Survivor, tree_limits
from supervisord_py.zygote.main import stamp

if TYPE_CHECKING:
    from supervisord_py.kernels.interpreters import Build

# after a sign of life of a front end: an open socket gives one each 20 s, a KernelManager each 3 s
HOLD_SECONDS = 60.0
# stopped sessions that are shown; older ones are found in the ledger's history only
REMEMBERED_MAX = 200
SILENT = "its process does not answer (a thread of it may hold the interpreter's lock)"
STOPPED = "was stopped by a signal: it runs nothing"
CUT_OFF = "The session's last kernel ended under an earlier control plane; its variables are gone."


class SessionView(KernelSessionRow, frozen=True, kw_only=True):
    """One session as it is shown now: its row, and what is true of this moment.

    Times are Unix seconds.
    """

    backend: BackendName
    state: SessionState
    reason: Reason | None = None  # why the last process ended, where none runs; or why it stops
    pid: int | None = None
    queued: int = 0  # calls in line, the running one not counted
    running: str | None = None  # id of the cell that runs
    started_at: float | None = None
    rss_bytes: int | None = None
    notices: tuple[str, ...] = ()  # what its last start or recycling had to say
    # `spawn` or `zygote`: how its process came about, if there is one
    start_method: str | None = None
    cold_start_ms: int | None = None  # how long its start took, None while it lasts
    preparing: str | None = None  # what is being installed for it, and how far that is
    silent: str | None = None  # that its process does not answer, though no cell of ours runs
    silent_hint: str | None = None  # what to do about that

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.name, self.cwd, self.interpreter, self.backend)

    @property
    def unit(self) -> str:
        return f"kernel:{self.id}"


class InstallCaller(Protocol):
    """A caller of a session who waits for what is being installed for it."""

    has_left: asyncio.Event  # it does not wait any more

    def stop(self) -> None:
        """Have it give up: its session was stopped."""


class LiveSession(KernelSlot):
    """One session: who it is, what is asked of its next kernel, and the kernel that is there."""

    def __init__(
        self,
        key: SessionKey,
        language: str,
        created_at: float,
        owner: Owner = Owner.SESSION,
        session_id: str | None = None,
    ) -> None:
        super().__init__(per_call=owner is Owner.PER_CALL)
        self.key = key
        self.id = session_id or key.id
        self.unit = f"kernel:{self.id}"
        self.keeps_variables = key.backend is not BackendName.BASH  # shell cells leave no state
        self.language = language
        self.created_at = created_at
        self.owner = owner
        held_until = (
            clock.now() + HOLD_SECONDS if owner in {Owner.JUPYTER, Owner.JUPYTER_API} else 0.0
        )
        # a shell takes no kernel's place
        self.held_until = held_until if self.keeps_variables else float("inf")
        self.kernelspec: str | None = None
        self.interrupt_mode = "signal"
        self.last_used: float | None = None  # Unix seconds, as it is shown; `used_at` decides
        # what the next kernel is started from, if that has been decided
        self.choice: Choice | None = None
        self.extra: Mapping[str, str] = {}  # variables that Jupyter's front end sent
        self.arguments: tuple[str, ...] = ()  # what it sent for the kernel's command line
        self.environ: Mapping[str, str] = {}  # the caller's variables at the last choice
        self.reason: Reason | None = None  # why its last kernel ended
        self.notices: tuple[str, ...] = ()  # what its last start had to say
        # key of the kernel of its last cell, when this control plane began
        self.newest: str | None = None
        # why variables of earlier calls are gone, until a call has been told
        self.lost: str | None = None
        # the one that is there, also while it starts or stops
        self.kernel: KernelInstance | None = None
        self.has_cells = False  # a cell of ours was run in it
        # event of its kernel's end that nobody asked for: the cause of the next start
        self.ended_by: int | None = None
        self.written_use: float | None = None  # `last_used` as its row has it
        self.build: Build | None = None  # what is being installed for it
        # seconds that installs have taken while a kernel of it was started
        self.installed_for = 0.0
        # Callers that wait for that: an ordered set, the values mean nothing.
        self.preparations: dict[InstallCaller, None] = {}
        self.preparation_problem: Mapping[str, object] | None = None  # why the last install failed

    @property
    def is_at_rest(self) -> bool:
        return (
            self.kernel is None
            and self.phase is Phase.COLD
            and not self.line
            and self.build is None
        )

    @property
    def state(self) -> SessionState:
        if self.build is not None and self.phase in {Phase.COLD, Phase.STARTING}:
            return SessionState.PREPARING
        if self.phase is Phase.COLD and self.preparation_problem is not None:
            return SessionState.FAILED
        state = super().state
        if state is SessionState.IDLE and self.kernel is not None and self.kernel.is_silent:
            return SessionState.UNRESPONSIVE
        return state

    def adopt(self, choice: Choice) -> None:
        """Have the next kernel be started from a choice; what the present one is, stays."""
        self.choice = choice
        self.preparation_problem = None
        if self.kernel is None or self.kernel.handle is None:
            self.language = choice.language
            self.kernelspec = choice.kernelspec
            self.interrupt_mode = choice.interrupt_mode

    def check_folder(self) -> None:
        """Raise InvalidInputError where the session's working directory is gone. Blocking."""
        cwd = self.key.cwd
        if not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
            message = (
                "The session's working directory is not there any more, or cannot be entered: "
                f"{cwd}"
            )
            hint = "Put it back, or take another folder's session with `--cwd`."
            raise InvalidInputError.at("/cwd", message, hint, unit=self.unit)

    def request(self) -> StartRequest:
        key = self.key
        return StartRequest(
            cwd=key.cwd,
            interpreter=key.interpreter
            if self.keeps_variables and key.kernelspec is None
            else None,
            kernelspec=key.kernelspec,
            backend=key.backend,
            env=self.extra,
            environ=self.environ,
        )

    def view(self) -> SessionView:
        kernel, failure = self.kernel, self.failure
        same = (
            "id",
            "created_at",
            "state",
            "reason",
            "last_used",
            "restarts",
            "kernelspec",
            "language",
            "notices",
        )
        known: dict[str, Any] = {name: getattr(self, name) for name in same}
        if kernel is not None:
            known |= {name: getattr(kernel, name) for name in ("pid", "started_at", "rss_bytes")}
            known |= {
                "instance": kernel.key,
                "reason": kernel.wanted,
                "running": kernel.run and kernel.run.cell_id,
            }
            known["start_method"] = kernel.start_method if kernel.child else None
            known["cold_start_ms"] = kernel.cold_start_ms if kernel.ready_at is not None else None
        if failure is not None:
            known["failure"] = messages.hard_failure(self.deaths, failure, self.unit).problem()
        elif self.preparation_problem is not None and self.build is None:
            known["failure"] = dict(self.preparation_problem)
        if kernel is not None and kernel.is_silent and super().state is SessionState.IDLE:
            known["silent"] = SILENT
            known["silent_hint"] = f"pxctl restart {self.unit}"
            if kernel.is_stopped():
                known["silent"] = f"its process (pid {kernel.pid}) {STOPPED}"
                known["silent_hint"] = kernel.stopped_hint()
        if self.build is not None:
            known["preparing"] = self.build.text
        key = msgspec.structs.asdict(self.key)
        return SessionView(**key, **known, owner=self.owner.value, queued=len(self.line))


class KernelNote(msgspec.Struct, frozen=True):
    """What is kept with a kernel beside what is kept with every instance."""

    session: KernelSessionRow
    interrupt_mode: str  # as in Launch
    cold_start_ms: int = 0
    method: Literal["spawn", "zygote"] = "spawn"
    folder: FolderIdentity | None = None  # of its session, as it entered that last


def own_of(note: Note | None) -> KernelNote | None:
    try:
        return None if note is None else msgspec.convert(note.own, KernelNote)
    except msgspec.ValidationError:
        return None


def startup_stamp(launch: Launch) -> int:
    """Return a number that differs when a file has changed that a kernel loads while it starts.
    Blocking.

    These are the user's and the project's modules, and IPython's startup files.
    """
    home = launch.env.get("HOME", "/")
    ipython = launch.env.get("IPYTHONDIR") or f"{home}/.ipython"
    paths: list[str] = []
    for folder in (
        *launch.modules,
        f"{launch.cwd}/.pxd/modules",
        f"{ipython}/profile_default/startup",
    ):
        with contextlib.suppress(OSError):
            # Not `__pycache__`, which the start itself makes.
            paths += sorted(
                f"{folder}/{name}" for name in os.listdir(folder) if name.endswith((".py", ".ipy"))
            )
    return zlib.crc32(b"%d" % stamp(paths), zlib.crc32(os.fsencode("\0".join(paths))))


class KernelInstance(Instance):
    def __init__(self, key: str, session: LiveSession, unit: str | None = None) -> None:
        super().__init__(key, unit or session.unit)
        self.session = session
        self.launch: Launch | None = None  # what was asked of the backend
        self.backend: Any = None
        self.handle: KernelHandle | None = None  # what came of it
        self.folder: FolderIdentity | None = None  # of its session, as it entered that last
        # of the files that it loads while it starts, as they were when it was planned
        self.startup_stamp = 0
        self.cold_start_ms = 0  # from the decision to readiness
        self.run: Any = None  # the CellExecution that it is at, until it is known how that ended
        self.has_run = False  # a cell of ours was sent to it: there are variables to be lost
        # when a client that is not ours used it, as far as we have seen
        self.foreign_used_at: float | None = None
        self.exiting = False  # a cell said exit(): it ends by its own wish
        self.rss_bytes: int | None = None
        self.is_silent = False  # it did not answer when it was asked last
        # of its end, filled as more becomes known; kept with a hard failure
        self.problem: dict[str, object] = {}

    @property
    def died(self) -> bool:
        return super().died and not self.exiting and not self.is_clean_end

    @property
    def is_clean_end(self) -> bool:
        """Say whether it ended by itself with code 0 and nothing ran: a front end asked it to
        shut down.
        """
        return self.record is not None and self.record.code == 0 and self.run is None

    @property
    def ending(self) -> bool:
        return self.phase in {Phase.STOPPING, Phase.COLD}

    @property
    def process_key(self) -> str | None:
        """Instance key of the process of ours that runs its cells: a shell has one for each.

        None: there is none.
        """
        if self.session.keeps_variables or self.handle is None:
            return self.key if self.is_ours else None
        return self.handle.child.key if self.handle.child is not None else None

    def is_stopped(self) -> bool:
        """Say whether somebody has stopped the process (SIGSTOP)."""
        import psutil

        if self.pid is None:
            return False
        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def stopped_hint(self) -> str:
        return f"`kill -CONT {self.pid}` lets it go on; `pxctl restart {self.unit}` replaces it."

    def refuse_stopped(self) -> None:
        """Raise ConflictError where somebody has stopped the process: a cell would wait its
        whole time.
        """
        if self.is_stopped():
            text = f"The process of {self.unit} (pid {self.pid}) {STOPPED}."
            raise ConflictError(text, hint=self.stopped_hint(), unit=self.unit, pid=self.pid)

    def is_in_former_folder(self) -> bool:
        """Say whether it works in what was its session's folder, where another one has that path
        now. Blocking.

        The folder was deleted, renamed or mounted over. A kernel that went elsewhere by itself does
        not count.
        """
        if self.pid is None or self.folder is None or not self.session.keeps_variables:
            return False
        present = identity_of(self.session.key.cwd)
        if present is None or present == self.folder:
            return False
        # Where there is no such directory of processes (macOS), nothing is known of it.
        return is_within(f"/proc/{self.pid}/cwd", self.folder)

    def plan(self, config: KernelsConfig) -> Launch:
        session, choice, key = self.session, self.session.choice, self.session.key
        python = key.interpreter if key.kernelspec is None else None
        chosen: dict[str, Any] = {
            "interpreter": python,
            "env": {},
            "kernelspec": session.kernelspec,
        }
        if choice is not None:
            names = ("interpreter", "env", "kernelspec", "kernelspec_argv", "overlay", "modules")
            chosen = {name: getattr(choice, name) for name in names}
        launch = Launch(
            **chosen,
            session_id=session.id,
            instance=self.key,
            cwd=key.cwd,
            cells_dir=folder_of_cells(config.cells_dir, session.id),
            limits=tree_limits(config.processes, config.cpu_percent),
            max_rss_bytes=config.hard_memory_mb * MIB or None,
            memory_grace_seconds=config.memory_grace_seconds,
            tag=self.note(),
            interrupt_mode=session.interrupt_mode,
            arguments=session.arguments,
        )
        self.startup_stamp = startup_stamp(launch)
        # one that is adopted may have entered another folder than the present one
        if self.folder is None:
            self.folder = identity_of(key.cwd)
        return launch

    def is_outdated(self) -> bool:
        """Say whether files that it loads while it starts have changed since it was planned.

        Blocking.
        """
        return self.launch is not None and startup_stamp(self.launch) != self.startup_stamp

    def facts(self) -> dict[str, Any]:
        return (
            {"start_method": self.start_method} if self.is_ours and self.child is not None else {}
        )

    def own_note(self) -> dict[str, Any]:
        method: Any = self.start_method
        session = self.session
        note = KernelNote(
            session.view(), session.interrupt_mode, self.cold_start_ms, method, self.folder
        )
        return dict(msgspec.to_builtins(note))

    async def spawn(self, placement: KeeperClient, spec: ChildSpec) -> Child:
        child: Child | None = await self.backend.fork(self.launch, spec)
        if child is None:
            return await super().spawn(placement, spec)
        self.start_method = "zygote"
        return child

    async def annotate(self, placement: KeeperClient) -> None:
        if self.is_ours:
            await super().annotate(placement)
        elif self.backend is not None:
            await self.backend.annotate(self.key, self.note())

    async def shut_down(self, placement: KeeperClient) -> StopReport:
        reason = (self.wanted or Reason.EXIT).value
        if self.handle is not None:
            pids = await self.handle.shutdown(self.stop_seconds, reason)
            return StopReport(tuple(Survivor(pid, "", 0) for pid in pids))
        if not self.is_ours:
            return StopReport()
        grace = 0.0 if self.ready_at is None else self.stop_seconds
        return await placement.stop(self.key, grace_seconds=grace, reason=reason)


class KernelWaiter(Waiter, eq=False, kw_only=True):
    session: LiveSession
    granted: asyncio.Future[KernelInstance] = msgspec.field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    tell: Callable[[dict[str, Any]], None] = lambda _: None
    # seconds of its wait in which something was installed: they do not count
    installed_for: float = 0.0


class SessionRegister:
    """Sessions by id, in `sessions`: living ones, and those that are remembered in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sessions: dict[str, LiveSession] = {}
        # of all sessions, also of those that only the ledger has
        self._ids: dict[SessionKey, str] = {}
        self._keys: dict[str, SessionKey] = {}

    async def open(self) -> None:
        newest = await kernel_rows.newest_of_all(self._ledger)
        rows = await kernel_rows.all_sessions(self._ledger)
        for row in rows:
            if row.owner != Owner.PER_CALL:  # one of these has a name that is never used again
                self._note_id(row)
        # the first in `sessions` is the first to be forgotten
        for row in reversed(rows[:REMEMBERED_MAX]):
            session = self.restored(row)
            if session is None or session.owner is Owner.PER_CALL:
                continue
            self.sessions[session.id] = session
            if session.id in newest:
                session.newest, session.has_cells = newest[session.id], True
                session.lost = CUT_OFF if session.keeps_variables else None

    async def settle_the_rest(self) -> None:
        """Once it is known what lives: what was alive when it was written down last, and is not,
        was cut off.
        """
        for row in await kernel_rows.all_sessions(self._ledger):
            session = self.sessions.get(row.id)
            if row.state in {SessionState.STOPPED, SessionState.FAILED} or (
                session is not None and session.kernel
            ):
                continue
            if session is not None:
                session.reason = session.reason or Reason.INTERRUPTED
            reason = row.reason or Reason.INTERRUPTED.value
            kernel_rows.remember(
                self._ledger, msgspec.structs.replace(row, state="stopped", reason=reason)
            )

    def _note_id(self, row: KernelSessionRow) -> None:
        with contextlib.suppress(ValueError):  # a backend that this version does not know
            key = SessionKey(row.name, row.cwd, row.interpreter, BackendName(row.backend))
            self._ids[key] = row.id
            self._keys[row.id] = key

    def id_of(self, key: SessionKey) -> str:
        """Return the id of a session: the short one, unless the session of another key has that."""
        if (known := self._ids.get(key)) is not None:
            return known
        session_id = key.id if self._keys.get(key.id, key) == key else key.long_id
        self._ids[key] = session_id
        self._keys[session_id] = key
        return session_id

    def ensure(self, key: SessionKey, language: str, owner: Owner) -> LiveSession:
        session_id = self.id_of(key)
        if session_id in self.sessions:
            return self.sessions[session_id]
        made = self.sessions[session_id] = LiveSession(
            key, language, time.time(), owner, session_id
        )
        for session in [it for it in self.sessions.values() if it.is_at_rest and it is not made]:
            # What a front end has ended and nobody has run a cell of ours in is over for good.
            is_front_ends = session.owner in {Owner.JUPYTER, Owner.JUPYTER_API}
            # By a request to stop it, or by one to shut down that went to the kernel itself.
            is_over = is_front_ends and session.reason in {Reason.STOPPED, Reason.EXIT}
            if is_over and not session.has_cells:
                del self.sessions[session.id]
                kernel_rows.forget(self._ledger, session.id)
            elif len(self.sessions) > REMEMBERED_MAX:
                del self.sessions[session.id]
        return made

    def forget_unused(self, session: LiveSession) -> None:
        """Forget a session that has never had a kernel and that nobody waits for."""
        is_unused = session.kernel is None and not session.line and not session.preparations
        if (
            is_unused
            and not session.has_cells
            and session.last_used is None
            and session.reason is None
        ):
            self.sessions.pop(session.id, None)

    def restored(self, row: KernelSessionRow) -> LiveSession | None:
        if row.id in self.sessions:
            return self.sessions[row.id]
        try:
            key = SessionKey(row.name, row.cwd, row.interpreter, BackendName(row.backend))
            session = LiveSession(key, row.language, row.created_at, Owner(row.owner), row.id)
            session.reason = Reason(row.reason) if row.reason else None
        except ValueError:
            return None
        self._note_id(row)
        session.kernelspec, session.last_used, session.restarts = (
            row.kernelspec,
            row.last_used,
            row.restarts,
        )
        return session

    async def remembered(self, session_id: str) -> LiveSession | None:
        """Return a session by its id, also one that only the ledger has: that one is not entered
        in `sessions`.
        """
        if session_id in self.sessions:
            return self.sessions[session_id]
        await self._ledger.flush()  # a call's own session was forgotten in this moment
        row = await kernel_rows.SESSIONS.get(self._ledger, session_id)
        return None if row is None else self.restored(row)

    def known(self, session_id: str) -> LiveSession:
        if (session := self.sessions.get(session_id)) is not None:
            return session
        hint, name = (
            "`pxctl kernel list` shows them; `pxctl kernel start` makes one.",
            session_id[:100],
        )
        raise UnknownUnitError(
            f"There is no kernel session {name}.", hint=hint, unit=f"kernel:{name}"
        )

    def find(self, name: str, cwd: str | None = None) -> LiveSession:
        """Return the session that a user means by an id, a Jupyter id or a name.

        Of several `cwd`, a real path, decides, then that one lives, then that one runs Python.
        Raises UnknownUnitError, AmbiguousNameError: there is none, or several; `candidates` lists
        their ids.
        """
        found = [it for it in self.sessions.values() if name in {it.key.name, it.key.jupyter_id}]
        if name in self.sessions or not found:
            return self.known(name)
        if len(found) > 1 and cwd is not None:
            found = [it for it in found if it.key.cwd == cwd]
        if len(found) > 1:
            found = [it for it in found if it.kernel is not None] or found
        pythons = {it.key.cwd for it in found if it.keeps_variables}
        found = [it for it in found if it.keeps_variables or it.key.cwd not in pythons]
        if len(found) > 1:
            ids = sorted(it.id for it in found)
            text = f"{name} names {len(ids)} sessions: {', '.join(ids)}."
            hint = "Use an id: `pxctl kernel list` shows them with their folders."
            raise AmbiguousNameError(text, hint=hint, candidates=[f"kernel:{each}" for each in ids])
        return found[0] if found else self.known(name)

    def write(self, session: LiveSession) -> None:
        session.written_use = session.last_used
        kernel_rows.remember(self._ledger, session.view())

    def use(self, session: LiveSession) -> None:
        """Note a use, and write the first after a while at once: to whoever adopts the kernel it
        may not look old.
        """
        before, session.last_used = session.last_used or 0.0, time.time()
        if session.last_used - before > 1.0:
            self.write(session)

    def write_used(self) -> None:
        for session in self.sessions.values():
            if session.kernel is not None and session.last_used != session.written_use:
                self.write(session)

    def settle(self, session: LiveSession) -> None:
        """A kernel of it is gone: write down what is left, or forget it where it was one call's
        own.
        """
        if session.owner is Owner.PER_CALL and session.is_at_rest:
            self.sessions.pop(session.id, None)
        self.write(session)
