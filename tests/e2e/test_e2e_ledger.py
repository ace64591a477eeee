"""A ledger that is lost, damaged or cannot be used, as a user meets it: told, never a crash
loop, no id twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.house import house, server, until
from e2e.pipe_house import SETTINGS, PipeHouse

ECHO = server("return {'echo': body}")


@pytest.fixture
def home() -> Iterator[PipeHouse]:
    with house(SETTINGS, PipeHouse) as made:
        yield made


def ledger_of(home: PipeHouse) -> Path:
    return home.home / "state" / "pxd.db"


def change(home: PipeHouse, statement: str) -> None:
    connection = sqlite3.connect(ledger_of(home))
    connection.execute(statement)
    connection.commit()
    connection.close()


def in_place(home: PipeHouse, make: Callable[[Path], object], suffix: str = "") -> None:
    path = ledger_of(home).with_name(f"pxd.db{suffix}")
    path.unlink(missing_ok=True)
    make(path)


UNUSABLE: dict[str, Callable[[PipeHouse], object]] = {
    "newer": lambda home: change(home, "PRAGMA user_version = 999"),
    "directory": lambda home: in_place(home, Path.mkdir),
    "FIFO": lambda home: in_place(home, os.mkfifo),
    "link": lambda home: in_place(home, lambda path: path.symlink_to("/nowhere/at/all")),
    "write-ahead log": lambda home: in_place(home, Path.mkdir, "-wal"),
}


@pytest.mark.parametrize("why", UNUSABLE)
def test_a_ledger_that_cannot_be_used_ends_the_start_with_a_sentence(
    home: PipeHouse, why: str
) -> None:
    home.start()
    home.stop()
    state, saved = home.home / "state", home.home / "saved"
    shutil.copytree(state, saved)
    UNUSABLE[why](home)
    for _ in range(2):
        started = home.pxctl("daemon", "start")
        assert (started.returncode, "exit code 78" in started.stderr) == (1, True), started.stderr
        assert "pxd.db" in started.stderr.splitlines()[0]
        doctor = home.json("doctor", code=1)
        [found] = [it for it in doctor["checks"] if it["name"] == "ledger"]
        assert found["status"] == "fail"
        assert "pxd.db" in found["detail"]
        assert found["repair"]
        assert "doctor" not in found["repair"]
        stopped = home.pxctl("daemon", "stop")
        assert (stopped.returncode, "does not run" in stopped.stderr) == (0, True), stopped
    home.wait_gone()
    shutil.rmtree(state)
    saved.rename(state)
    home.start()


def test_the_daemon_ends_for_good_when_a_ledger_is_unusable_later(home: PipeHouse) -> None:
    """Only the control plane sees it: the keeper must not start it again and again."""
    home.start()
    home.kill_brain()
    keeper, control = home.pids()
    # Nothing has this open for its name: what is in its place counts for the next control plane.
    shutil.rmtree(home.home / "state" / "executions")
    moved = ledger_of(home).with_name("moved.db")
    ledger_of(home).rename(moved)
    ledger_of(home).mkdir()
    os.kill(control, signal.SIGKILL)
    assert home.process is not None
    assert (home.process.wait(60), home.process.pid) == (78, keeper)
    assert "it is a directory" in home.said()


def test_a_restart_that_could_not_open_the_ledger_again_is_refused(home: PipeHouse) -> None:
    home.tool("echo", ECHO)
    home.start()
    home.run("echo")
    pid, pids = home.status("echo")["pid"], home.pids()
    change(home, "PRAGMA user_version = 999")
    for words in (("daemon", "restart"), ("daemon", "restart", "--all")):
        refused = home.pxctl(*words)
        assert (refused.returncode, "schema version 999" in refused.stderr) == (8, True), refused
    assert (home.status("echo")["pid"], home.pids()) == (pid, pids)


DAMAGE: dict[str, Callable[[PipeHouse], object]] = {
    "no database": lambda home: ledger_of(home).write_bytes(
        b"x" + ledger_of(home).read_bytes()[1:]
    ),
    "table missing": lambda home: change(home, "DROP TABLE events"),
    "column missing": lambda home: change(home, "ALTER TABLE instances DROP COLUMN port"),
    "file gone": lambda home: ledger_of(home).unlink(),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_ids_and_wishes_survive_and_the_loss_is_told(home: PipeHouse, how: str) -> None:
    home.tool("echo", ECHO)
    ran = home.home / "ran"
    home.shell("often", f"echo x >> {ran}", front="schedule: every 10s\nenabled: true")
    home.shell("work", "echo $PX_UNKNOWN done")
    home.start()
    assert home.pxctl("pipe", "disable", "often").returncode == 0
    assert home.pxctl("pin", "echo", "--forever").returncode == 0
    first = [home.post("/api/pipes/work/run?wait=1", {})["id"] for _ in range(3)][-1]
    last_event = home.request("GET", "/api/events").lines()[-1]["id"]
    assert home.pxctl("pipe", "disable", "often").returncode == 0
    count = ran.read_text().count("x") if ran.exists() else 0
    folders = sorted(it.name for it in (home.home / "state" / "executions").iterdir())
    for _ in range(2):  # a second loss changes nothing either
        home.stop()
        DAMAGE[how](home)
        home.start()
        again = home.post("/api/pipes/work/run?wait=1", {})["id"]
        assert again > first
        first = again
        assert (home.pipe("often")["enabled"], home.pipe("often")["next_run"]) == (False, None)
        assert home.status("echo")["pinned"] is True
        events = home.request("GET", "/api/events").lines()
        assert events[0]["id"] > last_event
        last_event = events[-1]["id"]
    assert (ran.read_text().count("x") if ran.exists() else 0) == count, (
        "its schedule started nothing"
    )
    assert set(folders) <= {it.name for it in (home.home / "state" / "executions").iterdir()}
    moved = sorted(str(it) for it in ledger_of(home).parent.glob("pxd.db.corrupt-*"))
    if how == "file gone":
        assert moved == []
        return
    assert len(moved) == 2
    told = [event for event in events if event["event"] == "ledger_rebuilt"]
    assert [it["moved_to"] for it in told] == moved[1:]
    assert all(it["detail"] for it in told)
    for words in (("status",), ("daemon", "status"), ("daemon", "start"), ("doctor",)):
        said = home.pxctl(*words)
        assert all(name in said.stdout + said.stderr for name in moved), (words, said)
    home.stop()
    home.start()
    assert all(name in home.pxctl("doctor").stdout for name in moved), "until they are gone"
    for name in moved:
        Path(name).unlink()
    assert "corrupt" not in home.pxctl("doctor").stdout
    assert "corrupt" not in home.pxctl("daemon", "status").stdout


def test_without_ledger_and_copy_no_pipe_runs_by_itself_and_it_is_told(home: PipeHouse) -> None:
    home.shell("often", "echo x", front="schedule: every 10s\nenabled: true")
    home.start()
    assert home.pxctl("pipe", "disable", "often").returncode == 0
    first = home.post("/api/pipes/often/run?wait=1", {})["id"]
    home.stop()
    ledger_of(home).write_bytes(b"rubbish" * 1000)
    ledger_of(home).with_name("pxd.kept.json").write_bytes(b"rubbish")
    for _ in range(2):
        home.start()
        assert home.pipe("often")["enabled"] is False
        assert home.post("/api/pipes/often/run?wait=1", {})["id"] > first
        home.stop()
    home.start()
    assert home.pxctl("pipe", "enable", "often").returncode == 0
    told = [
        it
        for it in home.request("GET", "/api/events").lines()
        if it["event"] == "ledger_wishes_lost"
    ]
    assert len(told) == 1
    assert "pxd.kept.json" in told[0]["detail"]


def test_a_ledger_that_was_moved_away_is_reported_twice_in_a_row(home: PipeHouse) -> None:
    home.tool("echo", ECHO)
    home.start()
    assert home.pxctl("pin", "echo").returncode == 0
    for count in (1, 2):
        home.stop()
        ledger_of(home).rename(home.home / f"moved-{count}.db")
        home.start()
        assert home.status("echo")["pinned"]
        assert "was missing" in home.pxctl("doctor").stdout
        events = home.request("GET", "/api/events").lines()
        assert len([event for event in events if event["event"] == "ledger_missing"]) == 1
    home.stop()
    home.start()
    assert "was missing" not in home.pxctl("doctor").stdout


def test_pages_damaged_under_a_running_daemon_begin_a_new_ledger_and_keep_what_runs(
    home: PipeHouse,
) -> None:
    home.tool("echo", ECHO)
    home.start()
    pid = home.run("echo").status and home.status("echo")["pid"]
    home.stop()
    connection = sqlite3.connect(ledger_of(home))
    sql = "INSERT INTO events (id, time, unit, event, facts) VALUES (?, 1.0, 'tool:x', 'e', ?)"
    connection.executemany(
        sql, [(number, f'{{"a":"{"x" * 1500}"}}') for number in range(50_000, 57_000)]
    )
    connection.commit()
    connection.close()
    with ledger_of(home).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        assert size > 9 << 20
        for offset in range(size // 2 // 4096 * 4096, size - (1 << 20), 8192):
            file.seek(offset)
            file.write(b"\xa5" * 4096)
    home.start()
    home.run("echo")
    pid = home.status("echo")["pid"]
    # A query meets the damage, now or by then; each answer is an answer or a problem document.
    until(
        lambda: (
            home.request("GET", "/api/events?limit=20000").status < 600
            and list(ledger_of(home).parent.glob("pxd.db.corrupt-*"))
        ),
        "the ledger was moved aside",
    )
    until(home.answers, "a control plane answers")
    until(lambda: "earlier ledger" in home.pxctl("daemon", "status").stdout, "it is told")
    assert home.status("echo")["pid"] == pid
    assert home.run("echo").status == 200
    assert len(list(ledger_of(home).parent.glob("pxd.db.corrupt-*[Z]"))) == 1


def test_an_event_with_a_damaged_byte_hides_only_itself(home: PipeHouse) -> None:
    home.tool("echo", ECHO)
    home.start()
    home.run("echo", {"a": 1})
    home.pxctl("pin", "echo")
    home.stop()
    before = len(sqlite3.connect(ledger_of(home)).execute("SELECT id FROM events").fetchall())
    raw = ledger_of(home).read_bytes()
    at = raw.index(b'"forever":false')
    ledger_of(home).write_bytes(raw[: at + 3] + b"\xff" + raw[at + 4 :])
    home.start()
    told = home.pxctl("events", "--json")
    assert told.returncode == 0, told.stderr
    events = home.request("GET", "/api/events").lines()
    assert len([it for it in events if it["event"] == "pinned"]) == 0
    assert len(events) >= before - 1
    until(lambda: "events" in home.pxctl("daemon", "status").stdout, "it is told")
    assert any(
        it["event"] == "ledger_rows_unreadable" for it in home.request("GET", "/api/events").lines()
    )


def test_a_removed_tool_leaves_neither_pin_nor_failure(home: PipeHouse) -> None:
    home.start()
    for _ in range(2):
        home.tool("bad", "raise SystemExit('broken')")
        until(lambda: home.request("GET", "/api/tools/bad").status == 200, "the tool is known")
        assert home.status("bad")["state"] == "cold"
        assert home.status("bad")["pinned"] is False
        home.run("bad").refused(503, "start_failed")
        until(lambda: home.status("bad")["state"] == "failed", "its stop is over")
        assert home.pxctl("pin", "bad").returncode == 0
        assert home.pxctl("tools", "remove", "bad", "--yes").returncode == 0
    home.tool("bad", ECHO)
    home.stop()
    home.start()
    assert (home.status("bad")["state"], home.status("bad")["pinned"]) == ("cold", False)
    shutil.rmtree(home.home / "tools" / "bad")
    home.stop()
    home.start()

    def rows() -> int:
        connection = sqlite3.connect(ledger_of(home))
        try:
            return len(
                connection.execute(
                    "SELECT 1 FROM unit_state UNION ALL SELECT 1 FROM pins"
                ).fetchall()
            )
        finally:
            connection.close()

    until(lambda: rows() == 0, "what is remembered of it is gone")


def test_event_ids_are_not_given_twice_when_killed_while_the_ledger_takes_nothing(
    home: PipeHouse,
) -> None:
    """Twice in a row; whoever follows the stream by its last id goes on from there."""
    home.tool("echo", ECHO)
    home.start()
    last = 0
    for _ in range(2):
        lock = sqlite3.connect(ledger_of(home), isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for number in range(30):
            home.request("PUT" if number % 2 else "DELETE", "/api/tools/echo/pin")
        events = home.request("GET", "/api/events?limit=20000").lines()
        assert events[-1]["event"] in {"pinned", "unpinned", "ledger_degraded"}
        told = events[-1]["id"]
        assert told > last
        home.kill_brain()
        lock.close()
        home.request("PUT", "/api/tools/echo/pin")
        after = home.request("GET", f"/api/events?limit=20000&after={told}").lines()
        assert after
        assert min(it["id"] for it in after) > told
        last = after[-1]["id"]


@pytest.mark.deep
def test_a_locked_ledger_is_named_by_a_start_that_is_late(home: PipeHouse) -> None:
    """Another program holds the lock (a backup, an editor): the daemon tries again until it is
    free.
    """
    home.start()
    home.stop()
    holder = sqlite3.connect(ledger_of(home), isolation_level=None)
    holder.execute("PRAGMA locking_mode = exclusive")
    holder.execute("BEGIN EXCLUSIVE")
    late = home.pxctl("daemon", "start", "--timeout", "15")
    assert late.returncode == 7
    assert "database is locked; it goes on trying" in late.stderr
    assert "hint: close the other program that has it open: fuser" in late.stderr
    holder.close()
    until(home.answers, "the daemon serves once the lock is free")
    assert home.pxctl("daemon", "stop").returncode == 0
