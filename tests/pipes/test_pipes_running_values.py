"""The pure parts of running: rows, texts, windows, counts, budgets, notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from supervisord_py.ledger.pipe_history import UsageSum
from supervisord_py.ledger.pipe_state import PipeStateRow
from supervisord_py.pipes import rows
from supervisord_py.pipes.config import PipesConfig, SchedulerLimits
from supervisord_py.pipes.execution import (
    ErrorType,
    Execution,
    Group,
    Outcome,
    Plan,
    Preset,
    Status,
    Trigger,
    Usage,
)
from supervisord_py.pipes.models import Fingerprint, PipeDefinition, RetryRules, RunLimits
from supervisord_py.pipes.running import freezing
from supervisord_py.pipes.running.conclusion import counted, is_incomplete
from supervisord_py.pipes.running.freezing import Ceilings, Order, Window
from supervisord_py.pipes.running.run_terms import RunTag, decode_tag
from supervisord_py.pipes.running.spool import Utf8Check, head_tail, row_text
from supervisord_py.pipes.running.starting import DailyBudget, budget_refusal, day_start
from supervisord_py.pipes.schedule import Manual
from supervisord_py.pipes.scheduler import Clocks, Resumes, whole_ms

HERE = Path("/nowhere")
CONFIG = PipesConfig(HERE, HERE, HERE, HERE, HERE, "/nowhere/sock")
DEFINITION = PipeDefinition("p", HERE, HERE / "pipe.md", Fingerprint(1, 1, 1, 1, ""), Manual(), "manual", "body")
BY_HAND = Order(Trigger.MANUAL, Group.MANUAL)


def an_execution(**changes: object) -> Execution:
    plan = Plan("pi", ("a", "b"), 12.5, fallbacks=(Preset("two", model="m2"),), context={"event": "x", "n": [1]})
    made = Execution(7, "p", Status.FAILED, Trigger.EVENT, Group.EVENT, 1.5, plan, Preset("one", "openai", "m"))
    return replace(made, usage=Usage(1, 2, 3, 4, 10, 0.5, 2), error_type=ErrorType.CRASH, stdout="é", **changes)


def test_an_execution_comes_back_from_its_row_as_it_was() -> None:
    assert rows.execution_of(rows.row_of(an_execution())) == an_execution()


def test_a_row_that_is_damaged_or_newer_is_read_as_far_as_it_goes() -> None:
    row = replace(
        rows.row_of(an_execution()), plan="{", preset_snapshot="[]", status="odd", error_type="new", trigger="t"
    )
    found = rows.execution_of(row)
    assert (found.status, found.error_type, found.trigger) == (Status.FAILED, ErrorType.UNKNOWN, Trigger.MANUAL)
    assert (found.plan, found.preset) == (Plan("pi", timeout_seconds=12.5), Preset("one", "openai", "m"))
    newer = replace(row, plan='{"timeout_seconds": 3, "of_tomorrow": 1}')
    assert rows.execution_of(newer).plan == Plan("pi", timeout_seconds=3)


@given(st.text(max_size=300), st.integers(8, 60))
@example("a fitting text", 60)
@example("a" * 100, 8)
@example("aé" * 50, 21)
@example("a€" * 50, 21)
@example("a😀" * 50, 21)
def test_the_text_of_a_row_is_all_or_head_and_tail_with_whole_characters(text: str, limit: int) -> None:
    data = text.encode("utf-8", "replace")
    head, tail = head_tail(len(data), limit)
    made = row_text(data[:head], data[len(data) - tail :] if tail else b"", len(data), len(data))
    if len(data) <= limit:
        assert made == data.decode()
        return
    first, _, last = made.partition("\n[... ")
    last = last.partition(" bytes left out ...]\n")[2]
    assert data.decode().startswith(first)
    assert data.decode().endswith(last)
    assert head - 4 <= len(first.encode()) <= head
    assert tail - 4 <= len(last.encode()) <= tail
    missing = len(data) - len(first.encode()) - len(last.encode())
    assert f"[... {missing} bytes left out ...]" in made


@pytest.mark.parametrize("data", [b"\xff\xfe\x80" * 40, b"\x80" * 100])
def test_bytes_that_are_no_text_are_replaced_in_a_row(data: bytes) -> None:
    head, tail = head_tail(len(data), 32)
    assert "�" in row_text(data[:head], data[-tail:], len(data), len(data))


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
@example("aé€😀".encode(), [2, 4, 5, 7, 9])
@example("aé€😀".encode()[:-1], [8])
@example(b"\xc3(a", [1, 2])
def test_whether_a_stream_is_text_does_not_depend_on_its_pieces(data: bytes, cuts: list[int]) -> None:
    check = Utf8Check()
    at = 0
    for cut in [*sorted(cut for cut in cuts if cut <= len(data)), len(data)]:
        check.feed(data[at:cut])
        check = Utf8Check(check.open_bytes, is_valid=check.is_valid)
        at = cut
    check.end()
    try:
        data.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert check.is_valid is expected


def test_windows_are_chained_and_capped() -> None:
    limits = SchedulerLimits(window_max_seconds=100.0, window_default_seconds=30.0)
    assert freezing.window(None, None, 1000.0, limits) == Window(970.0, 1000.0)
    assert freezing.window(None, 50.0, 1000.0, limits) == Window(950.0, 1000.0)
    assert freezing.window(980.0, 50.0, 1000.0, limits) == Window(980.0, 1000.0)
    assert freezing.window(2.0, 50.0, 1000.0, limits) == Window(900.0, 1000.0)
    assert freezing.window(2000.0, None, 1000.0, limits) == Window(1000.0, 1000.0)


def test_a_plan_takes_the_word_of_the_run_then_of_the_pipe_then_of_the_adapter_then_of_the_daemon() -> None:
    plain = freezing.plan_of(DEFINITION, (), Ceilings(), BY_HAND, CONFIG)
    assert (plain.timeout_seconds, plain.max_turns, plain.retries, plain.max_cost) == (300.0, 200, 2, None)
    pipe = structs.replace(
        DEFINITION, timeout_seconds=50.0, limits=RunLimits(turns=3, memory_bytes=9), retries=RetryRules(0)
    )
    own = freezing.plan_of(pipe, (), Ceilings(7, 8, 9.0), BY_HAND, CONFIG)
    assert (own.timeout_seconds, own.max_turns, own.max_tokens, own.max_cost) == (50.0, 3, 8, 9.0)
    assert (own.retries, own.memory_bytes) == (0, 9)
    hurried = freezing.plan_of(pipe, (), Ceilings(), replace(BY_HAND, timeout_seconds=1e9), CONFIG)
    assert hurried.timeout_seconds == CONFIG.timeout_max_seconds
    assert hurried.warnings == ("timeout: 1e+09 s is cut to 86400 s (pipes.timeout_max_seconds)",)
    assert "pipes.timeout_max_seconds" in freezing.too_late(hurried)
    assert (own.warnings, freezing.too_late(own)) == ((), "did not end within 50 s (timeout)")
    assert freezing.timeout_doubts(pipe, CONFIG) == ()
    assert len(freezing.timeout_doubts(pipe, replace(CONFIG, timeout_max_seconds=49.0))) == 1


FAILED = Outcome(Status.FAILED, ErrorType.CRASH)
DONE = Outcome(Status.COMPLETED)


@pytest.mark.parametrize(
    ("outcome", "goes_on", "becomes"),
    [
        (FAILED, False, 5),
        (FAILED, True, 4),
        (Outcome(Status.TIMED_OUT, ErrorType.TIMEOUT), False, 5),
        (DONE, False, 0),
        (Outcome(Status.CANCELLED, ErrorType.CANCELLED), False, 4),
        (Outcome(Status.FAILED, ErrorType.INTERRUPTED), False, 4),
        (Outcome(Status.FAILED, ErrorType.SHUTDOWN), False, 4),
    ],
)
def test_failures_in_a_row_are_counted(*, outcome: Outcome, goes_on: bool, becomes: int) -> None:
    row = PipeStateRow("p", consecutive_failures=4)
    after = counted(row, an_execution(context_end=5.0), outcome, 9.0, goes_on=goes_on).applied(row)
    assert after.consecutive_failures == becomes
    assert (after.last_success_at, after.last_context_end) == ((9.0, 5.0) if outcome is DONE else (None, None))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (DONE, False),
        (Outcome(Status.FAILED, ErrorType.AUTH_FAILED), False),
        (FAILED, True),
        (Outcome(Status.TIMED_OUT, ErrorType.TIMEOUT), True),
        (Outcome(Status.CANCELLED, ErrorType.CANCELLED), True),
        (Outcome(Status.FAILED, ErrorType.INTERRUPTED), True),
    ],
)
def test_what_was_cut_off_may_be_half_done(outcome: Outcome, *, expected: bool) -> None:
    assert is_incomplete(outcome) is expected


def test_a_daily_budget_says_what_was_used_of_how_much() -> None:
    budget = DailyBudget(100, 0.5, "the budget is")
    assert budget_refusal(budget, UsageSum(1, 99, 0.49)) is None
    assert budget_refusal(budget, UsageSum(1, 100, 0.0)) == "the budget is used up: 100 tokens today of 100"
    assert budget_refusal(budget, UsageSum(1, 0, 0.5)) == "the budget is used up: 0.5000 USD today of 0.5"
    assert DailyBudget(None, None, "").is_empty
    noon_in_berlin = 1793014200.0  # 2026-10-26 11:30 UTC, the day after the clocks were set back
    assert noon_in_berlin - day_start(noon_in_berlin, "Europe/Berlin") == 12.5 * 3600


@given(st.integers(), st.floats(0, 1e9), st.sampled_from(["nobody", "timeout"]), st.none() | st.text(max_size=9))
@example(7, 1.5, "nobody", None)
def test_a_tag_comes_back_as_it_was(execution: int, deadline: float, cause: str, detail: str | None) -> None:
    tag = RunTag(execution, deadline, cause, detail)
    assert decode_tag(tag.encode()) == tag


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"v": 2}', '{"v": 1}', RunTag(1, 2.0, "whim").encode()])
def test_a_tag_that_is_none_of_ours_is_not_guessed_at(text: str) -> None:
    assert decode_tag(text) is None


def test_a_resume_is_noticed_once() -> None:
    clock = {"boot": 100.0, "awake": 50.0}
    clocks = Clocks(lambda: 0.0, lambda: clock["boot"], lambda: clock["awake"])
    resumes = Resumes(clocks)
    clock.update(boot=200.0, awake=149.0)
    assert (resumes.look(), resumes.resumed_at) == (0.0, None)
    clock.update(boot=300.0, awake=150.0)
    assert (resumes.look(), resumes.resumed_at) == (100.0, 300.0)
    assert (resumes.look(), resumes.resumed_at) == (0.0, 300.0)


def test_a_look_that_was_stopped_between_two_clocks_is_no_resume() -> None:
    clock = {"boot": 100.0, "awake": 50.0}
    stalls: list[float] = []

    def stall(name: str) -> float:
        found = clock[name]
        pause = stalls.pop(0) if stalls else 0.0
        clock.update(boot=clock["boot"] + pause, awake=clock["awake"] + pause)
        return found

    resumes = Resumes(Clocks(lambda: 0.0, lambda: stall("boot"), lambda: stall("awake")))
    stalls += [7.0]
    assert [resumes.look() for _ in range(2)] == [0.0, 0.0]


@given(st.floats(0, 4e9))
def test_times_of_rows_have_whole_milliseconds_and_are_never_later(seconds: float) -> None:
    assert 0 <= seconds - whole_ms(seconds) < 0.001001
    assert whole_ms(whole_ms(seconds)) in {whole_ms(seconds), whole_ms(seconds) - 0.001}
