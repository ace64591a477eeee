"""Troubles of log and ledger are told, and taken back; old rows go without harming anybody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.api.context import DaemonFacts
from supervisord_py.daemon import steering as upkeep
from supervisord_py.daemon.settings import load_settings
from supervisord_py.daemon.sources import Sources
from supervisord_py.daemon.steering import Steering, Wishes
from supervisord_py.errors import PxError
from supervisord_py.ledger.files import Recovery
from supervisord_py.ledger.retention import RetentionLimits
from supervisord_py.process.messages import LogTrouble

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Rooms:
    """Placement, ledger and events in one: they take callbacks, and note what is published."""

    degraded: str | None = None
    recovered_from: Recovery | None = None
    calls: dict[str, Any] = field(default_factory=dict)
    published: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)

    def on_log_degraded(self, callback: Any) -> None:
        self.calls["log"] = callback

    def on_degraded(self, callback: Any) -> None:
        self.calls["degraded"] = callback

    def on_recovered(self, callback: Any) -> None:
        self.calls["recovered"] = callback

    def publish(self, event: str, unit: str | None = None, **facts: Any) -> int:
        self.published.append((event, unit, facts))
        return len(self.published)


@pytest.fixture
def steering(tmp_path: Path) -> Steering:
    loaded = load_settings(Sources(tmp_path / "none", tmp_path / "none", named=False, environ={}))

    async def apply(_: object) -> None:
        raise AssertionError("nobody reloads here")

    return Steering(
        DaemonFacts("0", "0", "/s", 1, 0.0),
        loaded,
        wishes=Wishes(),
        read=lambda: loaded,
        apply=apply,
        run_dir=tmp_path,
    )


def tell(rooms: Any, steering: Steering) -> None:
    upkeep.tell_troubles(rooms, rooms, rooms, steering)


def test_a_log_in_trouble_is_a_degradation_until_it_recovers(steering: Steering) -> None:
    rooms = Rooms()
    tell(rooms, steering)
    rooms.calls["log"](LogTrouble("tool:x", 28, 5, recovered=False))
    (degraded,) = steering.degradations()
    assert (degraded.part, degraded.detail) == ("log of tool:x", "the disk refuses output (errno 28)")
    rooms.calls["log"](LogTrouble("tool:x", None, 7, recovered=True))
    assert steering.degradations() == ()
    assert rooms.published == [
        ("log_degraded", "tool:x", {"errno": 28, "lost_bytes": 5}),
        ("log_recovered", "tool:x", {"lost_bytes": 7}),
    ]


def test_a_ledger_in_trouble_likewise(steering: Steering) -> None:
    rooms = Rooms(degraded="disk full")
    tell(rooms, steering)
    assert [each.part for each in steering.degradations()] == ["ledger"]
    rooms.calls["recovered"](3)
    assert steering.degradations() == ()
    rooms.calls["degraded"]("again")
    assert "again" in steering.degradations()[0].detail
    assert [event for event, _, _ in rooms.published] == ["ledger_degraded", "ledger_recovered", "ledger_degraded"]


def test_a_rebuilt_ledger_is_an_event(steering: Steering, tmp_path: Path) -> None:
    rooms = Rooms(recovered_from=Recovery(tmp_path / "pxd.db.corrupt", "malformed"))
    tell(rooms, steering)
    ((event, _, facts),) = rooms.published
    assert event == "ledger_rebuilt"
    assert facts == {"moved_to": str(tmp_path / "pxd.db.corrupt"), "detail": "malformed"}


async def test_pruning_goes_on_after_trouble_and_takes_the_limits_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RetentionLimits] = []
    limits = [RetentionLimits(idempotency_seconds=1.0), RetentionLimits(idempotency_seconds=2.0)]

    async def prune(_ledger: object, given: RetentionLimits, _now: float) -> dict[str, int]:
        asked.append(given)
        if len(asked) == 1:
            raise PxError("the disk is full")
        if len(asked) == 3:
            raise asyncio.CancelledError
        return {}

    monkeypatch.setattr(upkeep.retention, "prune", prune)
    monkeypatch.setattr(upkeep, "FIRST_PRUNE_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "PRUNE_SECONDS", 0.0)
    ledger: Any = None
    with pytest.raises(asyncio.CancelledError):
        await upkeep.prune_for_ever(ledger, lambda: limits[min(len(asked), 1)])
    assert [each.idempotency_seconds for each in asked] == [1.0, 2.0, 2.0]
