"""How an execution ended, why it failed, and what follows: tables that are asked row by row."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.ledger.pipes import ErrorType, Outcome, Plan, Preset, Status, Usage
from supervisord_py.pipes import outcome as outcomes
from supervisord_py.pipes.models import RetryRules
from supervisord_py.pipes.outcome import Cause, ExitInfo, SuccessRule, classify, hint_seconds, judge
from supervisord_py.pipes.streams import PARSERS, Summary

E = ErrorType
SAID: dict[ErrorType | None, list[str]] = {  # what no recording says: test_pipes_recorded.py
    E.AGENT_INCOMPATIBLE: [
        "TypeError: Cannot read properties of undefined (reading 'bind')\n\nNode.js v20.20.2\n"
    ],
    E.SAFETY_REFUSAL: [
        '{"error":{"code":"content_filter","message":"x"}}',
        "finish_reason: content_filter",
    ],
    E.QUOTA_EXHAUSTED: [
        "Your credit balance is too low to access the API",
        "Claude AI usage limit reached|1763",
    ],
    E.RATE_LIMITED: [
        '429: {"message":"slow down","type":"requests","code":null}',
        json.dumps({"error": {"error": ["x", {"code": "rate_limit"}]}}),
    ],
    E.AUTH_FAILED: [
        "No API key found for openai.",
        json.dumps({"message": json.dumps({"error": {"message": "x", "code": 401}})}),
        "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.",
        'retry 429: {"error": {"message": "x", "code": "invalid_api_key"}}',
        '{"error": ' * 20 + '"invalid_api_key"' + "}" * 20,
    ],
    E.MODEL_NOT_FOUND: [
        'Error: Unknown provider "x". Use --list-models',
        'model "llama9" not found, try pulling it first',
        '{"type":"error","error":{"type":"not_found_error","message":"model: claude-9"}}',
    ],
    E.CONTEXT_OVERFLOW: ["413 Request Entity Too Large"],
    E.PROVIDER_ERROR: [
        "502 <html><body>Bad Gateway</body></html>",
        "Unexpected token in JSON at position 31",
        "status code 503",
        "API Error: API returned an empty or malformed response (HTTP 200)",
        "API Error: Failed to parse JSON",
        "Model stream ended without a finish reason.",
        "Incomplete JSON segment at the end",
    ],
    E.NETWORK: [
        "connect ECONNREFUSED 127.0.0.1:9",
        "terminated",
        '{"a": 1} then plain: connection refused',
    ],
    E.DISK_FULL: ["OSError: [Errno 28] No space left on device"],
    None: [  # numbers in ids and words in prose mean nothing
        "",
        "the author wrote an article",
        "request id req_429_401",
        "processed 404 of 503 records",
        "Traceback: ValueError: 5003",
        "the process was terminated by the user",
        '{"n": 429, "list": [401, {"x": 1}], "ok": true}',
        '{"error": null, "message": false}',
    ],
}


@pytest.mark.parametrize(
    ("meant", "text"), [(kind, text) for kind, texts in SAID.items() for text in texts]
)
def test_what_providers_and_agents_say_is_understood(meant: ErrorType | None, text: str) -> None:
    assert classify(text) is meant
    assert set(outcomes.TABLE) == set(SAID) - {None}


def test_an_adapters_own_patterns_come_first() -> None:
    own = (outcomes.ErrorPattern(E.AUTH_FAILED, "rate limit of guests"),)
    assert classify("Rate limit of guests reached", own) is E.AUTH_FAILED
    assert classify("rate limit", own) is E.RATE_LIMITED


WAITS = {
    "Retry-After: 3": 3.0, '{"retry_after_seconds": 12.5}': 12.5, "retry-after-ms: 1500": 1.5,
    "reset_in=40": 40.0,
    "Please try again in 20s.": 20.0, "Please try again in 1m30s": 90.0, "try again in 6ms": 0.006,
    "Retrying in 60s (attempt 1/10)": 60.0, "please wait 15 seconds": 15.0,
    "try again in 2 hours": 7200.0,
    "try again after 3 minutes": 180.0, "try again later": None, "nothing of the kind": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), WAITS.items())
def test_what_a_provider_asks_to_wait(text: str, seconds: float | None) -> None:
    found = hint_seconds(text)
    assert found == seconds or math.isclose(found or 0, seconds or -1)


@given(st.text(max_size=300))
def test_no_text_can_raise(text: str) -> None:
    classify(text)
    hint_seconds(text)


GOOD = Summary(final_text="42", has_text=True, stop_reason="stop", settled=True, records=9)
NONE = Summary()
JSON_RULE = SuccessRule()
EXIT_RULE = SuccessRule(require="nothing")
TEXT_RULE = SuccessRule(require="text")
ENDS: list[tuple[ExitInfo, Summary, SuccessRule, ErrorType | None]] = [
    (ExitInfo(Cause.NOBODY, 0), GOOD, JSON_RULE, None),
    (ExitInfo(Cause.NOBODY, 0), NONE, EXIT_RULE, None),
    (ExitInfo(Cause.NOBODY, 0), NONE, TEXT_RULE, E.MISSING_OUTPUT),
    (ExitInfo(Cause.NOBODY, 0), Summary(stop_reason="stop"), JSON_RULE, E.MISSING_OUTPUT),
    (ExitInfo(Cause.NOBODY, 0), Summary(garbage_lines=3), JSON_RULE, E.MISSING_OUTPUT),
    (
        ExitInfo(Cause.NOBODY, 0),
        Summary(final_text="4", stop_reason="length"),
        JSON_RULE,
        E.MISSING_OUTPUT,
    ),
    (
        ExitInfo(Cause.NOBODY, 0),
        Summary(final_text="4", stop_reason="odd"),
        JSON_RULE,
        E.MISSING_OUTPUT,
    ),
    (ExitInfo(Cause.NOBODY, 0), Summary(error_message="what?"), JSON_RULE, E.UNKNOWN),
    (ExitInfo(Cause.NOBODY, 3, stderr_tail="boom"), NONE, EXIT_RULE, E.CRASH),
    (ExitInfo(Cause.NOBODY), NONE, EXIT_RULE, E.CRASH),
    (ExitInfo(Cause.NOBODY, 1), GOOD, JSON_RULE, E.CRASH),
    (ExitInfo(Cause.NOBODY, signal=100), NONE, EXIT_RULE, E.CRASH),
    (ExitInfo(Cause.NOBODY, signal=15), GOOD, JSON_RULE, None),
    (ExitInfo(Cause.SETTLED, signal=9), GOOD, JSON_RULE, None),
    (ExitInfo(Cause.SETTLED, signal=9), Summary(settled=True), JSON_RULE, E.MISSING_OUTPUT),
    (ExitInfo(Cause.CANCELLED), GOOD, JSON_RULE, E.CANCELLED),
    (ExitInfo(Cause.TIMEOUT), GOOD, JSON_RULE, E.TIMEOUT),
]


@pytest.mark.parametrize(("ended", "summary", "rule", "error"), ENDS)
def test_each_end_has_one_outcome(
    ended: ExitInfo, summary: Summary, rule: SuccessRule, error: ErrorType | None
) -> None:
    statuses = {None: Status.COMPLETED, E.CANCELLED: Status.CANCELLED, E.TIMEOUT: Status.TIMED_OUT}
    outcome = judge(ended, summary, rule, allow_empty=False)
    assert (outcome.status, outcome.error_type) == (statuses.get(error, Status.FAILED), error)
    assert (outcome.error_message is None) == (error is None)
    if error is E.MISSING_OUTPUT and summary.stop_reason == "stop":
        assert judge(ended, summary, rule, allow_empty=True).status is Status.COMPLETED


def test_failures_hidden_behind_exit_code_zero_are_found_by_the_adapters_patterns() -> None:
    errors = (outcomes.ErrorPattern(E.AUTH_FAILED, "AuthenticationError"),)
    scanning = SuccessRule(require="text", scan_output=True)
    ended = ExitInfo(Cause.NOBODY, 0, stdout_tail="one\nlitellm.AuthenticationError: no\ntwo")
    said = Summary(has_text=True)
    assert judge(ended, said, TEXT_RULE, errors, allow_empty=False).status is Status.COMPLETED
    found = judge(ended, said, scanning, errors, allow_empty=False)
    assert (found.error_type, found.error_message) == (
        E.AUTH_FAILED,
        "litellm.AuthenticationError: no",
    )
    plain = ExitInfo(Cause.NOBODY, 0, stdout_tail="done")
    assert judge(plain, said, scanning, errors, allow_empty=False).status is Status.COMPLETED


PLAIN_RULE = SuccessRule(require="nothing", provider_errors=False)


@pytest.mark.parametrize(
    "text", [text for texts in SAID.values() for text in texts] + ["503 rows imported", "500"]
)
def test_a_plain_command_is_judged_by_its_exit_code_alone(text: str) -> None:
    """Whatever it prints on either stream: what it means is not known, so nothing is run twice."""
    for ended in (
        ExitInfo(Cause.NOBODY, 1, None, text, "why"),
        ExitInfo(Cause.NOBODY, 1, None, "", text),
    ):
        outcome = judge(ended, NONE, PLAIN_RULE, allow_empty=False)
        assert (outcome.error_type, outcome.retry_after_seconds) == (E.CRASH, None)
    told = judge(
        ExitInfo(Cause.NOBODY, 1, None, text, "KeyError: 'price'"),
        NONE,
        PLAIN_RULE,
        allow_empty=False,
    )
    assert told.error_message == "exit code 1: KeyError: 'price'", (
        "what it complains of, not what it prints"
    )
    own = (outcomes.ErrorPattern(E.NETWORK, "printer is away"),)
    asked = ExitInfo(Cause.NOBODY, 1, None, text, "Printer is away")
    assert judge(asked, NONE, PLAIN_RULE, own, allow_empty=False).error_type is E.NETWORK, (
        "a row of agents.toml"
    )


RETRIES = "ERROR 429 Rate limit reached\nstill trying\n"


@pytest.mark.parametrize(
    ("stderr", "summary", "rule", "errors", "told"),
    [
        (RETRIES, NONE, JSON_RULE, (), "ERROR 429 Rate limit reached"),
        (
            "own words\n",
            NONE,
            PLAIN_RULE,
            (outcomes.ErrorPattern(E.NETWORK, "own words"),),
            "own words",
        ),
        ("", Summary(records=2, error_message="terminated"), JSON_RULE, (), "terminated"),
        ("all is well\n", Summary(records=1), JSON_RULE, (), None),
        # A plain program prints what it likes.
        (RETRIES, NONE, PLAIN_RULE, (), None),
    ],
)
def test_a_timeout_names_what_the_agent_tried_again(
    stderr: str,
    summary: Summary,
    rule: SuccessRule,
    errors: tuple[outcomes.ErrorPattern, ...],
    told: str | None,
) -> None:
    ended = ExitInfo(
        Cause.TIMEOUT, None, 15, stderr_tail=stderr, detail="did not end within 60 s (timeout)"
    )
    outcome = judge(ended, summary, rule, errors, allow_empty=False)
    assert (outcome.status, outcome.error_type) == (Status.TIMED_OUT, E.TIMEOUT)
    after = f"; the last error it told: {told}" if told else ""
    assert outcome.error_message == f"did not end within 60 s (timeout){after}"


def test_a_crash_is_told_by_the_end_of_stderr_and_by_what_is_no_record_on_stdout() -> None:
    """A tool's result may quote any error; what the program itself printed beside its records
    may not.
    """

    def crash(ended: ExitInfo, summary: Summary = NONE) -> tuple[ErrorType | None, str]:
        outcome = judge(ended, summary, JSON_RULE, allow_empty=False)
        return outcome.error_type, outcome.error_message or ""

    source = "x" * 57_000 + "\nERR_REQUIRE_ESM\n\nNode.js v20.20.2\n"
    kind, message = crash(ExitInfo(Cause.NOBODY, 1, stderr_tail=source))
    assert (kind, message.endswith("Node.js v20.20.2")) == (E.AGENT_INCOMPATIBLE, True)
    assert crash(ExitInfo(Cause.NOBODY, 7, stdout_tail="last")) == (E.CRASH, "exit code 7: last")
    quoted = '99 tokens"}\n{"type": "tool_result", "content": "HTTP 429"}\n{"type": "cut'
    assert crash(ExitInfo(Cause.NOBODY, 143, stdout_tail=quoted), Summary(records=3)) == (
        E.CRASH,
        "exit code 143",
    )
    plain = ExitInfo(Cause.NOBODY, 1, stdout_tail=f"{quoted}\nError: 401 no")
    assert crash(plain, Summary(records=3)) == (E.AUTH_FAILED, "exit code 1: Error: 401 no")


# -- what follows ----------------------------------------------------------------------------------

OWN = Preset("own")
PLAN = Plan("pi", retries=2, fallbacks=(Preset("b"), Preset("c")))
ALONE = Plan("pi", retries=1)


def follows(
    error: ErrorType | None, plan: Plan = ALONE, count: int = 0, wait: float | None = None,
    luck: float = 0.0,
    rules: RetryRules = RetryRules(),  # noqa: B008 - frozen
) -> tuple[Plan, Preset, float | None] | None:  # fmt: skip
    outcome = Outcome(Status.COMPLETED if error is None else Status.FAILED, error, "x", wait)
    return outcomes.next_try(outcome, plan, OWN, count, first=10.0, rules=rules, chance=luck)


def test_the_next_preset_is_tried_at_once_where_another_model_may_help() -> None:
    found = follows(E.TIMEOUT, PLAN)
    assert found is not None
    plan, preset, delay = found
    assert (preset.id, [it.id for it in plan.fallbacks], plan.retries, delay) == (
        "b",
        ["c"],
        2,
        None,
    )
    assert {kind for kind in ErrorType if follows(kind, PLAN) is not None} == {
        E.TIMEOUT, E.RATE_LIMITED, E.QUOTA_EXHAUSTED, E.MODEL_NOT_FOUND, E.AUTH_FAILED, E.NETWORK,
        E.CONTEXT_OVERFLOW, E.PREFLIGHT_FAILED, E.MISSING_OUTPUT, E.PROVIDER_ERROR, E.UNKNOWN,
    }  # fmt: skip


def test_only_what_passes_by_itself_is_tried_again_and_a_providers_word_wins() -> None:
    again = {kind for kind in ErrorType if follows(kind) is not None}
    assert again == {E.RATE_LIMITED, E.NETWORK, E.PROVIDER_ERROR}
    assert follows(E.TIMEOUT, rules=RetryRules(on_timeout=True)) is not None
    assert follows(E.NETWORK, Plan("pi", retries=0)) is None
    assert follows(None) is None
    assert follows(E.RATE_LIMITED, wait=42.0) == (Plan("pi", retries=0), OWN, 42.0)
    endless, own = (
        follows(E.RATE_LIMITED, wait=86400.0),
        follows(E.NETWORK, rules=RetryRules(delay_seconds=1.0)),
    )
    assert [it and it[2] for it in (endless, own)] == [outcomes.LONGEST_SECONDS, 1.0]
    delays = [it[2] or 0 for count in range(9) if (it := follows(E.NETWORK, count=count))]
    assert (delays, delays[-1]) == (sorted(delays), outcomes.LONGEST_SECONDS)


ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}
CALL = {"type": "message_end", "message": {**ANSWER, "stopReason": "toolUse"}}
LAST = {"type": "message_end", "message": {**ANSWER, "stopReason": "stop"}}
STEP = {"type": "step_finish", "part": {"reason": "stop"}}
CLOSED: dict[str, tuple[str, list[dict[str, Any]], bool]] = {
    "pi: a call": ("pi-jsonl", [CALL], False),
    "pi: the last answer": ("pi-jsonl", [CALL, LAST], True),
    "pi: another turn": ("pi-jsonl", [LAST, {"type": "turn_start"}], False),
    "pi: it tries again": ("pi-jsonl", [LAST, {"type": "auto_retry_start"}], False),
    "pi: done": ("pi-jsonl", [CALL, {"type": "agent_settled"}], True),
    "codex: a turn": ("codex-jsonl", [{"type": "turn.started"}], False),
    "codex: done": ("codex-jsonl", [{"type": "turn.completed", "usage": {}}], True),
    "claude: an answer": ("claude-json", [{"type": "assistant", "message": {"id": "1"}}], False),
    "claude: the last answer": (
        "claude-json",
        [{"type": "assistant", "message": {"stop_reason": "end_turn"}}],
        True,
    ),
    "claude: done": ("claude-json", [{"type": "result"}], True),
    "gemini: an answer": (
        "gemini-json",
        [{"type": "message", "role": "assistant", "content": "hi"}],
        False,
    ),
    "gemini: done": ("gemini-json", [{"type": "result", "status": "success"}], True),
    "opencode: a call": (
        "opencode-jsonl",
        [{"type": "step_finish", "part": {"reason": "tool-calls"}}],
        False,
    ),
    "opencode: the last answer": ("opencode-jsonl", [STEP], True),
    "opencode: another step": ("opencode-jsonl", [STEP, {"type": "step_start"}], False),
}


@pytest.mark.parametrize(("parser", "records", "is_closed"), CLOSED.values(), ids=CLOSED)
def test_a_ceiling_ends_no_run_whose_agent_has_told_its_last_answer(
    parser: str, records: list[dict[str, Any]], is_closed: bool
) -> None:
    stream = PARSERS[parser]()
    for record in records:
        stream.feed(json.dumps(record).encode() + b"\n")
    found = outcomes.ceiling_that_ends(stream.summary, Usage(cost=2.0), Plan("pi", max_cost=1.0))
    assert (found is None) is is_closed


def test_a_ceiling_is_named() -> None:
    for usage, plan, name in (
        (Usage(turns=3), Plan("pi", max_turns=2), "limits.turns"),
        (Usage(total_tokens=3), Plan("pi", max_tokens=2), "limits.tokens"),
        (Usage(cost=0.3), Plan("pi", max_cost=0.2), "limits.cost"),
    ):
        assert name in (outcomes.ceiling_exceeded(usage, plan) or "")
        assert outcomes.ceiling_exceeded(usage, Plan("pi")) is None
