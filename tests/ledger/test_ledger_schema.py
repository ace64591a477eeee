"""Schema and damage: old files load for ever, newer ones are refused, broken ones are set aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisord_py.api.idempotency import CUT_OFF, Known, claim
from supervisord_py.errors import ConfigError
from supervisord_py.ledger import instances, pipes, schema
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import PINS, UNIT_STATES, PinRow
from supervisord_py.ledger.store import Ledger, LedgerUnavailableError
from supervisord_py.process.events import EVENTS, chain, last_event

OpenLedger = Callable[..., Awaitable[Ledger]]

FROZEN = sorted(Path(__file__).parent.glob("frozen_v*.sql"))


def load(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def fill(path: Path, rows: int) -> None:
    connection, _ = schema.open_for_writing(path, 0.0)
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
    ledger, tool = await open_ledger(), "tool:lorenz-ode-solver"
    assert ledger.recovered_from is None
    ended = await instances.INSTANCES.get(ledger, "0badc0de.1tfajv0000aa")
    assert ended is not None
    assert (ended.unit, ended.reason, ended.signal) == (tool, "memory_limit", 9)
    assert ended.verdict == {"by": "keeper", "reason": "memory_limit", "rss_bytes": 629145600}
    assert [it.key for it in await instances.open_rows(ledger)] == ["0badc0de.1tfajv0000ab"]
    _, stopped = await EVENTS.find(ledger, "ORDER BY id")
    assert [it.event for it in await chain(ledger, stopped)] == ["tool_started", "tool_stopped"]
    assert await PINS.find(ledger) == [PinRow(tool, forever=True, pinned_at=1763700000.5)]
    (state,) = await UNIT_STATES.find(ledger)
    assert (state.unit, state.state, state.facts) == (tool, "failed", {"reason": "memory_limit"})
    assert await claim(ledger, "k1", "POST /r", "d") == Known("d", 200, "application/json", b"{}")
    assert await claim(ledger, "k2", "POST /r", "d") == Known("d", CUT_OFF, None, None)
    if frozen != FROZEN[0]:
        assert len(await kernel_rows.all_sessions(ledger)) == 2
        cells = await kernel_rows.of_session(ledger, "default-3fa9c1")
        assert [it.status for it in cells if it.truncated] == ["timed_out"]
        assert [it.status for it in cells] == ["error", "timed_out", "running"]
        assert cells[0].error == {"name": "ZeroDivisionError", "value": "division by zero", "traceback": []}
    if frozen not in FROZEN[:2]:
        done, running, queued = await pipes.EXECUTIONS.find(ledger, "ORDER BY id")
        assert (done.status, done.trigger, done.duration_ms, done.cost) == ("completed", "scheduled", 90250, 0.0125)
        assert (done.stdout, done.rendered_prompt, done.context_end) == ("hello world", "Time range: …", done.queued_at)
        assert (running.status, running.pid, running.progress) == ("running", 4712, '{"cursor":42}')
        assert (queued.status, queued.retry_of, queued.retry_count) == ("queued", 1, 1)
        report, mail = await pipes.PIPE_STATES.find(ledger, "ORDER BY pipe_name")
        assert (report.enabled, report.occurrences, mail.consecutive_failures) == (True, 1, 3)
        again = pipes.Claim("mail", "pipe_completed", "daily-report:1", 1763700000.0)
        assert not await ledger.call(pipes.claimed(again, pipes.PIPE_STATES.merge("mail"))), "it was taken"


def test_the_first_steps_were_never_edited(tmp_path: Path) -> None:
    """A frozen file and the migrations up to its version make the same tables."""

    def tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(name, " ".join(sql.split())) for name, sql in rows]

    for number, frozen in enumerate(FROZEN, 1):
        load(tmp_path / f"{number}", frozen.read_text(encoding="utf-8"))
        old = sqlite3.connect(tmp_path / f"{number}")
        new = sqlite3.connect(":memory:", isolation_level=None)
        assert schema.migrate(new, upto=number) == number
        assert tables(old) == tables(new)
        old.close()
        new.close()


async def test_a_ledger_of_a_newer_version_is_refused_and_untouched(path: Path, open_ledger: OpenLedger) -> None:
    load(path, f"CREATE TABLE t (x); PRAGMA user_version = {schema.VERSION + 1};")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"schema version {schema.VERSION + 1}") as caught:
        await open_ledger()
    assert caught.value.hint is not None
    assert caught.value.extra["file"] == str(path)
    assert path.read_bytes()[100:] == before[100:]  # the header says WAL now, nothing else
    assert list(path.parent.glob("*corrupt*")) == []


async def test_a_ledger_damaged_inside_is_set_aside(path: Path, open_ledger: OpenLedger) -> None:
    fill(path, 2000)
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    content = whole[:middle] + b"\xa5" * 8192 + whole[middle + 8192 :]
    path.write_bytes(content)
    ledger = await open_ledger()
    assert ledger.recovered_from is not None
    assert ledger.recovered_from.moved_to.read_bytes() == content
    assert await last_event(ledger) == 0
    await ledger.close()
    assert (await open_ledger()).recovered_from is None


async def test_a_file_that_is_locked_stays_where_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_BUSY_MILLISECONDS", 50)
    fill(path, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailableError, match="locked"):
        await Ledger.open(path)
    other.close()
    assert list(path.parent.glob("*corrupt*")) == []


async def test_a_broken_write_ahead_log_loses_only_its_own_end(path: Path, open_ledger: OpenLedger) -> None:
    """S9: after a power cut the last frames of the log are rubbish; what was committed before is there."""
    writing, _ = schema.open_for_writing(path, 0.0)
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
    assert [it.unit for it in await PINS.find(ledger, "ORDER BY unit")] == ["tool:a"]
