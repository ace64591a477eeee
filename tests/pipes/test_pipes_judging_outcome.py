"""How an execution ended, why it failed, and what follows: tables that are asked row by row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.config import RetryLimits
from supervisord_py.pipes.execution import ErrorType, Outcome, Plan, Preset, Status, Usage
from supervisord_py.pipes.judging.classify import TABLE, classify, hint_seconds
from supervisord_py.pipes.judging.outcome import exceeded, judge
from supervisord_py.pipes.judging.retry import Done, FallBack, RetryIn, is_retryable, next_try
from supervisord_py.pipes.judging.values import Cause, Ending, ErrorPattern, Requirement, SuccessRule, Summary
from supervisord_py.pipes.models import RetryRules

E = ErrorType

SAID: dict[str, ErrorType] = {
    "SyntaxError: The requested module 'node:fs' does not provide an export named 'globSync'\n\nNode.js v20.20.2": (
        E.AGENT_INCOMPATIBLE
    ),
    "TypeError: webidl.util.markAsUncloneable is not a function": E.AGENT_INCOMPATIBLE,
    "TypeError: Cannot read properties of undefined (reading 'bind')\n\nNode.js v20.20.2\n": E.AGENT_INCOMPATIBLE,
    '{"error":{"code":"content_filter","message":"flagged"}}': E.SAFETY_REFUSAL,
    "finish_reason: content_filter": E.SAFETY_REFUSAL,
    '429: {"message":"You exceeded your current quota","code":"insufficient_quota"}': E.QUOTA_EXHAUSTED,
    "429 You exceeded your current quota, please check your plan and billing details": E.QUOTA_EXHAUSTED,
    "402 Payment Required": E.QUOTA_EXHAUSTED,
    "Your credit balance is too low to access the API": E.QUOTA_EXHAUSTED,
    "Claude AI usage limit reached|1763": E.QUOTA_EXHAUSTED,
    "429 Rate limit reached for requests": E.RATE_LIMITED,
    '429: {"message":"slow down","type":"requests","code":null}': E.RATE_LIMITED,
    "HTTP 429": E.RATE_LIMITED,
    "Error code: 429 - {'error': 'x'}": E.RATE_LIMITED,
    '529 {"type":"error","error":{"type":"overloaded_error"}}': E.RATE_LIMITED,
    "exceeded retry limit, last status: 429": E.RATE_LIMITED,
    '401: {"message":"Incorrect API key provided","code":"invalid_api_key"}': E.AUTH_FAILED,
    "No API key found for openai.": E.AUTH_FAILED,
    "Error code: 401 - nope": E.AUTH_FAILED,
    "API Error: 403 forbidden": E.AUTH_FAILED,
    "Not logged in · Please run /login": E.AUTH_FAILED,
    "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.": E.AUTH_FAILED,
    "Credential store read failed for openai: bad": E.AUTH_FAILED,
    "unexpected status 401 Unauthorized": E.AUTH_FAILED,
    '404: {"message":"The model `gpt-9` does not exist","code":"model_not_found"}': E.MODEL_NOT_FOUND,
    'Error: Unknown provider "x". Use --list-models': E.MODEL_NOT_FOUND,
    "404 no such model": E.MODEL_NOT_FOUND,
    'model "llama9" not found, try pulling it first': E.MODEL_NOT_FOUND,
    "author model not found": E.MODEL_NOT_FOUND,
    '{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}': E.MODEL_NOT_FOUND,
    '400: {"code":"context_length_exceeded"}': E.CONTEXT_OVERFLOW,
    "413 Request Entity Too Large": E.CONTEXT_OVERFLOW,
    "This model's maximum context length is 8192 tokens": E.CONTEXT_OVERFLOW,
    "500 Internal Server Error": E.PROVIDER_ERROR,
    "502 <html><body>Bad Gateway</body></html>": E.PROVIDER_ERROR,
    "Stream ended without finish_reason": E.PROVIDER_ERROR,
    "Unexpected token in JSON at position 31": E.PROVIDER_ERROR,
    "status code 503": E.PROVIDER_ERROR,
    "Connection error.": E.NETWORK,
    "connect ECONNREFUSED 127.0.0.1:9": E.NETWORK,
    "terminated": E.NETWORK,
    "terminated: read ECONNRESET": E.NETWORK,
    "getaddrinfo ENOTFOUND api.example": E.NETWORK,
    "OSError: [Errno 28] No space left on device": E.DISK_FULL,
}  # fmt: skip


@pytest.mark.parametrize(("text", "meant"), SAID.items())
def test_what_providers_and_agents_say_is_understood(text: str, meant: ErrorType) -> None:
    assert classify(text) is meant


def test_every_row_of_the_table_has_a_fixture() -> None:
    assert {kind for kind, _ in TABLE} == set(SAID.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the author wrote an article",
        "request id req_429_401",
        "took 0.429 s, 1401 files, 500 lines",
        "2026-11-21T04:29:40.401Z started",
        "processed 404 of 503 records",
        "Traceback: ValueError: 5003",
        "id: 42900",
        "the process was terminated by the user",
        '{"n": 429, "list": [401, {"x": 1}], "ok": true}',
        "[" * 5000,
        '{"error": null, "message": false}',
    ],
)
def test_numbers_in_ids_and_words_in_prose_mean_nothing(text: str) -> None:
    assert classify(text) is None


def test_json_comes_before_the_text_around_it() -> None:
    assert classify('retry 429: {"error": {"message": "x", "code": "invalid_api_key"}}') is E.AUTH_FAILED
    assert classify('{"a": 1} then plain: connection refused') is E.NETWORK
    deep: object = "invalid_api_key"
    for _ in range(20):
        deep = {"error": deep}
    import json

    assert classify(json.dumps({"error": {"error": ["x", {"code": "rate_limit"}]}})) is E.RATE_LIMITED
    assert classify(json.dumps(deep)) is E.AUTH_FAILED, "too deep for members, found as text"


def test_an_adapters_own_patterns_come_first() -> None:
    own = (ErrorPattern(E.AUTH_FAILED, "rate limit of guests"),)
    assert classify("Rate limit of guests reached", own) is E.AUTH_FAILED
    assert classify("rate limit", own) is E.RATE_LIMITED


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Retry-After: 3", 3.0),
        ('{"retry_after_seconds": 12.5}', 12.5),
        ("retry-after-ms: 1500", 1.5),
        ("reset_in=40", 40.0),
        ("Please try again in 20s.", 20.0),
        ("Please try again in 1m30s", 90.0),
        ("try again in 6ms", 0.006),
        ("Retrying in 60s (attempt 1/10)", 60.0),
        ("please wait 15 seconds", 15.0),
        ("try again in 2 hours", 7200.0),
        ("try again after 3 minutes", 180.0),
        ("try again later", None),
        ("nothing of the kind", None),
    ],
)
def test_what_a_provider_asks_to_wait(text: str, seconds: float | None) -> None:
    found = hint_seconds(text)
    assert found == seconds or math.isclose(found or 0, seconds or -1)


@given(st.text(max_size=300))
def test_no_text_can_raise(text: str) -> None:
    classify(text)
    hint_seconds(text)


GOOD = Summary(final_text="42", has_text=True, stop_reason="stop", settled=True, records=9)
JSON_RULE = SuccessRule()
EXIT_RULE = SuccessRule(require=Requirement.NOTHING)
TEXT_RULE = SuccessRule(require=Requirement.TEXT)


def ended(code: int | None = 0, **more: object) -> Ending:
    return Ending(Cause.NOBODY, code, **more)  # type: ignore[arg-type]  # names of its fields


def verdict(ending: Ending, summary: Summary = GOOD, rule: SuccessRule = JSON_RULE) -> tuple[Status, ErrorType | None]:
    outcome = judge(ending, summary, rule, allow_empty=False)
    assert (outcome.error_message is None) == (outcome.error_type is None)
    return outcome.status, outcome.error_type


@pytest.mark.parametrize(
    ("ending", "summary", "rule", "expected"),
    [
        (ended(), GOOD, JSON_RULE, (Status.COMPLETED, None)),
        (ended(), Summary(), EXIT_RULE, (Status.COMPLETED, None)),
        (ended(), Summary(has_text=True), TEXT_RULE, (Status.COMPLETED, None)),
        (ended(), Summary(), TEXT_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (ended(), Summary(stop_reason="stop"), JSON_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (ended(), Summary(garbage_lines=3), JSON_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (ended(), Summary(final_text="4", stop_reason="length"), JSON_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (ended(), Summary(final_text="4", stop_reason="odd"), JSON_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (ended(), Summary(final_text="4", stop_reason="refusal"), JSON_RULE, (Status.FAILED, E.SAFETY_REFUSAL)),
        (ended(), Summary(final_text="4", error_message="429 no"), JSON_RULE, (Status.FAILED, E.RATE_LIMITED)),
        (ended(), Summary(error_message="what?"), JSON_RULE, (Status.FAILED, E.UNKNOWN)),
        (ended(1, stderr_tail="401 no"), Summary(), EXIT_RULE, (Status.FAILED, E.AUTH_FAILED)),
        (ended(1, stdout_tail="Error code: 429"), Summary(), EXIT_RULE, (Status.FAILED, E.RATE_LIMITED)),
        (ended(3, stderr_tail="boom"), Summary(), EXIT_RULE, (Status.FAILED, E.CRASH)),
        (ended(3), Summary(), EXIT_RULE, (Status.FAILED, E.CRASH)),
        (ended(None), Summary(), EXIT_RULE, (Status.FAILED, E.CRASH)),
        (ended(1), GOOD, JSON_RULE, (Status.FAILED, E.CRASH)),
        (ended(None, signal=11), Summary(), EXIT_RULE, (Status.FAILED, E.CRASH)),
        (ended(None, signal=100), Summary(), EXIT_RULE, (Status.FAILED, E.CRASH)),
        (ended(None, signal=15), GOOD, JSON_RULE, (Status.COMPLETED, None)),
        (ended(None, signal=9, limit="memory_limit"), GOOD, JSON_RULE, (Status.FAILED, E.RESOURCE_LIMIT)),
        (Ending(Cause.SETTLED, None, 9), GOOD, JSON_RULE, (Status.COMPLETED, None)),
        (Ending(Cause.SETTLED, None, 9), Summary(settled=True), JSON_RULE, (Status.FAILED, E.MISSING_OUTPUT)),
        (Ending(Cause.CANCELLED), GOOD, JSON_RULE, (Status.CANCELLED, E.CANCELLED)),
        (Ending(Cause.TIMEOUT), GOOD, JSON_RULE, (Status.TIMED_OUT, E.TIMEOUT)),
        (Ending(Cause.SILENT), GOOD, JSON_RULE, (Status.TIMED_OUT, E.TIMEOUT)),
        (Ending(Cause.SHUTDOWN), GOOD, JSON_RULE, (Status.FAILED, E.SHUTDOWN)),
        (Ending(Cause.INTERRUPTED), GOOD, JSON_RULE, (Status.FAILED, E.INTERRUPTED)),
        (Ending(Cause.BUDGET, detail="too dear"), GOOD, JSON_RULE, (Status.FAILED, E.BUDGET_EXCEEDED)),
    ],
)
def test_each_ending_has_one_outcome(
    ending: Ending, summary: Summary, rule: SuccessRule, expected: tuple[Status, ErrorType | None]
) -> None:
    assert verdict(ending, summary, rule) == expected


def test_no_text_is_fine_where_the_pipe_allows_it() -> None:
    for rule in (JSON_RULE, TEXT_RULE):
        assert judge(ended(), Summary(stop_reason="stop"), rule, allow_empty=True).status is Status.COMPLETED


def test_failures_hidden_behind_exit_code_zero_are_found_by_the_adapters_patterns() -> None:
    rule = SuccessRule(require=Requirement.TEXT, patterns=(ErrorPattern(E.AUTH_FAILED, "AuthenticationError"),))
    scanning = SuccessRule(require=Requirement.TEXT, patterns=rule.patterns, scan_output=True)
    ending = ended(stdout_tail="one\nlitellm.AuthenticationError: no\ntwo")
    said = Summary(has_text=True)
    assert judge(ending, said, rule, allow_empty=False).status is Status.COMPLETED
    found = judge(ending, said, scanning, allow_empty=False)
    assert (found.error_type, found.error_message) == (E.AUTH_FAILED, "litellm.AuthenticationError: no")
    assert judge(ended(stdout_tail="fine"), said, scanning, allow_empty=False).status is Status.COMPLETED


def test_the_tail_of_stderr_is_what_a_crash_is_told_by() -> None:
    source = "x" * 57_000 + "\nERR_REQUIRE_ESM\n\nNode.js v20.20.2\n"
    outcome = judge(ended(1, stderr_tail=source), Summary(), JSON_RULE, allow_empty=False)
    assert outcome.error_type is E.AGENT_INCOMPATIBLE
    assert outcome.error_message is not None
    assert outcome.error_message.endswith("Node.js v20.20.2")
    assert (
        judge(ended(7, stdout_tail="last"), Summary(), EXIT_RULE, allow_empty=False).error_message
        == "exit code 7: last"
    )


def test_records_on_stdout_say_nothing_of_a_crash_but_other_lines_do() -> None:
    """A tool's result may quote any error; what the program itself printed beside its records may not."""
    quoted = '99 tokens"}\n{"type": "tool_result", "content": "HTTP 429"}\n{"type": "cut'
    said = Summary(records=3)
    outcome = judge(ended(143, stdout_tail=quoted), said, JSON_RULE, allow_empty=False)
    assert (outcome.error_type, outcome.error_message) == (E.CRASH, "exit code 143")
    plain = judge(ended(1, stdout_tail=f"{quoted}\nError: 401 no"), said, JSON_RULE, allow_empty=False)
    assert (plain.error_type, plain.error_message) == (E.AUTH_FAILED, "exit code 1: Error: 401 no")


def test_a_refusal_is_one_also_where_the_stream_calls_it_an_error() -> None:
    refused = Summary(stop_reason="refusal", error_message="I can't help with this")
    outcome = judge(ended(1), refused, JSON_RULE, allow_empty=False)
    assert (outcome.error_type, outcome.error_message) == (E.SAFETY_REFUSAL, "I can't help with this")


LIMITS = RetryLimits()
PLAN = Plan("pi", retries=2, fallbacks=(Preset("b"), Preset("c")))


def follows(
    error_type: ErrorType | None, plan: Plan, count: int = 0, wait: float | None = None, **rules: object
) -> object:
    status = Status.COMPLETED if error_type is None else Status.FAILED
    outcome = Outcome(status, error_type, "x", wait)
    return next_try(outcome, plan, count, limits=LIMITS, rules=RetryRules(**rules), chance=0.0)  # type: ignore[arg-type]


def test_the_next_preset_is_tried_at_once() -> None:
    found = follows(E.TIMEOUT, PLAN)
    assert isinstance(found, FallBack)
    assert (found.preset.id, [it.id for it in found.plan.fallbacks], found.plan.retries) == ("b", ["c"], 2)


@pytest.mark.parametrize(
    "error_type",
    [E.SAFETY_REFUSAL, E.CANCELLED, E.SHUTDOWN, E.INTERRUPTED, E.CONFIG_ERROR, E.BUDGET_EXCEEDED, E.AGENT_NOT_FOUND],
)
def test_what_no_other_model_cures_ends_it(error_type: ErrorType) -> None:
    assert isinstance(follows(error_type, PLAN), Done)


def test_only_what_passes_by_itself_is_tried_again() -> None:
    alone = Plan("pi", retries=1)
    for error_type in ErrorType:
        again = isinstance(follows(error_type, alone), RetryIn)
        assert again == (error_type in {E.RATE_LIMITED, E.NETWORK, E.PROVIDER_ERROR})
    assert isinstance(follows(E.TIMEOUT, alone, on_timeout=True), RetryIn)
    assert isinstance(follows(E.NETWORK, Plan("pi", retries=0)), Done)
    assert isinstance(follows(None, alone), Done)
    assert not is_retryable(None, RetryRules())


def test_a_providers_word_wins_over_the_backoff() -> None:
    alone = Plan("pi", retries=1)
    hinted = follows(E.RATE_LIMITED, alone, 0, 42.0)
    assert isinstance(hinted, RetryIn)
    assert (hinted.delay_seconds, hinted.plan.retries) == (42.0, 0)
    endless = follows(E.RATE_LIMITED, alone, 0, 86400.0)
    assert isinstance(endless, RetryIn)
    assert endless.delay_seconds == LIMITS.max_seconds
    own = follows(E.NETWORK, alone, delay_seconds=1.0)
    assert isinstance(own, RetryIn)
    assert own.delay_seconds == 1.0


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_grow_to_a_bound(count: int, chance: float) -> None:
    def delay(tries: int, luck: float) -> float:
        found = next_try(
            Outcome(Status.FAILED, E.NETWORK, "x"),
            Plan("pi", retries=1),
            tries,
            limits=LIMITS,
            rules=RetryRules(),
            chance=luck,
        )
        assert isinstance(found, RetryIn)
        return found.delay_seconds

    assert delay(count, 0.0) <= delay(count, chance) <= LIMITS.max_seconds * (1 + LIMITS.jitter)
    assert delay(count, 0.0) <= delay(count + 1, 0.0)


@pytest.mark.parametrize(
    ("usage", "plan", "names"),
    [
        (Usage(turns=3), Plan("pi", max_turns=2), "limits.turns"),
        (Usage(total_tokens=3), Plan("pi", max_tokens=2), "limits.tokens"),
        (Usage(cost=0.3), Plan("pi", max_cost=0.2), "limits.cost"),
    ],
)
def test_a_ceiling_is_named(usage: Usage, plan: Plan, names: str) -> None:
    assert names in (exceeded(usage, plan) or "")
    assert exceeded(Usage(), plan) is None
    assert exceeded(usage, Plan("pi")) is None
