"""What outlives the ledger: ids never come again, and what users set is set in the next ledger,
too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.ledger import kept as kept_files
from supervisord_py.ledger.instances import PINS, UNIT_STATES, PinRow, UnitStateRow, forget_unit
from supervisord_py.ledger.kept import Kept, PipeWish
from supervisord_py.ledger.pipes import EXECUTIONS, PIPE_STATES, Execution, Status
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from waiting import eventually

OpenLedger = Callable[..., Awaitable[Ledger]]


def content(path: Path) -> Kept:
    kept, trouble = kept_files.read(kept_files.path_beside(path))
    assert (kept is not None, trouble) == (True, None)
    assert kept is not None
    return kept


async def set_wishes(ledger: Ledger) -> None:
    await ledger.write(PINS.put(PinRow("tool:a", forever=True, pinned_at=5.0)))
    await ledger.write(PINS.put(PinRow("tool:b", forever=False, pinned_at=5.0)))
    await ledger.write(PINS.put(PinRow("tool:gone", forever=False, pinned_at=5.0)))
    await ledger.write(forget_unit("tool:gone"))
    await ledger.write(
        UNIT_STATES.put(UnitStateRow("tool:c", "cold", 5.0, facts={"unpinned": True}))
    )
    await ledger.write(PIPE_STATES.merge("off", enabled=False, enabled_file=True))
    await ledger.write(PIPE_STATES.merge("plain", occurrences=3))


WISHES = (
    {"tool:a": True, "tool:b": False},
    ("tool:c",),
    {"off": PipeWish(enabled=False, enabled_file=True)},
)


def wishes(kept: Kept) -> tuple[object, ...]:
    return kept.pins, kept.unpinned, kept.pipes


async def in_ledger(ledger: Ledger) -> tuple[object, ...]:
    pins = {it.unit: it.forever for it in await PINS.find(ledger, "ORDER BY unit")}
    unpinned = tuple(it.unit for it in await UNIT_STATES.find(ledger) if it.facts.get("unpinned"))
    rows = await PIPE_STATES.find(ledger, "WHERE enabled IS NOT NULL")
    pipes = {it.pipe_name: PipeWish(bool(it.enabled), it.enabled_file) for it in rows}
    return pins, unpinned, pipes


@pytest.mark.parametrize("loss", ["removed", "damaged", "damaged twice"])
async def test_ids_and_wishes_survive_the_loss_of_the_ledger(
    path: Path, open_ledger: OpenLedger, loss: str
) -> None:
    ledger = await open_ledger()
    await set_wishes(ledger)
    numbers = [ledger.next_number() for _ in range(7)]
    stream = await EventStream.open(ledger)
    last = [stream.publish("e") for _ in range(5)][-1]
    await ledger.close()
    assert wishes(content(path)) == WISHES
    assert (content(path).executions, content(path).events) == (numbers[-1], last)
    for _ in range(2 if loss == "damaged twice" else 1):
        if loss == "removed":
            path.unlink()
        else:
            path.write_bytes(b"rubbish" * 1000)
        ledger = await open_ledger()
        assert (ledger.recovered_from is None) == (loss == "removed")
        assert await in_ledger(ledger) == WISHES
        assert (ledger.lost_wishes, ledger.kept_trouble) == (None, None)
        number = ledger.next_number()
        assert number == numbers[-1] + 1
        numbers.append(number)
        stream = await EventStream.open(ledger)
        event = stream.publish("e")
        assert event > last
        last = event
        await ledger.close()


async def test_an_event_told_while_the_ledger_takes_nothing_has_its_id_for_ever(
    path: Path, open_ledger: OpenLedger
) -> None:
    """Killed in that state twice in a row: no later event has an id of an earlier one, or a
    smaller one.
    """
    last = 0
    for _ in range(3):
        ledger = await open_ledger()
        stream = await EventStream.open(ledger)
        # As many as the stride between two clean starts, and more; none of them is written down.
        told = [stream.publish("e") for _ in range(3000)]
        assert told[0] > last
        assert told[-1] < 2**53
        last = told[-1]
        # As after kill -9: what lies on the disk now is what the next start finds.
        ledger.post(lambda _: None)
        snapshot = {part: part.read_bytes() for part in path.parent.iterdir()}
        await ledger.close()
        for part in path.parent.iterdir():
            part.unlink()
        for part, raw in snapshot.items():
            part.write_bytes(raw)


async def test_a_copy_that_is_missing_or_damaged_is_made_anew_from_a_sound_ledger(
    path: Path, open_ledger: OpenLedger
) -> None:
    ledger = await open_ledger()
    await set_wishes(ledger)
    await ledger.close()
    beside = kept_files.path_beside(path)
    for raw in (None, b"", b"{", b'{"executions": -1}', b'{"version": 99}', b"\xff\xfe"):
        beside.unlink()
        if raw is not None:
            beside.write_bytes(raw)
        ledger = await open_ledger()
        assert (ledger.lost_wishes, ledger.kept_trouble) == (None, None)
        assert wishes(content(path)) == WISHES
        await ledger.close()


async def test_without_copy_and_ledger_ids_go_on_from_the_clock_and_it_is_said(
    path: Path, open_ledger: OpenLedger
) -> None:
    path.write_bytes(b"rubbish" * 1000)
    kept_files.path_beside(path).write_bytes(b"rubbish")
    before = time.time()
    ledger = await open_ledger()
    assert ledger.next_number() > before
    stream = await EventStream.open(ledger)
    assert before * 1e6 < stream.publish("e") < 2**53
    assert ledger.lost_wishes is not None


async def test_what_can_be_read_of_a_damaged_ledger_is_used_where_there_is_no_copy(
    path: Path, open_ledger: OpenLedger
) -> None:
    """As after an upgrade from a version that made none."""
    ledger = await open_ledger()
    await set_wishes(ledger)
    await ledger.close()
    kept_files.path_beside(path).unlink()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE instances")
    connection.commit()
    connection.close()
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    assert await in_ledger(ledger) == WISHES
    assert ledger.lost_wishes is None


async def test_executions_that_wait_or_run_go_over_into_the_new_ledger(
    path: Path, open_ledger: OpenLedger
) -> None:
    ledger = await open_ledger()
    for number, status in enumerate(("completed", "running", "queued"), 1):
        row = Execution(id=number, pipe_name=f"p{number}", status=Status(status), queued_at=1.0)
        await ledger.write(EXECUTIONS.insert(row))
    await ledger.close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE events")
    connection.commit()
    connection.close()
    ledger = await open_ledger()
    found = await EXECUTIONS.find(ledger, "ORDER BY id")
    assert [(it.id, it.status) for it in found] == [(2, "running"), (3, "queued")]
    assert ledger.next_number() > 3


async def test_folders_on_the_disk_count_for_a_new_ledger(tmp_path: Path) -> None:
    for name in ("3", "41", "x9", ".7"):
        (tmp_path / "executions" / name).mkdir(parents=True)
    number = kept_files.highest_number([tmp_path / "executions", tmp_path / "missing"])
    assert number == 41
    ledger = await Ledger.open(tmp_path / "pxd.db", find_number=lambda: number)
    assert ledger.next_number() > 41
    await ledger.close()


async def test_a_copy_that_cannot_be_written_harms_nothing_and_is_written_later(
    path: Path, open_ledger: OpenLedger
) -> None:
    ledger = await open_ledger()
    changes: list[str | None] = []
    ledger.on_kept_change = changes.append
    draft = path.with_name("pxd.kept.json.draft")
    draft.mkdir()
    (draft / "x").touch()  # so that it can neither be replaced nor removed
    for unit in ("tool:a", "tool:b"):
        assert await ledger.write(PINS.put(PinRow(unit, forever=True, pinned_at=5.0)))
    await eventually(lambda: changes)
    assert changes[0] is not None
    assert ledger.kept_trouble == changes[0]
    (draft / "x").unlink()
    draft.rmdir()
    await eventually(lambda: changes[-1] is None)
    assert content(path).pins == {"tool:a": True, "tool:b": True}


def test_the_file_is_private_and_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "pxd.kept.json"
    kept_files.write(path, Kept(executions=3, pins={"tool:x": True}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["pins"] == {"tool:x": True}
    assert [it.name for it in tmp_path.iterdir()] == [path.name]
