"""A pipes' room made of plain lists: it does what it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.pipe_executions import Execution, Group, Plan, Preset, Status
from supervisord_py.pipes.models import Check, PipesHealth, PipeView
from supervisord_py.pipes.output import FollowItem, FollowNews, OutputStream


def execution(number: int = 7, **facts: Any) -> Execution:
    """Return a completed execution of the pipe `digest`."""
    plan, preset = Plan("pi", timeout_seconds=60.0), Preset("fast", "custom", "m-1")
    made = Execution(id=number, pipe_name="digest", status=Status.COMPLETED, plan=plan, preset=preset)
    return structs.replace(made, **facts)


@dataclass
class FakePipes:
    """Implements what the API uses of `pipes.room.Pipes`."""

    views: dict[str, PipeView] = field(default_factory=dict)
    rows: dict[int, Execution] = field(default_factory=dict)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    items: list[FollowItem] = field(default_factory=list)
    hold: asyncio.Event | None = None
    scheduler_error: str | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def put(self, name: str = "digest", **facts: Any) -> PipeView:
        view = PipeView(name=name, **{"enabled": True, "schedule": "every 2h", **facts})
        self.views[name] = view
        return view

    async def refresh(self) -> None:
        """All that was written is known."""

    async def file_problems(self) -> dict[str, tuple[()]]:
        return {}

    def health(self) -> PipesHealth:
        return PipesHealth(
            scheduler_running=True,
            scheduler_restarts=0,
            scheduler_error=self.scheduler_error,
            pipes=len(self.views),
            broken=0,
            queued=0,
            running=0,
            ledger=None,
        )

    def refused_output(self) -> dict[str, str]:
        return self.refused

    def snapshot(self) -> tuple[PipeView, ...]:
        return tuple(self.views.values())

    def get(self, name: str) -> PipeView:
        if name not in self.views:
            raise UnknownUnitError(f"There is no pipe {name!r}.", hint="pxctl pipe list", unit=f"pipe:{name}")
        return self.views[name]

    def definition(self, name: str) -> Any:
        return self.get(name)

    async def validate(self, name: str) -> tuple[Check, ...]:
        self.asked.append(("validate", name))
        return (Check("schedule", "fail", "it is odd", 3, "write `every 2h`"),)

    def queue(self) -> list[dict[str, Any]]:
        waiting = [execution(2, position=1)]
        return [{"group": Group.MANUAL, "slots": 4, "running": [execution(1)], "waiting": waiting}]

    async def execution(self, number: int, *, pipe: str | None = None, blobs: bool = False) -> Execution:
        row = self.rows.get(number)
        if row is None or (pipe is not None and row.pipe_name != pipe):
            raise UnknownUnitError(f"There is no execution {number}.", hint="pxctl pipe runs")
        return row if blobs else structs.replace(row, stdout=None, stderr=None, rendered_prompt=None)

    @property
    def files(self) -> FakePipes:
        return self

    async def follow(self, number: int, streams: tuple[OutputStream, ...], *offsets: int) -> AsyncIterator[FollowItem]:
        self.asked.append(("follow", number, streams, *offsets))
        yield FollowNews("start", execution(number, status=Status.RUNNING))
        for item in self.items:
            yield item
        if self.hold is not None:
            await self.hold.wait()
        yield FollowNews("done", execution(number))
