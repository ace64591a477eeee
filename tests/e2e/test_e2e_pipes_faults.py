"""Agents that do everything wrong, through the installed daemon: what the row says, what is kept, what is left.

Each fault is one of the issue's list. After every test: no process of any execution lives, no private file lies about.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from e2e.house import House, until
from e2e.pipe_house import (
    Row,
    all_dead,
    begin,
    ended,
    events,
    fake,
    forked,
    in_time,
    nothing_left,
    output,
    pages,
    pipe,
    pipes_house,
    row,
    rows,
    run,
    shell,
    started,
)
from rounds import mostly_deep

LINE = b"x" * 1023 + b"\n"
KEPT = {"stdout", "stderr", "events.jsonl"}
FORKS = ("child:1000", "setsid:1000", "daemon:1000")


@pytest.fixture(scope="module")
def shared() -> Iterator[House]:
    with pipes_house(PX_PIPES__RETRY_INITIAL_SECONDS="0.05") as made:
        yield made


@pytest.fixture
def home(shared: House) -> Iterator[House]:
    """One daemon stands all faults, and holds nothing of any."""
    control = shared.pids()[1]
    yield shared
    nothing_left(shared)
    assert shared.pids()[1] == control
    for folder in (shared.home / "state" / "executions").iterdir():
        if folder.is_file():
            assert folder.stat().st_mode & 0o777 == 0o600
            continue
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.name for file in folder.iterdir()} <= KEPT
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} <= {0o600}


def moment(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


# -- stdin -------------------------------------------------------------------------------------------------------------


def test_stdin_is_complete_and_closed_whatever_the_agent_does_with_it(home: House) -> None:
    """One that reads until the end comes to it; a prompt of any length arrives whole; who never reads is no matter."""
    fake(home, "waits", "silent", "answer:heard")
    assert (run(home, "waits").ended, run(home, "waits").stdout) == (("completed", None), "heard\n")
    body = "- @file --flag $HOME {{date}} `x`\n" * 10_000
    fake(home, "echoes", "echo", agent="fake-text", body=body)
    done = run(home, "echoes")
    assert done.ended == ("completed", None)
    assert output(home, done.id) == done.rendered_prompt.encode() + b"\n"
    assert body.strip() in done.rendered_prompt
    folder = fake(home, "deaf", body=body)
    (folder / ".env").write_text('FAKE_AGENT="noread answer:deaf"\n')
    assert (run(home, "deaf").ended, run(home, "deaf").stdout) == (("completed", None), "deaf\n")


# -- ends that do not come ---------------------------------------------------------------------------------------------


def test_an_agent_that_is_done_but_does_not_exit_is_judged_by_its_answer(home: House) -> None:
    fake(home, "stays", "answer:all is well", "stay")
    fake(home, "stays-hard", "ignore-term", "answer:all is well", "stay")
    fake(home, "stays-bad", "fail:401", "stay")
    done = [ended(home, each.id) for each in [begin(home, name) for name in ("stays", "stays-hard", "stays-bad")]]
    assert [each.ended for each in done] == [("completed", None), ("completed", None), ("failed", "auth_failed")]
    assert [each.stdout for each in done[:2]] == ["all is well\n"] * 2
    assert (done[0].signal, done[1].signal) == (signal.SIGTERM, signal.SIGKILL)
    assert not any(each.incomplete for each in done[:2])
    assert "execution_settled" in [each["event"] for each in events(home, "stays")]


def test_turns_without_end_are_ended_by_a_ceiling(home: House) -> None:
    fake(home, "turns", "endless", front="limits: {turns: 5}")
    fake(home, "tokens", "usage:900/100/0.5", "endless", front="limits: {tokens: 4000}")
    fake(home, "cost", "usage:900/100/0.5", "endless", front="limits: {cost: 2.0}")
    by = {each.pipe_name: each for each in [ended(home, begin(home, it).id) for it in ("turns", "tokens", "cost")]}
    assert {each.ended for each in by.values()} == {("failed", "budget_exceeded")}
    assert by["turns"].usage["turns"] >= 5
    assert by["tokens"].tokens >= 4000
    assert by["cost"].cost >= 2.0
    assert all(name.rstrip("s") in each.error_message for name, each in by.items())
    assert all(each.incomplete for each in by.values())


# -- what is forked ----------------------------------------------------------------------------------------------------


ENDS = ("exits", "settles", "crashes", "is-killed", "fails", "times-out", "is-cancelled")


@pytest.mark.parametrize("end", mostly_deep(ENDS, "exits", "is-killed", "is-cancelled"))
def test_whatever_it_forked_goes_with_it_however_it_ends(home: House, end: str) -> None:
    """A child, one in a session of its own, and one forked twice into a session of its own."""
    last = {
        "exits": ["answer:fine"],
        "settles": ["answer:fine", "stay"],
        "crashes": ["kill:11"],
        "fails": ["fail:404", "exit:1"],
        "is-cancelled": ["ignore-term", "hang"],
    }.get(end, ["hang"])
    written, gate = home.home / f"{end}.pids", home.home / f"{end}.go"

    def forks(seconds: float) -> Row | None:
        """Begin one that has forked; None where its time was over before that."""
        written.write_text("")
        front = f"timeout: {seconds}" if end == "times-out" else ""
        folder = fake(home, end, "say:part ", *FORKS, f"waitfile:{gate}", *last, front=front)
        (folder / ".env").write_text(f"FAKE_PIDS={written}\n")
        begun = begin(home, end)
        until(lambda: len(forked(written)) == 3 or row(home, begun.id).is_final, "it has forked, or is over")
        if len(forked(written)) == 3:
            return begun
        ended(home, begun.id)
        return None

    begun = in_time(forks, 0.7)
    gate.touch()
    if end == "is-cancelled":
        answer = home.request("POST", f"/api/pipes/{end}/executions/{begun.id}/cancel")
        assert (answer.status, answer.json()["status"]) == (200, "cancelled")
        assert all_dead(forked(written)), "a cancel answers once nothing is left"
    if end == "is-killed":
        os.kill(started(home, begun.id).pid, signal.SIGKILL)
    done = ended(home, begun.id)
    assert all_dead(forked(written)), "the row is final once nothing is left"
    expected = {
        "exits": ("completed", None),
        "settles": ("completed", None),
        "fails": ("failed", "model_not_found"),
        "times-out": ("timed_out", "timeout"),
        "is-cancelled": ("cancelled", "cancelled"),
    }
    assert done.ended == expected.get(end, ("failed", "crash"))
    assert done.stdout.startswith("part ")
    assert pipe(home, end)["running"] is None


def test_what_hides_from_its_marks_is_found_all_the_same(home: House) -> None:
    """No environment, a session of its own, no parent."""
    folder = shell(home, "hides", "setsid sh -c 'env -i sleep 1000 & echo $! > hidden' & wait; echo fine")
    done = run(home, "hides")
    assert (done.ended, done.stdout) == (("completed", None), "fine\n")
    assert all_dead([int((folder / "hidden").read_text())])


# -- floods ------------------------------------------------------------------------------------------------------------


def test_a_flood_on_stderr_blocks_nothing_and_is_kept(home: House) -> None:
    """The original read stderr when stdout was over: 64 KB later both waited for ever."""
    fake(home, "floods", "flood-err:5242880", "answer:dry", "flood-err:1048576")
    done = run(home, "floods")
    assert (done.ended, done.stdout, done.stderr_bytes) == (("completed", None), "dry\n", 6291456)
    assert len(done.stderr) < 300_000
    assert "left out" in done.stderr
    digest = hashlib.sha256()
    for data in pages(home, done, "stderr"):
        digest.update(data)
    assert digest.digest() == hashlib.sha256(LINE * 6144).digest()


# -- failures ----------------------------------------------------------------------------------------------------------

KINDS = {
    "401": "auth_failed",
    "403": "auth_failed",
    "404": "model_not_found",
    "429": "rate_limited",
    "quota": "quota_exhausted",
    "500": "provider_error",
    "network": "network",
    "overflow": "context_overflow",
    "refusal": "safety_refusal",
}


@pytest.mark.parametrize("agent", ["fake", "fake-text"])
def test_a_providers_error_is_named_at_exit_code_0_and_1(home: House, agent: str) -> None:
    begun = {}
    for kind in KINDS:
        fake(home, f"{agent}-{kind}", "say:so far", f"fail:{kind}", agent=agent)
        begun[kind] = begin(home, f"{agent}-{kind}")
    done = {kind: ended(home, it.id) for kind, it in begun.items()}
    assert {kind: it.ended for kind, it in done.items()} == {kind: ("failed", it) for kind, it in KINDS.items()}
    assert {it.exit_code for it in done.values()} == ({0} if agent == "fake" else {1})
    assert {it.stdout.strip() for it in done.values()} == {"so far"}
    assert all(it.error_message for it in done.values())
    assert len(rows(home, f"pipe={agent}-429")) == 1, "this house retries nothing by itself"


# -- retries -----------------------------------------------------------------------------------------------------------


def test_a_rate_limit_is_tried_again_as_new_rows(home: House) -> None:
    fake(home, "limited", "say:tried", "fail:429", front="retries: 2")
    begin(home, "limited")
    found: list[Row] = (
        until(
            lambda: (
                len(all_ := rows(home, "pipe=limited")) == 3
                and all(each.is_final for each in all_)
                and pipe(home, "limited")["queued"] == 0
                and all_
            ),
            "three tries",
        )
        or []
    )
    assert [each.ended for each in found] == [("failed", "rate_limited")] * 3
    assert [each.trigger for each in found] == ["manual", "retry", "retry"]
    assert [each.retry_count for each in found] == [0, 1, 2]
    assert [each.retry_of for each in found] == [None, found[0].id, found[1].id]
    assert {each.group for each in found} == {"manual"}
    for before, after in pairwise(found):
        assert moment(after.not_before) > moment(before.finished_at)
        assert moment(after.started_at) >= moment(after.not_before)
    assert [row(home, each.id).stdout for each in found] == ["tried\n"] * 3
    ended(home, found[-1].id)  # a row is final before all that follows from it is done
    assert pipe(home, "limited")["consecutive_failures"] == 1, "one failure, however often it was tried"


def test_a_retry_that_succeeds_ends_the_series_and_what_cannot_pass_is_not_tried_again(home: House) -> None:
    once = "[ -e tried ] && echo better && exit 0; touch tried; echo 'HTTP 429 Too Many Requests' >&2; exit 1"
    shell(home, "recovers", once, "schedule: manual\nretries: 3")
    first = run(home, "recovers")
    assert first.ended == ("failed", "rate_limited")
    second = ended(home, until(lambda: rows(home, "pipe=recovers")[1:], "a second try")[0].id)
    assert (second.ended, second.stdout, second.retry_of) == (("completed", None), "better\n", first.id)
    assert pipe(home, "recovers")["consecutive_failures"] == 0
    for kind in ("401", "404", "quota", "refusal", "overflow"):
        fake(home, f"never-{kind}", f"fail:{kind}", front="retries: 3")
        run(home, f"never-{kind}")
        assert len(rows(home, f"pipe=never-{kind}")) == 1
    assert len(rows(home, "pipe=recovers")) == 2
