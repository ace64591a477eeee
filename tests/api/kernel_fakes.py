"""Kernels that do as they are told: the part of the room that the API sees, made of plain lists and scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from supervisord_py.errors import AmbiguousNameError, PxError, UnknownUnitError
from supervisord_py.kernels.cell import (
    CallEvent,
    CallRequest,
    CallResult,
    CellResult,
    CellStatus,
    InterruptReport,
    Variables,
)
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig
from supervisord_py.kernels.exposure import Expose, Offer, report
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import BackendName, Owner, SessionKey, SessionState, StartRequest
from supervisord_py.ledger.kernels import KernelCellRow
from supervisord_py.process.model import Reason
from supervisord_py.process.zygote_pool import ZygoteView

Tell = Callable[[CallEvent], None]
Script = Callable[[CallRequest, Tell], Awaitable[CallResult]]

PYTHON = "/usr/bin/python3"


def key_of(name: str, cwd: str = "/work") -> SessionKey:
    return SessionKey(name, cwd, PYTHON, BackendName.DIRECT)


def session_view(name: str, cwd: str = "/work", **facts: Any) -> SessionView:
    """A living, idle session; `facts` change it."""
    plain = SessionView(
        id=key_of(name, cwd).id,
        **msgspec.structs.asdict(key_of(name, cwd)),
        created_at=1_800_000_000.0,
        state=SessionState.IDLE,
        reason=None,
        pid=4242,
        queued=0,
        running=None,
        last_used=1_800_000_000.0,
        started_at=1_800_000_000.0,
        rss_bytes=None,
        instance="00000000.K",
        restarts=0,
        failure=None,
        owner=Owner.SESSION,
        kernelspec="python3",
        language="python",
    )
    return msgspec.structs.replace(plain, **facts)


def ok(cell_id: str = "c1", **facts: Any) -> CellResult:
    return replace(CellResult(id=cell_id, title=None, status=CellStatus.OK, text="2\n"), **facts)


def result(*cells: CellResult, name: str = "default", **facts: Any) -> CallResult:
    key = key_of(name)
    plain = CallResult(key.id, key.cwd, key.interpreter, key.backend, Variables.KEPT, cells or (ok(),), 30.0)
    return replace(plain, **facts)


@dataclass
class FakeHandle:
    """A kernel with a connection file."""

    connection_file: Path | None = Path("/run/k/connection.json")
    died: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    foreign_busy: bool = False
    interrupts: int = 0

    async def interrupt(self) -> str:
        self.interrupts += 1
        return "sigint"


@dataclass
class FakeKernels:
    """Remembers what it was asked, answers with what was put in, and fails as told."""

    cells_dir: Path
    views: dict[str, SessionView] = field(default_factory=dict)
    handles: dict[str, FakeHandle] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    rows: list[KernelCellRow] = field(default_factory=list)
    failure: PxError | None = None
    survivors: tuple[int, ...] = ()
    script: Script | None = None
    gate: asyncio.Event | None = None
    told: tuple[CallEvent, ...] = ()
    cancelled: int = 0
    ahead: tuple[ZygoteView, ...] = ()

    @property
    def config(self) -> KernelsConfig:
        here = self.cells_dir
        return KernelsConfig(here, here, here, here, GatewayConfig(here))

    def put(self, name: str, cwd: str = "/work", **facts: Any) -> SessionView:
        view = session_view(name, cwd, **facts)
        self.views[view.id] = view
        return view

    def snapshot(self, session_id: str | None = None) -> tuple[SessionView, ...]:
        return tuple(view for view in self.views.values() if session_id in {None, view.id})

    def zygotes(self) -> tuple[ZygoteView, ...]:
        return self.ahead

    def find(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        fitting = [
            view
            for view in self.views.values()
            if name_or_id in {view.id, view.key.jupyter_id}
            or (name_or_id == view.key.name and cwd in {None, view.key.cwd})
        ]
        if not fitting:
            raise UnknownUnitError(f"There is no kernel {name_or_id!r}.")
        if len(fitting) > 1:
            raise AmbiguousNameError("several", candidates=[view.unit for view in fitting])
        return fitting[0]

    async def _did(self, what: str, value: Any) -> None:
        self.asked.append((what, value))
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure is not None:
            raise self.failure

    async def start(self, request: StartRequest, tell: Tell | None = None) -> tuple[bool, SessionView]:
        for event in self.told if tell is not None else ():
            tell(event)
        await self._did("start", request)
        known = [view for view in self.views.values() if request.name in {view.id, view.key.name}]
        if known and known[0].pid is not None:
            return False, known[0]
        view = known[0] if known else session_view(request.name, request.cwd or "/work", owner=request.owner)
        self.views[view.id] = msgspec.structs.replace(view, state=SessionState.IDLE, pid=4242, reason=None)
        self.handles[view.id] = FakeHandle()
        return True, self.views[view.id]

    async def explain(self, request: StartRequest) -> Any:
        await self._did("explain", request)
        return FakeExplanation()

    async def execute(self, request: CallRequest, tell: Tell) -> CallResult:
        await self._did("execute", request)
        return await self.script(request, tell) if self.script is not None else result()

    async def stop(self, session_id: str, reason: Reason = Reason.STOPPED) -> tuple[int, ...]:
        await self._did("stop", session_id)
        if not self.survivors:
            self.views[session_id] = msgspec.structs.replace(
                self.views[session_id], state=SessionState.STOPPED, pid=None, instance=None, reason=reason
            )
            self.handles.pop(session_id, None)
        return self.survivors

    async def restart(self, session_id: str) -> SessionView:
        await self._did("restart", session_id)
        return self.views[session_id]

    async def interrupt(self, session_id: str, *, cell: str | None = None) -> InterruptReport:
        await self._did("interrupt", session_id if cell is None else (session_id, cell))
        return InterruptReport(session_id, self.views[session_id].running)

    async def cells(self, session_id: str) -> list[KernelCellRow]:
        return [row for row in self.rows if row.session == session_id]

    async def specs(self) -> dict[str, dict[str, Any]]:
        usual = {"display_name": "Python 3", "language": "python", "argv": ["python"], "resource_dir": "/x"}
        return {"python3": usual, "ir": {**usual, "language": "R"}}

    async def capabilities(self, cwd: str | None = None) -> Any:
        await self._did("capabilities", cwd)
        return report(Expose.BOTH, Offer(offered=True, program=PYTHON), "/bin/bash", BackendName.DIRECT)

    def handle(self, session_id: str) -> FakeHandle | None:
        return self.handles.get(session_id)

    def touch(self, session_id: str) -> None:
        self.asked.append(("touch", session_id))


class FakeExplanation:
    """Why which interpreter was taken."""

    def document(self) -> dict[str, Any]:
        return {"interpreter": PYTHON, "candidates": []}
