"""What is kept of the past, and how it is asked for: `pxctl events`, `pxctl why`, `GET
/api/events`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import House, house, server, until

OLD_SECONDS = 400 * 86_400.0
AGING = (
    "UPDATE events SET time = time - ?",
    "UPDATE run_events SET time = time - ?",
    "UPDATE failure_events SET time = time - ?",
    "UPDATE instances SET started_at = started_at - ?1, ready_at = ready_at - ?1, ended_at = "
    "ended_at - ?1",
)
RUN_FACTS = (
    '{"run":"r","outcome":"completed","status":200,"error_kind":null,"duration_seconds":0.01}'
)


CALM = server("return body")


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """A daemon with a past: `fragile` was killed, `calm` runs; each test only adds to it."""
    with house() as opened:
        begin(opened)
        yield opened


def begin(home: House) -> None:
    for name in ("fragile", "calm"):
        home.tool(name, CALM)
    home.start()
    home.run("fragile")
    os.kill(home.status("fragile")["pid"], signal.SIGKILL)
    until(lambda: home.events("tool:fragile", "died"), "the death is known")
    home.run("calm")


def asked(home: House, query: str) -> list[str]:
    """Return the words of the events that the route answers with."""
    return [event["event"] for event in home.request("GET", f"/api/events?{query}").lines()]


def px_events(home: House, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    ended = home.pxctl("events", "--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.stderr


def test_events_are_selected_by_unit_word_time_and_failure(home: House) -> None:
    found, note = px_events(home, "--unit", "fragile", "--event", "died", "--event", "start*")
    assert ([event["event"] for event in found], note) == (["starting", "died"], "")
    failed, _ = px_events(home, "--failed", "--unit", "tool:*")
    assert {(event["unit"], event["event"]) for event in failed} == {("tool:fragile", "died")}
    by_glob, _ = px_events(home, "--unit", "frag*", "--unit", "tool:c?lm", "--event", "ready")
    assert {event["unit"] for event in by_glob} == {"tool:fragile", "tool:calm"}
    of_daemon, _ = px_events(home, "--unit", "pxd")
    assert {event["unit"] for event in of_daemon} == {None}
    died_at = failed[0]["time"]
    assert px_events(home, "--since", died_at, "--until", died_at, "--event", "died")[0] == failed
    assert px_events(home, "--since", "2000-01-01", "--until", "1 year ago")[0] == []
    assert len(px_events(home, "--since", "today", "-n", "1")[0]) == 1


def test_a_mistake_in_a_question_is_named(home: House) -> None:
    problem = home.request("GET", "/api/events?event=dyed").refused(422, "invalid_input")
    assert (problem["hint"], "'dyed'" in problem["detail"]) == ("did you mean 'died'?", True)
    ended = home.pxctl("events", "--event", "dyed")
    assert (ended.returncode, "hint: did you mean 'died'?" in ended.stderr) == (2, True)
    for query in ("unit=tool:nonesuch", "unit=nonesuch", "unit=nonesuch*"):
        home.request("GET", f"/api/events?{query}").refused(404, "unknown_unit")
    home.request("GET", "/api/events?follow=1&until=5m").refused(400)
    assert home.pxctl("events", "-f", "--until", "5m").returncode == 2
    assert home.pxctl("events", "--since", "3 moons ago").returncode == 2


def test_the_past_of_a_tool_that_was_removed_is_found_by_its_name(home: House) -> None:
    home.tool("fleeting", CALM)
    home.post("/api/daemon/reload")
    home.run("fleeting")
    home.request("DELETE", "/api/tools/fleeting?force=1")
    for name in ("fleeting", "tool:fleeting", "fleet*"):
        found, _ = px_events(home, "--unit", name, "--event", "ready")
        assert [event["unit"] for event in found] == ["tool:fleeting"], name


def test_a_cell_that_failed_is_found_among_the_failures(home: House) -> None:
    for code in ("x = 1", "1 / 0", "x"):
        home.post("/api/kernels/work/execute", {"code": code, "timeout": 60})
    allowed = {"code": "1 / 0", "allow_error": True}
    assert (
        home.post("/api/kernels/work/execute", {"cells": [allowed], "timeout": 60})["status"]
        == "ok"
    )
    kernel = home.get("/api/kernels/work")
    found, _ = px_events(home, "--failed", "--unit", "kernel:*")
    told = [(event["unit"], event["event"], event["status"], event["error"]) for event in found]
    assert told == [(f"kernel:{kernel['id']}", "cell_failed", "error", "ZeroDivisionError")]
    why = home.get(f"/api/units/kernel:{kernel['id']}/why")
    assert [event["event"] for event in why["chain"]] == ["starting", "spawned", "ready"], (
        "it led to nothing"
    )


def test_a_number_is_called_an_execution_only_where_there_is_one(home: House) -> None:
    assert home.pxctl("pipe", "new", "counted", "--command", "true").returncode == 0
    number = json.loads(home.pxctl("pipe", "run", "counted", "--json").stdout)["id"]
    for command in ("why", "logs", "status"):
        there = home.pxctl(command, str(number))
        assert (there.returncode != 0, "is the id of an execution" in there.stderr) == (
            True,
            True,
        ), there
        none = home.pxctl(command, "987654")
        assert (none.returncode, "is the id of an execution" in none.stderr) == (4, False), none
        assert "there is no execution 987654 either" in none.stderr


def test_an_answer_says_whether_it_is_all_and_can_be_continued_in_both_directions(
    home: House,
) -> None:
    whole = [event["id"] for event in home.request("GET", "/api/events?since=1h").lines()]
    newest = home.request("GET", "/api/events?limit=3")
    ids = [event["id"] for event in newest.lines()]
    assert (ids, newest.headers["x-complete"]) == (whole[-3:], "false")
    before = home.request("GET", f"/api/events?limit=2&before={ids[0]}").lines()
    assert [event["id"] for event in before] == whole[-5:-3]
    oldest = home.request("GET", f"/api/events?limit=2&after={whole[0]}")
    assert ([event["id"] for event in oldest.lines()], oldest.headers["x-complete"]) == (
        whole[1:3],
        "false",
    )
    both = home.request("GET", f"/api/events?after={whole[0]}&before={whole[3]}")
    assert ([event["id"] for event in both.lines()], both.headers["x-complete"]) == (
        whole[1:3],
        "true",
    )
    seen = {"Last-Event-ID": str(whole[1])}
    resumed = home.request("GET", "/api/events", headers=seen).lines()
    assert [event["id"] for event in resumed][: len(whole) - 2] == whole[2:]
    for query in (f"limit={len(whole)}", "since=1h", f"after={whole[0]}"):
        assert home.request("GET", f"/api/events?{query}").headers["x-complete"] == "true", query


def test_what_is_followed_is_selected_as_well(home: House) -> None:
    query = "follow=1&unit=c*&event=stopped&event=ready&since=1h"
    with home.asking(
        "GET", f"/api/events?{query}", headers={"Accept": "application/x-ndjson"}
    ) as following:
        assert json.loads(following.readline())["event"] == "ready"
        home.post("/api/tools/calm/stop")
        told = json.loads(following.readline())
    assert (told["unit"], told["event"]) == ("tool:calm", "stopped")


@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_successes_push_out_no_failure_and_a_death_outlasts_its_age(many: int) -> None:
    """Many runs are put into the ledger, and what was before becomes 400 days old; the rest is
    as usual.
    """
    with house() as home:
        begin(home)
        home.stop()
        fill_with_runs(home, many)
        (home.home / "pxd.toml").write_text("[history]\nruns_rows = 200000\n")
        home.start()
        shown, note = px_events(home)
        assert len(shown) == 1000
        assert "these are the newest; there are older ones: pxctl events --until" in note
        assert asked(home, "unit=fragile&event=died") == ["died"]
        assert home.request("GET", f"/api/events?limit={2 * many}").body.count(b"\n") > many
        why = home.get("/api/units/fragile/why")
        assert [event["event"] for event in why["chain"]] == [
            "starting",
            "spawned",
            "ready",
            "died",
        ]

        # A shorter limit is in force at once, and then a second one for all that is old.
        (home.home / "pxd.toml").write_text("[history]\nruns_rows = 100\nevents_days = 300\n")
        assert home.pxctl("daemon", "reload").returncode == 0
        until(lambda: len(asked(home, "event=run&limit=2000")) <= 110, "old runs are forgotten")
        until(lambda: not asked(home, "unit=calm&event=ready"), "the old start is forgotten")
        told = home.pxctl("why", "fragile").stdout
        assert ("died" in told, "it was killed" in told or "signal" in told) == (True, True)
        assert asked(home, "unit=fragile") == ["starting", "spawned", "ready", "died"]

        # It still says so when the tool lives again.
        home.run("fragile")
        assert "The last time that it ended badly:" in home.pxctl("why", "fragile").stdout
        assert home.get("/api/units/fragile/why")["last_death"]["event"] == "died"


def fill_with_runs(home: House, many: int) -> None:
    """Make everything old in a ledger that nobody has open, and add many new runs of `calm`."""
    ledger = sqlite3.connect(home.home / "state" / "pxd.db")
    last = last_id_of(ledger)
    with ledger:
        for statement in AGING:
            ledger.execute(statement, (OLD_SECONDS,))
        rows = ((last + number, time.time(), RUN_FACTS) for number in range(1, many + 1))
        sql = (
            "INSERT INTO run_events (id, time, unit, event, facts) VALUES (?, ?, 'tool:calm', "
            "'run', ?)"
        )
        ledger.executemany(sql, rows)
    ledger.close()


def last_id_of(ledger: sqlite3.Connection) -> int:
    both = (
        "SELECT max(id) FROM (SELECT max(id) AS id FROM events UNION ALL SELECT max(id) FROM "
        "run_events)"
    )
    return int(ledger.execute(both).fetchone()[0])
