"""A pipes' room made of plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from supervisord_py.errors import UnknownUnitError
from supervisord_py.pipes.models import Check, PipeView


@dataclass
class FakePipes:
    """Implements what units, health and doctor use of `pipes.room.Pipes`."""

    views: dict[str, PipeView] = field(default_factory=dict)
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

    def health(self) -> dict[str, Any]:
        facts = dict.fromkeys(("scheduler_restarts", "broken", "queued", "running", "ledger", "catalog"))
        return {**facts, "scheduler_running": True, "pipes": len(self.views), "scheduler_error": self.scheduler_error}

    def refused_output(self) -> dict[str, str]:
        return self.refused

    def snapshot(self) -> tuple[PipeView, ...]:
        return tuple(self.views.values())

    def get(self, name: str) -> PipeView:
        if name not in self.views:
            raise UnknownUnitError(f"There is no pipe {name!r}.", hint="pxctl pipe list", unit=f"pipe:{name}")
        return self.views[name]

    async def validate(self, _name: str) -> tuple[Check, ...]:
        return (Check("schedule", "fail", "it is odd", 3, "write `every 2h`"),)

    @property
    def files(self) -> FakePipes:
        return self
