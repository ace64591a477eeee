"""What starts pipes beside people, seen from outside: events once each, chains without rings, schedules, wishes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.house import House, server, until
from e2e.pipe_house import (
    Row,
    asked,
    begin,
    ended,
    events,
    fake,
    nothing_left,
    pipe,
    pipes_house,
    row,
    rows,
    run,
    shell,
    started,
)

WAITS = "while [ ! -e go ]; do sleep 0.02; done; echo gone on"


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    slots = {"PX_PIPES__SLOTS_SCHEDULED": "3", "PX_PIPES__SLOTS_EVENT": "3"}
    with pipes_house(**slots, PX_TOOLS__WARM_KEEP_MAX="1") as made:
        yield made
        nothing_left(made)


def waits_for(home: House, name: str, *patterns: str, script: str = "echo heard", front: str = "") -> None:
    """Write an enabled pipe that events start, and wait until the daemon knows them."""
    shell(home, name, script, f"schedule: manual\ntrigger: {{events: {json.dumps(patterns)}}}\n{front}")
    until(lambda: known(home, name) and pipe(home, name)["events"] == list(patterns), f"{name} is known")


def known(home: House, name: str) -> bool:
    return home.request("GET", f"/api/pipes/{name}").status == 200


def tell(home: House, name: str, **members: Any) -> dict[str, Any]:
    answer = home.request("POST", f"/api/events/{name}", members)
    assert answer.status == 202, answer.body
    found: dict[str, Any] = answer.json()
    return found


def of(home: House, name: str, count: int) -> list[Row]:
    """Wait until a pipe has so many executions, all of them over."""
    found = until(lambda: len(it := rows(home, f"pipe={name}")) >= count and it, f"{count} executions of {name}")
    assert found
    return [ended(home, each.id) for each in found]


# -- events ------------------------------------------------------------------------------------------------------------


def test_an_event_with_a_key_starts_each_pipe_once_however_often_it_is_told(home: House) -> None:
    for name in ("ear", "other-ear"):
        waits_for(home, name, "order_paid", "order_sent")
    answers: list[dict[str, Any]] = []
    tellers = [
        threading.Thread(target=lambda: answers.append(tell(home, "order_paid", key="o-1", data={"total": 7})))
        for _ in range(8)
    ]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join(60)
    assert len(answers) == 8
    claimed = [each for answer in answers for each in answer["claimed"]]
    assert sorted(each["pipe"] for each in claimed) == ["ear", "other-ear"]
    suppressed = [each for answer in answers for each in answer["suppressed"]]
    assert len(suppressed) == 14
    assert all(each["why"] for each in suppressed)
    found = of(home, "ear", 1)[0]
    assert found.id in {each["execution"] for each in claimed}
    assert (found.trigger, found.group) == ("event", "event")
    assert (found.trigger_event, found.trigger_key, found.ended) == ("order_paid", "o-1", ("completed", None))
    told = next(line for line in found.rendered_prompt.splitlines() if line.startswith("Trigger: "))
    assert json.loads(told.removeprefix("Trigger: "))["data"] == {"total": 7}
    assert found.plan["context"]["key"] == "o-1"
    assert len(tell(home, "order_paid", key="o-2")["claimed"]) == 2
    assert len(tell(home, "order_paid")["claimed"]) == 2, "without a key each is another one"
    assert len(tell(home, "order_sent", key="o-1")["claimed"]) == 2, "another event with that key is another one"
    assert tell(home, "nobody-waits-for-this") == {"schema": "px.event-claims/1", "claimed": [], "suppressed": []}
    for name in ("ear", "other-ear"):
        assert [each.status for each in of(home, name, 4)] == ["completed"] * 4


def test_a_pipe_follows_another_and_a_ring_is_not_entered_twice(home: House) -> None:
    waits_for(home, "ring-a", "pipe_completed:ring-b")
    waits_for(home, "ring-b", "pipe_completed:ring-a")
    waits_for(home, "mourner", "pipe_failed:dies")
    fake(home, "dies", "fail:401")
    first = run(home, "ring-a")
    second = of(home, "ring-b", 1)[0]
    assert (second.trigger_event, second.trigger_key) == ("pipe_completed:ring-a", str(first.id))
    assert f'"execution": {first.id}' in second.rendered_prompt
    died = run(home, "dies")
    mourned = of(home, "mourner", 1)[0]
    assert (mourned.trigger_event, mourned.trigger_key) == ("pipe_failed:dies", str(died.id))
    assert "auth_failed" in mourned.rendered_prompt
    assert len(rows(home, "pipe=ring-a")) == 1
    assert len(rows(home, "pipe=ring-b")) == 1
    assert len(rows(home, "pipe=mourner")) == 1


def put(file: Path, text: str) -> None:
    """Write a file whole: one that is emptied first changes twice, where somebody looks in between."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


def test_a_tool_that_dies_and_a_file_that_changes_are_events(home: House) -> None:
    waits_for(home, "tool-nurse", "tool_failed:mortal")
    home.tool("mortal", server("import os; os._exit(3)"))
    until(lambda: any(each["name"] == "mortal" for each in home.get("/api/tools")["tools"]), "the tool is known")
    assert home.run("mortal").status >= 500
    nursed = of(home, "tool-nurse", 1)[0]
    assert (nursed.trigger_event, nursed.ended) == ("tool_failed:mortal", ("completed", None))
    inbox = home.home / "inbox"
    inbox.mkdir()
    waits_for(home, "reader", f"file_changed:{inbox}/*.txt", script="cat; ls -1 >/dev/null; touch own.txt")
    until(lambda: [each for each in events(home, "reader") if each["event"] == "pipe_added"], "it listens")
    put(inbox / "letter.txt", "one")
    first = of(home, "reader", 1)[0]
    assert str(inbox / "letter.txt") in first.trigger_key
    assert str(inbox / "letter.txt") in first.stdout
    put(inbox / "letter.log", "no matter")
    put(inbox / "letter.txt", "another one")
    assert len(of(home, "reader", 2)) == 2


# -- wishes ------------------------------------------------------------------------------------------------------------


def test_one_execution_of_a_pipe_at_a_time(home: House) -> None:
    folder = shell(home, "one", WAITS)
    first = begin(home, "one")
    pid = started(home, first.id).pid
    refused = asked(home, "one")
    problem = refused.json()
    assert (refused.status, problem["kind"], problem["execution"]) == (409, "conflict", first.id)
    assert (problem["pid"], problem["unit"]) == (pid, "pipe:one")
    assert "pxctl pipe tail" in problem["hint"]
    done = home.pxctl("pipe", "run", "one")
    assert (done.returncode, str(first.id) in done.stderr) == (8, True)
    second, third = begin(home, "one", queue=True), begin(home, "one", queue=True)
    assert [second.position, third.position] == [1, 2]
    queue = {each["group"]: each for each in home.get("/api/pipes/queue")["groups"]}["manual"]
    assert [each["id"] for each in queue["running"]] == [first.id]
    assert [(each["id"], each["position"]) for each in queue["waiting"]] == [(second.id, 1), (third.id, 2)]
    assert queue["slots"] == 8
    assert home.pxctl("pipe", "cancel", str(second.id)).returncode == 0
    assert row(home, third.id).position == 1
    (folder / "go").touch()
    assert [ended(home, each.id).status for each in (first, second, third)] == ["completed", "cancelled", "completed"]


def test_a_pipe_tells_of_the_failures_of_others(home: House) -> None:
    assert home.pxctl("pipe", "add", "example:tell-failure").returncode == 0
    assert home.pxctl("pipe", "enable", "tell-failure").returncode == 0
    fake(home, "unlucky", "fail:401")
    failed = [run(home, "unlucky").id for _ in range(2)]
    assert pipe(home, "unlucky")["consecutive_failures"] == 2
    until(lambda: len(rows(home, "pipe=tell-failure")) >= 2, "somebody is told of each")
    told = [ended(home, each.id) for each in rows(home, "pipe=tell-failure")]
    assert home.pxctl("pipe", "disable", "tell-failure").returncode == 0
    said = [f"pipe:unlucky failed: auth_failed (execution {number})\n" for number in failed]
    assert [(each.ended, each.stdout) for each in told] == [(("completed", None), words) for words in said]
    fake(home, "unlucky", "answer:fine")
    run(home, "unlucky")
    assert pipe(home, "unlucky")["consecutive_failures"] == 0


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_intervals_begin_at_once_and_are_skipped_while_their_pipe_runs(home: House) -> None:
    """The shortest interval is 10 s: both are looked at after it has gone by once."""
    shell(home, "ticks", "echo tick", "schedule: every 10s")
    folder = shell(home, "slow", WAITS, "schedule: every 10 seconds")
    shell(home, "asleep", "echo no", "schedule: every 10s\nenabled: false")
    before_later = datetime.now(UTC).timestamp()
    shell(home, "later", "echo no", "schedule: every 10s\nrun_on_enable: false")
    shell(home, "cron", "echo no", "schedule: '0 0 1 1 *'")
    first = of(home, "ticks", 1)[0]
    assert (first.trigger, first.group, first.ended) == ("scheduled", "scheduled", ("completed", None))
    slow = until(lambda: rows(home, "pipe=slow"), "it has begun")[0]
    due = seconds(pipe(home, "ticks")["next_run"])  # of the second, or, where we were slow, of a later one
    until(lambda: [each for each in rows(home, "pipe=ticks") if seconds(each.queued_at) >= due - 0.5], "it runs again")
    before, again = next(two for two in pairwise(of(home, "ticks", 2)) if seconds(two[1].queued_at) >= due - 0.5)
    assert seconds(before.queued_at) < due <= seconds(before.started_at) + 10.5, "it counts from the last start"
    assert seconds(again.queued_at) - seconds(before.queued_at) >= 9.5
    assert seconds(again.context_start) == pytest.approx(seconds(before.context_end)), "windows are chained"
    told = until(lambda: (it := pipe(home, "slow")["last_decision"]) and "still running" in it["text"] and it, "a skip")
    assert str(slow.id) in told["text"]
    explained = home.pxctl("pipe", "next", "slow").stdout
    assert "still running" in explained
    assert len(rows(home, "pipe=slow")) == 1
    assert home.pxctl("pipe", "disable", "slow", "ticks").returncode == 0
    (folder / "go").touch()
    assert ended(home, slow.id).ended == ("completed", None)
    assert not rows(home, "pipe=asleep")
    assert not rows(home, "pipe=cron")
    assert pipe(home, "asleep")["next_run"] is None
    assert pipe(home, "cron")["next_run"].startswith(f"{datetime.now(UTC).year + 1}-01-01")
    late = of(home, "later", 1)[0]
    assert seconds(late.queued_at) - before_later >= 9.5, "its first is when the interval has gone by"
    assert home.pxctl("pipe", "disable", "later").returncode == 0


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def in_a_second() -> str:
    return (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="seconds").replace("+00:00", "Z")


@pytest.mark.deep
def test_a_one_time_schedule_runs_once_and_again_when_it_gets_a_new_time(home: House) -> None:
    for count in (1, 2):
        soon = in_a_second()
        shell(home, "once", "echo now", f"schedule: at {soon}")
        done = of(home, "once", count)[-1]
        assert (done.trigger, done.ended) == ("scheduled", ("completed", None))
        assert seconds(done.queued_at) >= seconds(soon)
        after = pipe(home, "once")
        assert (after["enabled"], after["next_run"]) == (False, None)


@pytest.mark.deep
def test_what_was_wished_here_and_taken_once_outlives_a_restart() -> None:
    """Enabled is this machine's word until the file says something new; an event that was taken stays taken."""
    with pipes_house() as home:
        for name in ("off", "on", "kept"):
            state = "false" if name == "on" else "true"
            waits_for(home, name, "morning", front=f"enabled: {state}")
        assert home.request("POST", "/api/pipes/off/disable").json()["enabled"] is False
        assert home.request("POST", "/api/pipes/on/enable").json()["enabled"] is True
        assert sorted(each["pipe"] for each in tell(home, "morning", key="monday")["claimed"]) == ["kept", "on"]
        of(home, "kept", 1)
        of(home, "on", 1)
        assert home.stop() == 0
        home.start()
        assert {name: pipe(home, name)["enabled"] for name in ("off", "on", "kept")} == {
            "off": False,
            "on": True,
            "kept": True,
        }
        assert tell(home, "morning", key="monday")["claimed"] == []
        assert home.stop() == 0
        file = home.home / "pipes" / "off" / "pipe.md"
        file.write_text(file.read_text().replace("enabled: true", "enabled: false"))
        home.start()
        assert pipe(home, "off")["enabled"] is False
        file.write_text(file.read_text().replace("enabled: false", "enabled: true"))
        until(lambda: pipe(home, "off")["enabled"], "the file's new word counts")
        assert {each.pipe_name for each in rows(home)} == {"kept", "on"}
