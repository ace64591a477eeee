"""Events: which pattern fits, what is claimed once, what is a loop, what waits for a busy pipe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import BadRequestError
from supervisord_py.pipes.definition import EventPattern
from supervisord_py.pipes.scheduling.events import (
    Claim,
    Deferred,
    Event,
    LoopGuard,
    check_published,
    claim,
    goes_below,
    is_own,
    matches,
    misses,
    parse_pattern,
    watch_root,
)
from supervisord_py.pipes.scheduling.schedule import ScheduleError

HOME = "/home/me/pipes/summary"


def event(text: str, key: str = "1", source: str | None = None) -> Event:
    return Event.parse(text, key, source)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("pipe_completed:x", EventPattern("pipe_completed", "x")),
        (" pipe_failed:* ", EventPattern("pipe_failed", "*")),
        ("tool_failed: my tool", EventPattern("tool_failed", "my tool")),
        ("pipe_failed", EventPattern("pipe_failed")),
        ("file_changed:inbox/**/*.md", EventPattern("file_changed", "inbox/**/*.md")),
        ("meeting_ended", EventPattern("meeting_ended")),
        ("workflow_ready:a:b", EventPattern("workflow_ready", "a:b")),
    ],
)
def test_patterns_are_read(text: str, want: EventPattern) -> None:
    assert parse_pattern(text) == want
    assert want.text == text.strip().replace(": ", ":")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "pipe_completed:NAME"),
        ("not a name", "pipe_completed:NAME"),
        (":x", "pipe_completed:NAME"),
        ("pipe_failed:", "pipe_failed:NAME"),
        ("file_changed", "file_changed:NAME"),
        ("file_changed:" + "x" * 2000, "file_changed:NAME"),
        ("pipe-completed:x", "pipe_completed:x"),
        ("Pipe_Complete:x", "pipe_completed:x"),
        ("file_change:inbox/*", "file_changed:inbox/*"),
    ],
)
def test_what_could_never_happen_is_an_error(text: str, hint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_pattern(text)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("pattern", "happened", "fits"),
    [
        ("pipe_completed:x", "pipe_completed:x", True),
        ("pipe_completed:x", "pipe_failed:x", False),
        ("pipe_completed:x", "pipe_completed:xy", False),
        ("pipe_completed:*", "pipe_completed:a.b", True),
        ("pipe_completed:x?", "pipe_completed:xy", True),
        ("pipe_completed", "pipe_completed:x", True),
        ("meeting_ended", "meeting_ended", True),
        ("meeting_ended:board", "meeting_ended", False),
        ("workflow_ready:a*", "workflow_ready:a/b", True),
        ("file_changed:*.md", f"file_changed:{HOME}/notes.md", True),
        ("file_changed:*.md", f"file_changed:{HOME}/in/notes.md", False),
        ("file_changed:**/*.md", f"file_changed:{HOME}/in/deep/notes.md", True),
        ("file_changed:**/*.md", f"file_changed:{HOME}/notes.md", True),
        ("file_changed:in/**", f"file_changed:{HOME}/in/deep/a.b", True),
        ("file_changed:note?.md", f"file_changed:{HOME}/note1.md", True),
        ("file_changed:note?.md", f"file_changed:{HOME}/note/.md", False),
        ("file_changed:a+b.md", f"file_changed:{HOME}/aab.md", False),
        ("file_changed:/var/log/*.log", "file_changed:/var/log/x.log", True),
        ("file_changed:../inbox/*", "file_changed:/home/me/pipes/inbox/x", True),
        ("file_changed:./*.md", f"file_changed:{HOME}/x.md", True),
        # What the pipe itself writes is no news to it.
        ("file_changed:**", f"file_changed:{HOME}/output/7/x.md", False),
        ("file_changed:**", f"file_changed:{HOME}/pipe.md", False),
        ("file_changed:**", f"file_changed:{HOME}/.env", False),
        ("file_changed:**", f"file_changed:{HOME}/outputs/x", True),
        ("file_changed:in/box/", f"file_changed:{HOME}/in/box/x", True),
        ("file_changed:in/box/", f"file_changed:{HOME}/in/box/deep/x.md", True),
        ("file_changed:in/box/", f"file_changed:{HOME}/in/boxes", False),
        ("file_changed:in/*/", f"file_changed:{HOME}/in/box/deep/x.md", True),
        ("file_changed:./", f"file_changed:{HOME}/pipe.md", False),
        ("file_changed:../inbox/", "file_changed:/home/me/pipes/inbox/a/x", True),
    ],
)
def test_patterns_fit(pattern: str, happened: str, fits: bool) -> None:
    assert matches(parse_pattern(pattern), event(happened), HOME) is fits


@pytest.mark.parametrize(
    ("pattern", "root", "deep"),
    [
        ("*.md", HOME, False),
        ("in/box/*.md", f"{HOME}/in/box", False),
        ("in/box/", f"{HOME}/in/box", True),
        ("in/**", f"{HOME}/in", True),
        ("in/**/x/*.md", f"{HOME}/in", True),
        ("in/*/x.md", f"{HOME}/in", True),
        ("/var/lo?/x", "/var", True),
        ("../../x", "/home/me", False),
        ("../in/./x", "/home/me/pipes/in", False),
        ("/x", "/", False),
        ("/", "/", True),
    ],
)
def test_what_to_watch(pattern: str, root: str, deep: bool) -> None:
    asked = EventPattern("file_changed", pattern)
    assert (watch_root(asked, HOME), goes_below(asked, HOME)) == (root, deep)


def test_what_a_pipe_and_its_owner_write_in_its_folder_is_known_to_be_no_news() -> None:
    own = ("pipe.md", "./pipe.md", "output/", "output/**/*.md", f"{HOME}/.env", "../summary/pipe.md")
    assert all(is_own(EventPattern("file_changed", each), HOME) for each in own)
    others = ("*.md", "in/pipe.md", "../other/pipe.md", "/etc/x", "./", "outputs/x")
    assert not any(is_own(EventPattern("file_changed", each), HOME) for each in others)
    assert not is_own(EventPattern("pipe_completed", "pipe.md"), HOME)


@given(st.text(alphabet="ab*?/.[+", max_size=12), st.text(alphabet="ab/.[+", max_size=12))
def test_any_path_and_any_pattern_can_be_asked(pattern: str, path: str) -> None:
    asked = EventPattern("file_changed", f"x{pattern}")
    found = matches(asked, Event("file_changed", f"{HOME}/x{path}", "1"), HOME)
    if found:
        assert f"{HOME}/x{path}".startswith(watch_root(asked, HOME))


def test_an_occurrence_is_claimed_by_its_own_name_whichever_pattern_fitted() -> None:
    happened = event("pipe_completed:x", "41")
    assert claim("p", happened) == Claim("p", "pipe_completed:x", "41")
    assert happened.text == "pipe_completed:x"
    assert event("ping").text == "ping"


# Loops


def completed(pipe: str) -> Event:
    return event(f"pipe_completed:{pipe}", "1", source=pipe)


def test_a_pipe_does_not_start_itself() -> None:
    guard = LoopGuard(60.0)
    assert "does not start itself" in str(guard.refusal("a", completed("a"), 0.0))
    assert guard.refusal("a", event("ping"), 0.0) is None


def test_an_event_does_not_come_back_however_long_the_runs_take() -> None:
    guard = LoopGuard(60.0)
    assert guard.refusal("b", completed("a"), 0.0) is None
    guard.caused("b", completed("a"), 0.0)
    assert guard.refusal("c", completed("b"), 500.0) is None
    guard.caused("c", completed("b"), 500.0)
    guard.ended("b", 500.0)
    refused = guard.refusal("a", completed("c"), 1000.0)
    assert refused == "pipe_completed:c would go round in a loop (a -> b -> c -> a): suppressed for 60 s"
    assert "(b -> c -> b)" in str(guard.refusal("b", completed("c"), 1000.0))
    assert guard.refusal("d", completed("c"), 1000.0) is None


def test_after_the_end_the_cause_counts_for_a_while() -> None:
    guard = LoopGuard(60.0)
    guard.caused("b", completed("a"), 0.0)
    guard.ended("b", 100.0)
    assert guard.refusal("a", completed("b"), 159.0)
    assert guard.refusal("a", completed("b"), 160.0) is None
    guard.ended("x", 300.0)
    assert guard.refusal("a", completed("b"), 300.0) is None


def test_a_run_of_its_own_has_no_cause_and_two_in_line_have_both() -> None:
    guard = LoopGuard(60.0)
    guard.caused("b", event("ping"), 0.0)
    assert guard.refusal("a", completed("b"), 1.0) is None
    guard.caused("b", completed("a"), 1.0)
    guard.caused("b", completed("c"), 2.0)
    assert guard.refusal("a", completed("b"), 3.0)
    assert guard.refusal("c", completed("b"), 3.0)
    guard.ended("b", 4.0)
    guard.caused("b", completed("d"), 5.0)
    assert guard.refusal("a", completed("b"), 6.0) is None
    assert guard.refusal("d", completed("b"), 6.0)


# Busy


def test_events_wait_in_order_a_bounded_number() -> None:
    deferred = Deferred(limit=2)
    first, second, third = (event("ping", str(each)) for each in range(3))
    assert deferred.next("p") is None
    assert [deferred.defer("p", each) for each in (first, second, third)] == [True, True, False]
    assert deferred.count("p") == 2
    assert deferred.next("p") == first
    assert deferred.defer("p", third)
    assert deferred.drop("p") == (second, third)
    assert deferred.drop("p") == ()
    assert deferred.defer("p", first)
    assert deferred.next("p") == first
    assert deferred.count("p") == 0


# -- events from outside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["pipe_completed", "pipe_failed:ok", "tool_failed", "file_changed", "bad name", "", "a:b"]
)
def test_what_only_the_daemon_tells_and_what_no_pipe_can_wait_for_is_refused(name: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        check_published(name)
    assert repr(name) in caught.value.detail
    assert "deploy_done" in (caught.value.hint or "")


def test_a_name_of_ones_own_may_be_published() -> None:
    check_published("deploy_done")


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("pipe_completed:here", False),
        ("pipe_completed:nosuch", True),
        ("pipe_failed:he*", False),
        ("pipe_failed:no*", True),
        ("pipe_failed", False),
        ("tool_failed:nosuch", False),
        ("deploy", False),
    ],
)
def test_the_end_of_a_pipe_that_is_not_there_cannot_come(text: str, missed: bool) -> None:
    assert misses(parse_pattern(text), ("here", "there")) is missed
