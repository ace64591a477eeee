"""Schema and damage: old files load for ever, newer ones are refused, broken ones are set aside and salvaged."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import ConfigError
from supervisord_py.ledger import (
    event_rows,
    files,
    idempotency,
    instances,
    migrations,
    pins,
    recovery,
    runs,
    unit_state,
)
from supervisord_py.ledger.idempotency import Done, Interrupted
from supervisord_py.ledger.pins import Pin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.ledger.store import Ledger

    OpenLedger = Callable[..., Awaitable[Ledger]]

FROZEN = sorted(Path(__file__).parent.glob("frozen_v*.sql"))


def load(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def fill(path: Path, rows: int) -> None:
    """Make a ledger of many pages."""
    files.make_private(path)
    connection = recovery.open_checked(path)
    connection.execute("BEGIN")
    for number in range(1, rows + 1):
        values = (number, float(number), "tool:x", "e", "x" * 300)
        connection.execute("INSERT INTO events (id, time, unit, event, facts) VALUES (?, ?, ?, ?, ?)", values)
    connection.execute("INSERT INTO pins VALUES ('tool:pinned', 1, 5.0)")
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.parametrize("frozen", FROZEN, ids=[it.stem for it in FROZEN])
async def test_a_ledger_of_every_released_version_loads(frozen: Path, path: Path, open_ledger: OpenLedger) -> None:
    load(path, frozen.read_text(encoding="utf-8"))
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    ended = await instances.get(ledger, "0badc0de.1tfajv0000aa")
    assert ended is not None
    assert (ended.unit, ended.reason, ended.signal, ended.verdict) == (
        "tool:lorenz-ode-solver",
        "memory_limit",
        9,
        {"by": "keeper", "reason": "memory_limit", "rss_bytes": 629145600},
    )
    assert [it.key for it in await instances.open_rows(ledger)] == ["0badc0de.1tfajv0000ab"]
    assert [(it.id, it.outcome) for it in await runs.latest(ledger)] == [(2, None), (1, "completed")]
    assert [it.event for it in await event_rows.chain(ledger, 2)] == ["tool_started", "tool_stopped"]
    assert await pins.everything(ledger) == [Pin("tool:lorenz-ode-solver", forever=True, pinned_at=1763700000.5)]
    assert [(it.unit, it.state, it.facts) for it in await unit_state.everything(ledger)] == [
        ("tool:lorenz-ode-solver", "failed", {"reason": "memory_limit"})
    ]
    assert await idempotency.begin(ledger, "k1", "POST /r", "d", 1.0) == Done(200, "application/json", b"{}")
    assert await idempotency.begin(ledger, "k2", "POST /r", "d", 1.0) == Interrupted()


def test_there_is_a_frozen_file_of_every_version() -> None:
    assert [it.stem for it in FROZEN] == [f"frozen_v{number}" for number in range(1, migrations.VERSION + 1)]


def test_the_first_steps_were_never_edited(tmp_path: Path) -> None:
    """A frozen file and the migrations up to its version make the same tables."""

    def schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(name, " ".join(sql.split())) for name, sql in rows]

    for number, frozen in enumerate(FROZEN, 1):
        load(tmp_path / f"{number}", frozen.read_text(encoding="utf-8"))
        old = sqlite3.connect(tmp_path / f"{number}")
        new = sqlite3.connect(":memory:", isolation_level=None)
        assert migrations.migrate(new, migrations.MIGRATIONS[:number]) == number
        assert schema(old) == schema(new)
        old.close()
        new.close()


async def test_a_ledger_of_a_newer_version_is_refused_and_untouched(path: Path, open_ledger: OpenLedger) -> None:
    load(path, f"CREATE TABLE t (x); PRAGMA user_version = {migrations.VERSION + 1};")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"schema version {migrations.VERSION + 1}") as caught:
        await open_ledger()
    assert caught.value.hint is not None
    assert caught.value.extra["file"] == str(path)
    assert path.read_bytes()[100:] == before[100:]  # the header says WAL now, nothing else
    assert list(path.parent.glob("*corrupt*")) == []


def test_a_step_that_fails_leaves_the_file_as_it_was() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    steps = (("CREATE TABLE a (x)",), ("CREATE TABLE b (x)", "CREATE TABLE a (x)"))
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrations.migrate(connection, steps)
    assert migrations.version_of(connection) == 1
    assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["a"]
    assert migrations.migrate(connection, (steps[0], ("CREATE TABLE b (x)",))) == 1
    assert migrations.migrate(connection, (steps[0],)) == 0
    connection.close()


def test_a_step_whose_transaction_is_gone_reports_its_own_error() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        migrations.migrate(connection, (("ROLLBACK", "SELECT * FROM missing"),))
    connection.close()


@pytest.mark.parametrize("content", [b"this is no database at all, " * 100, b"SQLite format 3\0" + b"\xff" * 4000])
async def test_a_file_that_is_no_ledger_is_set_aside_and_a_fresh_one_begun(
    path: Path, open_ledger: OpenLedger, content: bytes
) -> None:
    path.write_bytes(content)
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    assert ledger.recovered_from.moved_to.read_bytes() == content
    assert ledger.recovered_from.moved_to.name.startswith("pxd.db.corrupt-")
    assert sum(rows for _, rows in ledger.recovered_from.kept) == 0
    assert ledger.recovered_from.detail
    await pins.pin(ledger, Pin("tool:x", forever=False, pinned_at=1.0))
    assert len(await pins.everything(ledger)) == 1
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_can_be_read_of_a_damaged_ledger_is_carried_over(path: Path, open_ledger: OpenLedger) -> None:
    fill(path, 2000)
    size = path.stat().st_size
    with path.open("r+b") as file:  # two pages in the middle of the events
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 8192)
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    kept = dict(ledger.recovered_from.kept)
    rows = await event_rows.after(ledger, 0, limit=5000)
    assert kept["events"] == len(rows) > 1000
    assert rows[0].id == 1
    assert rows[-1].id == 2000
    assert all(len(str(row.facts)) == 2 for row in rows[:1])  # not JSON: read as empty, the row is there
    assert await pins.everything(ledger) == [Pin("tool:pinned", forever=True, pinned_at=5.0)]
    await ledger.close()
    assert (await open_ledger()).recovered_from is None


def test_a_salvage_that_the_disk_cuts_off_leaves_a_usable_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 50)

    def gives_out(*_: object) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(recovery, "_copy", gives_out)
    fresh, found = recovery.recover(path, "damaged", 0.0)
    assert not fresh.in_transaction
    assert dict(found.kept)["events"] == 0
    fresh.execute("INSERT INTO pins VALUES ('tool:x', 0, 1.0)")
    fresh.close()


def test_a_defect_while_salvaging_closes_what_was_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, 5)

    def defect(*_: object) -> bool:
        raise KeyError

    monkeypatch.setattr(recovery, "_copy", defect)
    with pytest.raises(KeyError):
        recovery.recover(path, "damaged", 0.0)


async def test_a_ledger_cut_short_gives_what_is_left(path: Path, open_ledger: OpenLedger) -> None:
    fill(path, 2000)
    os.truncate(path, path.stat().st_size // 2)
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    assert "pins" in dict(ledger.recovered_from.kept)
    assert await event_rows.last_id(ledger) >= 0


async def test_a_broken_write_ahead_log_loses_only_its_own_end(path: Path, open_ledger: OpenLedger) -> None:
    """S9: after a power cut the last frames of the log are rubbish; what was committed before is there."""
    files.make_private(path)
    writing = recovery.open_checked(path)
    writing.execute("INSERT INTO pins VALUES ('tool:a', 0, 1.0)")
    wal = path.with_name("pxd.db-wal")
    whole = wal.stat().st_size
    writing.execute("INSERT INTO pins VALUES ('tool:b', 0, 1.0)")
    content, log = path.read_bytes(), wal.read_bytes()
    writing.close()
    path.write_bytes(content)
    wal.write_bytes(log[: whole + 100] + b"\x5a" * (len(log) - whole - 100))
    ledger = await open_ledger()
    assert ledger.recovered_from is None
    assert [it.unit for it in await pins.everything(ledger)] == ["tool:a"]


def test_two_damaged_files_in_one_second_both_stay(path: Path) -> None:
    for content in (b"one", b"two"):
        path.write_bytes(content)
        path.with_name("pxd.db-wal").write_bytes(content)
        files.move_aside(path, 0.0)
    names = sorted(it.name for it in path.parent.iterdir())
    stem = "pxd.db.corrupt-19700101T000000Z"
    assert names == [stem, f"{stem}-2", f"{stem}-2-wal", f"{stem}-wal"]


def test_damage_is_told_from_other_errors() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    broken = sqlite3.DatabaseError("x")
    broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_INDEX
    assert not recovery.is_damage(full)
    assert recovery.is_damage(broken)
    assert recovery.is_damage(sqlite3.DatabaseError("database disk image is malformed"))
    assert not recovery.is_damage(sqlite3.ProgrammingError("closed"))
