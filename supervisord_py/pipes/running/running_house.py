"""What the parts of the running pipes share: one of it in each room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.running.live_run import Roster
from supervisord_py.pipes.running.pipe_chronicle import PipeChronicle
from supervisord_py.pipes.running.pipe_states import PipeStates
from supervisord_py.pipes.running.spool import folder_of
from supervisord_py.pipes.scheduler import Clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.models import Declared
    from supervisord_py.pipes.running.agent_shelf import AgentShelf
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class RunningHouse:
    """Where everything is.

    Attributes:
        config: Settings in force; replaced, never changed.
        declared: Every pipe as its file stands.
        shelf: Agents, presets and the means to start them.
        own: Variables of ours that every agent gets.
        is_ending: Nothing new is taken in.
    """

    placement: KeeperClient
    ledger: Ledger
    events: EventStream
    config: PipesConfig
    environ: Mapping[str, str]
    own: Mapping[str, str]
    declared: Callable[[str], Declared | None]
    shelf: AgentShelf
    clocks: Clocks = field(default_factory=Clocks)
    is_ending: bool = False
    roster: Roster = field(default_factory=Roster)
    states: PipeStates = field(init=False)
    chronicle: PipeChronicle = field(init=False)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _runs: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.states = PipeStates(self.ledger, self.clocks)
        self.chronicle = PipeChronicle(self.ledger, self.events)

    def definition(self, pipe: str) -> PipeDefinition | None:
        """Return a pipe that can be used at present."""
        found = self.declared(pipe)
        return found if isinstance(found, PipeDefinition) else None

    def folder(self, execution: int) -> Path:
        """Return where the files of an execution lie."""
        return folder_of(self.config.executions_dir, execution)

    def run_task(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Have something done in the background; what it raises is logged, never lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def run_execution(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have an execution performed; at the end it is waited for, not cancelled: it leaves at a safe place."""
        task = self.run_task(work, name)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def finish_runs(self) -> None:
        """Wait until all that perform executions have left."""
        await asyncio.gather(*self._runs, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pipes_task_failed", task=task.get_name(), exc_info=error)

    async def let_go(self) -> None:
        """Cancel what is still done in the background, and wait for its end."""
        for task in tuple(self._tasks):
            task.cancel()
        while self._tasks:  # who is cancelled may have something to clear away
            await asyncio.gather(*self._tasks, return_exceptions=True)
