"""Kernels that do as they are told: the part of the room that the API sees, made of plain lists and scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kernels.cell_folder import config_in
from supervisord_py.errors import AmbiguousNameError, UnknownUnitError
from supervisord_py.kernels.config import KernelsConfig, Offer, report
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import (
    BackendName,
    CallEvent,
    CallRequest,
    CallResult,
    CellResult,
    CellStatus,
    Owner,
    SessionKey,
    SessionState,
    StartRequest,
    Variables,
)

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
    script: Script | None = None
    told: tuple[CallEvent, ...] = ()

    @property
    def config(self) -> KernelsConfig:
        here = self.cells_dir
        return config_in(here)

    def put(self, name: str, cwd: str = "/work", **facts: Any) -> SessionView:
        view = session_view(name, cwd, **facts)
        self.views[view.id] = view
        return view

    def snapshot(self, session_id: str | None = None) -> tuple[SessionView, ...]:
        return tuple(view for view in self.views.values() if session_id in {None, view.id})

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

    async def start(self, request: StartRequest, tell: Tell | None = None) -> tuple[bool, SessionView]:
        for event in self.told if tell is not None else ():
            tell(event)
        self.asked.append(("start", request))
        known = [view for view in self.views.values() if request.name in {view.id, view.key.name}]
        if known and known[0].pid is not None:
            return False, known[0]
        view = known[0] if known else session_view(request.name, request.cwd or "/work", owner=request.owner)
        self.views[view.id] = msgspec.structs.replace(view, state=SessionState.IDLE, pid=4242, reason=None)
        self.handles[view.id] = FakeHandle()
        return True, self.views[view.id]

    async def execute(self, request: CallRequest, tell: Tell) -> CallResult:
        self.asked.append(("execute", request))
        return await self.script(request, tell) if self.script is not None else result()

    async def specs(self) -> dict[str, dict[str, Any]]:
        usual = {"display_name": "Python 3", "language": "python", "argv": ["python"], "resource_dir": "/x"}
        return {"python3": usual, "ir": {**usual, "language": "R"}}

    async def capabilities(self, cwd: str | None = None) -> Any:
        return report("both", Offer(offered=True, program=PYTHON), "/bin/bash", BackendName.DIRECT)

    def handle(self, session_id: str) -> FakeHandle | None:
        return self.handles.get(session_id)

    def touch(self, session_id: str) -> None:
        self.asked.append(("touch", session_id))
