"""What every part of the room of pipes works with: ledger, settings, clocks, agents, what is declared and known."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from supervisord_py.errors import ShuttingDownError
from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.checks import PipeFaults
from supervisord_py.pipes.clocks import Clocks, ClockWatch
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.shelf import AgentShelf
from supervisord_py.pipes.states import PipeStates
from supervisord_py.process.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.supervisor import Driver


@dataclass(eq=False)
class Means:
    """The means of one room of pipes.

    Attributes:
        environ: The daemon's environment, to pick from.
        own: Harmless variables of ours that every agent gets.
        clocks: Tests turn them.
        driver: What the supervisor needs to run executions; the room sets it.
        is_ending: Nothing new is taken in.
        listening: The pipes that wait for events, as of the last look at files and wishes.
        now: Returns what the clocks show.
        task: Does something in the background until the room ends; what it raises is logged.
        definition: Returns what a pipe's file says; UnknownUnitError where there is none of that name.
    """

    placement: KeeperClient
    ledger: Ledger
    events: EventStream
    config: PipesConfig
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    own: Mapping[str, str] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=Clocks)
    driver: Driver[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.is_ending = False
        self.listening: tuple[PipeDefinition, ...] = ()
        self.supervisor = Supervisor(self.placement, self.ledger, self.events)
        self.states = PipeStates(self.ledger, self.clocks)
        self.catalog = PipeCatalog(self.config.pipes_dir, default_agent=self.config.default_agent)
        self.shelf = AgentShelf(self.config, self.placement, self.environ)
        self.faults = PipeFaults(self.shelf, self.clocks)
        self.watch = ClockWatch(self.clocks, self._zone)
        self.now, self.task, self.definition = self.watch.now, self.supervisor.task, self.catalog.declared

    def folder(self, execution: int) -> Path:
        return self.config.executions_dir / str(execution)

    def definition_of(self, pipe: str) -> PipeDefinition | None:
        found = self.catalog.pipes.get(pipe)
        return found if isinstance(found, PipeDefinition) else None

    def usable(self) -> Iterator[PipeDefinition]:
        return (each for each in self.catalog.pipes.values() if isinstance(each, PipeDefinition))

    def say_of_pipe(self, event: str, pipe: str, *, cause: int | None = None, **facts: Any) -> None:
        self.events.publish(event, f"pipe:{pipe}", cause=cause, **facts)

    def refuse_at_the_end(self) -> None:
        """Raise ShuttingDownError once nothing new is taken in."""
        if self.is_ending:
            raise ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")

    def zone_name(self, definition: PipeDefinition | None = None) -> str:
        """Return the time zone of a pipe, else the one of those that name none."""
        return (definition and definition.timezone) or self.config.timezone or self.shelf.zone

    def _zone(self) -> tzinfo:
        try:
            return ZoneInfo(self.zone_name())
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC
