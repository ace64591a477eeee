"""What was cut off is said at the next start, by whichever way it is known, and not at the one after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from supervisord_py.api.context import CutOff
from supervisord_py.daemon import interrupted
from supervisord_py.ledger import instances
from supervisord_py.ledger.events import EventJournal
from supervisord_py.ledger.instances import INSTANCES, UNIT_STATES, InstanceRow, UnitStateRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.model import Caps, Reason
from supervisord_py.tools.config import ToolsConfig
from supervisord_py.tools.service import Tools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PREVIOUS, LOST, NOW = 1000.0, 2000.0, 3000.0


@dataclass
class Start:
    """A ledger with a past, and what a start makes of it. `at` is the clock of the events."""

    ledger: Ledger
    at: list[float]
    events: EventStream
    live: dict[str, object] = field(default_factory=dict)

    def happened(self, at: float, event: str, unit: str | None = None, reason: Reason | None = None, **kw: Any) -> None:
        self.at[0] = at
        self.events.publish(event, unit, reason, **kw)

    async def lived(self, key: str, unit: str = "tool:x", started: float = PREVIOUS) -> None:
        await self.ledger.write(INSTANCES.insert(InstanceRow(key, unit, started)))
        await self.ledger.write(
            INSTANCES.update(
                key,
                pid=7,
                start_time=1,
                boot_id="boot",
                started_at=started,
                log_position=0,
            )
        )

    async def close(self, *swept: tuple[str, str, int], restarts: int = 0, held: tuple[str, ...] = ()) -> Any:
        await self.ledger.flush()
        self.at[0] = NOW + 1
        caps = Caps(1, NOW, "boot", "cgroup", "cgroup", restarts, swept)
        with structlog.testing.capture_logs() as logs:
            losses = await interrupted.close(self.ledger, self.events, caps, held)
        return losses, logs

    async def told(self) -> list[tuple[str, str | None]]:
        await self.ledger.flush()
        return [(each.event, each.reason) for each in await self.events.history() if each.time > NOW]

    async def remember(self, losses: interrupted.Losses) -> Tools:
        """Return tools without a keeper or a catalog, as they remember themselves after a start."""
        config = ToolsConfig(self.ledger.path.parent, self.ledger.path.parent)
        nothing: Any = None
        tools = Tools(nothing, self.ledger, nothing, config, self.events)
        tools.instance_of = self.live.get  # type: ignore[assignment, method-assign]
        await tools.read_last_states()
        await interrupted.remember(self.ledger, tools, nothing, losses)
        return tools


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    at = [0.0]
    async with contextlib.AsyncExitStack() as stack:
        ledger = await Ledger.open(tmp_path / "pxd.db")
        stack.push_async_callback(ledger.close)
        events = await EventStream.open(EventJournal(ledger), clock=lambda: at[0])
        stack.callback(events.close)
        made = Start(ledger, at, events)
        made.happened(PREVIOUS, "control_started")
        yield made


async def test_what_nobody_holds_is_closed_and_said_once_with_what_the_keeper_swept(start: Start) -> None:
    await start.lived("open")
    await start.lived("held", "tool:held")
    losses, logs = await start.close(("open", "tool:x", 9), ("unknown", "tool:y", 8), held=("held",))
    assert set(losses.interrupted) == {CutOff("open", "tool:x", 9), CutOff("unknown", "tool:y", 8)}
    assert [each["units"] for each in logs] == [["tool:x", "tool:y"]]
    assert await start.told() == [("interrupted", "interrupted")]
    assert [row.key for row in await instances.open_rows(start.ledger)] == ["held"]


async def test_another_control_plane_of_the_same_keeper_knows_it_but_does_not_shout_again(start: Start) -> None:
    await start.lived("old", "tool:old")
    await instances.close_interrupted(start.ledger, (), LOST)
    await start.lived("k")
    await start.close()
    losses, logs = await start.close(restarts=1)
    assert losses.interrupted == (CutOff("k", "tool:x", 7),), "what was lost before this keeper was said before"
    assert logs == []
    standing = (await start.remember(losses)).last_state("x")
    assert (standing.state, standing.reason) == ("cold", "interrupted")
    await start.lived("new", "tool:new", NOW)
    losses, logs = await start.close(restarts=1)
    assert {each.instance for each in losses.interrupted} == {"k", "new"}
    assert [each["units"] for each in logs] == [["tool:new"]]


@pytest.mark.parametrize("newer", ["row", "live", "failed"])
async def test_a_tool_that_has_something_newer_to_show_shows_that(start: Start, newer: str) -> None:
    await start.lived("k")
    if newer == "row":
        await start.lived("later", started=LOST)
        await start.ledger.write(instances.ended("later", LOST, "exit", code=1))
    elif newer == "live":
        start.live["x"] = object()
    state = "failed" if newer == "failed" else "cold"
    start.ledger.post(UNIT_STATES.put(UnitStateRow("tool:x", state, LOST, facts={"reason": "early_exit"})))
    losses, _ = await start.close()
    assert len(losses.rows) == 1
    assert (await start.remember(losses)).last_state("x").reason == "early_exit"


async def test_a_kernel_that_was_started_ahead_is_nobodys_loss(start: Start) -> None:
    """One that was given away bears its first name still: the row of the session's life says what was lost."""
    await start.lived("d.k2", "kernel:mine-000000")
    losses, logs = await start.close(("d.k1", "kernel-spare:0a1b2c3d", 7), ("d.k9", "kernel-spare:0a1b2c3d", 9))
    assert losses.interrupted == (CutOff("d.k2", "kernel:mine-000000", 7),)
    assert [it["units"] for it in logs if it["event"] == "interrupted"] == [["kernel:mine-000000"]]
