"""Rooms that do as they are told: what the API sees of tools, kernels and pipes, made of plain
lists and scripts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

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
from supervisord_py.pipes.models import Check, PipeView
from supervisord_py.process.model import Reason, StopReport
from supervisord_py.tools.catalog import Catalog
from supervisord_py.tools.driver import ToolsConfig
from supervisord_py.tools.status import LastState, ToolState

Tell = Callable[[CallEvent], None]
Script = Callable[[CallRequest, Tell], Awaitable[CallResult]]
STARTED = 1_800_000_000.0


@dataclass
class FakeLauncher:
    """Does what it is told, and remembers what it was told."""

    catalog: Catalog
    config: ToolsConfig
    states: dict[str, ToolState] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    def import_limits(self) -> tuple[()]:
        return ()

    def import_seconds(self) -> tuple[()]:
        return ()

    def put(self, name: str, **facts: Any) -> None:
        state = self.states.setdefault(name, ToolState(name, None, LastState(), None, None))
        vars(state).update(facts)

    def snapshot(self, name: str | None = None) -> tuple[ToolState, ...]:
        for entry in self.catalog.entries():
            self.put(entry.name)
        return tuple(state for state in self.states.values() if name in {None, state.name})

    async def _did(self, *call: str) -> None:
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.wait()

    async def warm(self, name: str, *, timeout_seconds: float | None = None) -> None:
        await self._did("warm", name, str(timeout_seconds))
        self.put(name, state="ready", pid=os.getpid(), instance="00000000.A")

    async def stop(self, name: str, reason: Reason) -> StopReport:
        await self._did("stop", name, str(reason))
        self.put(name, state="cold", pid=None, reason=str(reason), instance=None)
        return StopReport()

    async def refresh(self) -> None:
        self.calls.append(("refresh",))


def key_of(name: str, cwd: str = "/work") -> SessionKey:
    return SessionKey(name, cwd, "/usr/bin/python3", BackendName.DIRECT)


def ok(cell_id: str = "c1") -> CellResult:
    return CellResult(id=cell_id, title=None, status=CellStatus.OK, text="2\n")


def result(*cells: CellResult) -> CallResult:
    key = key_of("default")
    return CallResult(
        key.id, key.cwd, key.interpreter, key.backend, Variables.KEPT, cells or (ok(),), 30.0
    )


@dataclass
class FakeHandle:
    """A kernel with a connection file."""

    connection_file: Path | None = Path("/run/k/connection.json")
    died: asyncio.Future[Any] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
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
        return config_in(self.cells_dir.parent)

    def put(self, name: str, cwd: str = "/work", **facts: Any) -> SessionView:
        """Have a living, idle session; `facts` change it."""
        known = dict.fromkeys(("created_at", "last_used", "started_at"), STARTED) | asdict(
            key_of(name, cwd)
        )
        known |= {"language": "python", "owner": "session", "state": SessionState.IDLE, "pid": 4242}
        known |= {
            "id": key_of(name, cwd).id,
            "kernelspec": "python3",
            "instance": "00000000.K",
            **facts,
        }
        self.views[known["id"]] = view = SessionView(**known)
        return view

    def snapshot(self) -> tuple[SessionView, ...]:
        return tuple(self.views.values())

    def find(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        for view in self.views.values():
            if name_or_id in {view.id, view.name}:
                return view
        raise UnknownUnitError(f"There is no kernel {name_or_id!r}.")

    async def find_kept(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        return self.find(name_or_id, cwd)

    async def look_again(self) -> None:
        """There is nothing to look at."""

    def gateway(self) -> None:
        """There is no shared gateway."""

    async def gateway_trouble(self) -> str | None:
        return None

    async def start(
        self, request: StartRequest, tell: Tell | None = None
    ) -> tuple[bool, SessionView]:
        self.asked.append(("start", request))
        return True, self.put(request.name)

    async def execute(self, request: CallRequest, tell: Tell) -> CallResult:
        self.asked.append(("execute", request))
        return await self.script(request, tell) if self.script is not None else result()

    async def capabilities(self, cwd: str | None = None) -> Any:
        return report(
            "both", Offer(offered=True, program="/usr/bin/python3"), "/bin/bash", BackendName.DIRECT
        )

    def handle(self, session_id: str) -> FakeHandle | None:
        return self.handles.get(session_id)

    def touch(self, session_id: str) -> None:
        self.asked.append(("touch", session_id))


@dataclass
class FakePipes:
    """What units, health and doctor use of pipes."""

    views: dict[str, PipeView] = field(default_factory=dict)
    scheduler_error: str | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def put(self, name: str = "digest", **facts: Any) -> None:
        self.views[name] = PipeView(name=name, **{"enabled": True, "schedule": "every 2h", **facts})

    async def file_problems(self) -> dict[str, tuple[()]]:
        return {}

    def health(self) -> dict[str, Any]:
        facts = dict.fromkeys(
            ("scheduler_restarts", "broken", "queued", "running", "ledger", "catalog")
        )
        return {
            **facts,
            "scheduler_running": True,
            "pipes": len(self.views),
            "scheduler_error": self.scheduler_error,
        }

    def refused_output(self) -> dict[str, str]:
        return self.refused

    def snapshot(self) -> tuple[PipeView, ...]:
        return tuple(self.views.values())

    async def validate(self, _name: str) -> tuple[Check, ...]:
        return (Check("schedule", "fail", "it is odd", 3, "write `every 2h`"),)
