"""Kernels that do as they are told: the part of the room that the API sees, made of plain lists and scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from kernels.cell_folder import config_in
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.config import KernelsConfig, Offer, report
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import (
    BackendName,
    CallEvent,
    CallRequest,
    CallResult,
    CellResult,
    CellStatus,
    SessionKey,
    SessionState,
    StartRequest,
    Variables,
)

Tell = Callable[[CallEvent], None]
Script = Callable[[CallRequest, Tell], Awaitable[CallResult]]


def key_of(name: str, cwd: str = "/work") -> SessionKey:
    return SessionKey(name, cwd, "/usr/bin/python3", BackendName.DIRECT)


def session_view(name: str, cwd: str = "/work", **facts: Any) -> SessionView:
    """A living, idle session; `facts` change it."""
    times = dict.fromkeys(("created_at", "last_used", "started_at"), 1_800_000_000.0)
    known: dict[str, Any] = {"language": "python", "owner": "session", "state": SessionState.IDLE, "pid": 4242}
    known |= {"kernelspec": "python3", "instance": "00000000.K", **times, **asdict(key_of(name, cwd)), **facts}
    return SessionView(id=key_of(name, cwd).id, **known)


def ok(cell_id: str = "c1") -> CellResult:
    return CellResult(id=cell_id, title=None, status=CellStatus.OK, text="2\n")


def result(*cells: CellResult) -> CallResult:
    key = key_of("default")
    return CallResult(key.id, key.cwd, key.interpreter, key.backend, Variables.KEPT, cells or (ok(),), 30.0)


@dataclass
class FakeHandle:
    """A kernel with a connection file."""

    connection_file: Path | None = Path("/run/k/connection.json")
    died: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    foreign_busy: bool = False


@dataclass
class FakeKernels:
    """Remembers what it was asked, answers with what was put in, and fails as told."""

    cells_dir: Path
    views: dict[str, SessionView] = field(default_factory=dict)
    handles: dict[str, FakeHandle] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    script: Script | None = None

    @property
    def config(self) -> KernelsConfig:
        return config_in(self.cells_dir)

    def put(self, name: str, cwd: str = "/work", **facts: Any) -> SessionView:
        view = session_view(name, cwd, **facts)
        self.views[view.id] = view
        return view

    def snapshot(self) -> tuple[SessionView, ...]:
        return tuple(self.views.values())

    def find(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        for view in self.views.values():
            if name_or_id in {view.id, view.name, view.key.jupyter_id}:
                return view
        raise UnknownUnitError(f"There is no kernel {name_or_id!r}.")

    async def start(self, request: StartRequest, tell: Tell | None = None) -> tuple[bool, SessionView]:
        self.asked.append(("start", request))
        known = [view for view in self.views.values() if request.name in {view.id, view.name}]
        if known and known[0].pid is not None:
            return False, known[0]
        view = replace(known[0] if known else session_view(request.name), state=SessionState.IDLE, pid=4242)
        self.views[view.id], self.handles[view.id] = view, FakeHandle()
        return True, view

    async def execute(self, request: CallRequest, tell: Tell) -> CallResult:
        self.asked.append(("execute", request))
        return await self.script(request, tell) if self.script is not None else result()

    async def specs(self) -> dict[str, dict[str, Any]]:
        usual = {"display_name": "Python 3", "language": "python", "argv": ["python"], "resource_dir": "/x"}
        return {"python3": usual, "ir": {**usual, "language": "R"}}

    async def capabilities(self, cwd: str | None = None) -> Any:
        return report("both", Offer(offered=True, program="/usr/bin/python3"), "/bin/bash", BackendName.DIRECT)

    def handle(self, session_id: str) -> FakeHandle | None:
        return self.handles.get(session_id)

    def touch(self, session_id: str) -> None:
        self.asked.append(("touch", session_id))
