"""Agents that do everything wrong, through the installed daemon: what the row says, what is kept,
what is left.

Each fault is one of the issue's list. After every test: no process of any execution lives, no
private file lies about.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from e2e.house import of_module, until
from e2e.pipe_house import DONE, PipeHouse, Row, all_dead, forked, in_time, pipes_house
from pipe_texts import scripted_agent
from rounds import mostly_deep

KEPT = {"stdout", "stderr", "events.jsonl"}
shared = of_module(pipes_house, PX_PIPES__RETRY_INITIAL_SECONDS="0.05")


@pytest.fixture
def home(shared: PipeHouse) -> Iterator[PipeHouse]:
    """One daemon stands all faults, and holds nothing of any."""
    control = shared.pids()[1]
    yield shared
    shared.nothing_left()
    assert shared.pids()[1] == control
    for path in (shared.home / "state" / "executions").rglob("*"):
        assert path.is_dir() or path.name in KEPT or path.parent.name == "executions", path
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_stdin_is_complete_and_closed_whatever_the_agent_does_with_it(home: PipeHouse) -> None:
    """One that reads until the end comes to it; a prompt of any length arrives whole; who never
    reads is no matter.
    """
    body = "- @file --flag $HOME {{date}} `x`\n" * 10_000
    home.shell("echoes", "cat", body=body)
    home.shell("deaf", "echo deaf", body=body)
    done = {name: home.execute(name) for name in ("echoes", "deaf")}
    assert {each.ended for each in done.values()} == {DONE}
    assert done["deaf"].stdout == "deaf\n"
    assert home.output(done["echoes"].id) == done["echoes"].rendered_prompt.encode()
    assert body.strip() in done["echoes"].rendered_prompt


def test_an_agent_that_is_done_but_does_not_exit_is_judged_by_its_answer(home: PipeHouse) -> None:
    home.fake("stays", "answer:all is well", "stay")
    home.fake("stays-hard", "ignore-term", "answer:all is well", "stay")
    home.fake("stays-bad", "fail:401", "stay")
    done = [
        home.ended(each.id)
        for each in [home.begin(name) for name in ("stays", "stays-hard", "stays-bad")]
    ]
    assert [each.ended for each in done] == [DONE, DONE, ("failed", "auth_failed")]
    assert [each.stdout for each in done[:2]] == ["all is well\n"] * 2
    assert [each.signal for each in done[:2]] == [signal.SIGTERM, signal.SIGKILL]
    assert not any(each.incomplete for each in done[:2])
    assert home.events("pipe:stays", "execution_settled")


def test_turns_without_end_are_ended_by_a_ceiling(home: PipeHouse) -> None:
    home.fake("turns", "endless", front="limits: {turns: 5}")
    home.fake("tokens", "usage:900/100/0.5", "endless", front="limits: {tokens: 4000}")
    home.fake("cost", "usage:900/100/0.5", "endless", front="limits: {cost: 2.0}")
    by = {
        each.pipe_name: each
        for each in [home.ended(home.begin(it).id) for it in ("turns", "tokens", "cost")]
    }
    assert {(*each.ended, each.incomplete) for each in by.values()} == {
        ("failed", "budget_exceeded", True)
    }
    assert (
        by["turns"].usage["turns"] >= 5,
        by["tokens"].tokens >= 4000,
        by["cost"].cost >= 2.0,
    ) == (True, True, True)
    assert all(name.rstrip("s") in each.error_message for name, each in by.items())


ENDS: dict[str, tuple[list[str], tuple[str, str | None]]] = {
    "exits": (["answer:fine"], DONE),
    "settles": (["answer:fine", "stay"], DONE),
    "crashes": (["kill:11"], ("failed", "crash")),
    "is-killed": (["hang"], ("failed", "crash")),
    "fails": (["fail:404", "exit:1"], ("failed", "model_not_found")),
    "times-out": (["hang"], ("timed_out", "timeout")),
    "is-cancelled": (["ignore-term", "hang"], ("cancelled", "cancelled")),
}


@pytest.mark.parametrize("end", mostly_deep(ENDS, "exits", "is-killed", "is-cancelled"))
def test_whatever_it_forked_goes_with_it_however_it_ends(home: PipeHouse, end: str) -> None:
    """A child, one in a session of its own, and one forked twice into a session of its own."""
    last, expected = ENDS[end]
    written, gate = home.home / f"{end}.pids", home.home / f"{end}.go"

    def forks(seconds: float) -> Row | None:
        """Begin one that has forked; None where its time was over before that."""
        written.write_text("")
        front = f"timeout: {seconds}" if end == "times-out" else ""
        steps = ("say:part ", "child:1000", "setsid:1000", "daemon:1000", f"waitfile:{gate}")
        (home.fake(end, *steps, *last, front=front) / ".env").write_text(f"FAKE_PIDS={written}\n")
        begun = home.begin(end)
        until(
            lambda: len(forked(written)) == 3 or home.row(begun.id).is_final,
            "it has forked, or is over",
        )
        return begun if len(forked(written)) == 3 else home.ended(begun.id) and None

    begun = in_time(forks, 0.7)
    gate.touch()
    if end == "is-cancelled":
        assert home.cancel(begun).status == "cancelled"
        assert all_dead(forked(written)), "a cancel answers once nothing is left"
    if end == "is-killed":
        os.kill(home.started(begun.id).pid, signal.SIGKILL)
    done = home.ended(begun.id)
    assert all_dead(forked(written)), "the row is final once nothing is left"
    assert (done.ended, done.stdout[:5]) == (expected, "part ")
    assert home.pipe(end)["running"] is None


def test_what_hides_from_its_marks_is_found_all_the_same(home: PipeHouse) -> None:
    """No environment, a session of its own, no parent."""
    folder = home.shell(
        "hides", "setsid sh -c 'env -i sleep 1000 & echo $! > hidden' & wait; echo fine"
    )
    done = home.execute("hides")
    assert (done.ended, done.stdout) == (DONE, "fine\n")
    assert all_dead([int((folder / "hidden").read_text())])


# -- retries ---------------------------------------------------------------------------------------


def test_a_rate_limit_is_tried_again_as_new_rows_until_it_passes_and_what_cannot_pass_is_not(
    home: PipeHouse,
) -> None:
    twice = (
        "echo x >> tried; [ $(wc -l < tried) = 3 ] && echo better && exit 0; echo 'HTTP 429' >&2; "
        "exit 1"
    )
    with (home.home / "agents.toml").open("a") as agents:
        agents.write(scripted_agent("recovers", twice))
    home.write("recovers", "agent: recovers\nretries: 3")
    home.begin("recovers")
    found = home.of("recovers", 3)
    assert [each.ended for each in found] == [("failed", "rate_limited")] * 2 + [DONE]
    assert [(each.trigger, each.retry_count) for each in found] == [
        ("manual", 0),
        ("retry", 1),
        ("retry", 2),
    ]
    assert [each.retry_of for each in found] == [None, found[0].id, found[1].id]
    assert all(
        before.finished_at < after.not_before <= after.started_at
        for before, after in pairwise(found)
    )
    home.fake("limited", "fail:429", front="retries: 1")
    home.fake("never", "fail:401", front="retries: 3")
    for name, count in (("limited", 2), ("never", 1)):
        home.begin(name)
        home.of(name, count)
        until(lambda name=name: home.pipe(name)["queued"] == 0, "no further try")
        assert (len(home.rows(f"pipe={name}")), home.pipe(name)["consecutive_failures"]) == (
            count,
            1,
        ), "one failure"
    assert (len(home.rows("pipe=recovers")), home.pipe("recovers")["consecutive_failures"]) == (
        3,
        0,
    )
