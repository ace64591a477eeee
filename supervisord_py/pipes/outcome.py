"""How an execution ended, why it failed, and whether a retry follows: pure decisions over text and
numbers.

`judge` decides in this order: what we ended has our reason; an error that the agent's stream ends
with is a failure whatever the exit code; a complete answer is a success even where the process had
to be stopped; only then does the exit code speak.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec import structs

from supervisord_py.ledger.pipes import ErrorType, Outcome, Plan, Preset, Status, Usage
from supervisord_py.pipes.models import RetryRules
from supervisord_py.pipes.streams import Summary
from supervisord_py.process.model import Reason

MESSAGE_CHARS = 2000
_REASON_CHARS = 500  # of an error that is not the reason of the end
_FLAGS = re.MULTILINE | re.IGNORECASE


class ErrorPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression of an adapter, searched without regard to case, and what it means."""

    type: ErrorType
    pattern: str


class SuccessRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an agent has succeeded. `scan_output`: look for the adapter's error patterns also after
    a good exit.

    `require`: something other than white space on stdout, or a last answer with text that ended
    normally. `provider_errors`: whether what a failed agent printed may be the error of a provider.
    Without it only the adapter's own patterns are looked for: what a program that talks to no model
    prints means nothing of the kind.
    """

    exit: tuple[int, ...] = (0,)
    require: Literal["nothing", "text", "final_text"] = "final_text"
    scan_output: bool = False
    provider_errors: bool = True


class Cause(StrEnum):
    """Why we ended an execution ourselves; NOBODY where it ended by itself."""

    NOBODY = "nobody"
    SETTLED = "settled"
    TIMEOUT = "timeout"
    SILENT = "silent"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    OUTPUT = "output"
    BROKE = "broke"  # by a defect of ours


_ENDED_BY_US: dict[Cause, tuple[Reason, Status, ErrorType, str]] = {
    Cause.CANCELLED: (Reason.CANCELLED, Status.CANCELLED, ErrorType.CANCELLED, "cancelled"),
    Cause.TIMEOUT: (
        Reason.TIMEOUT,
        Status.TIMED_OUT,
        ErrorType.TIMEOUT,
        "did not end within its timeout",
    ),
    Cause.SILENT: (
        Reason.TIMEOUT,
        Status.TIMED_OUT,
        ErrorType.TIMEOUT,
        "said nothing after the machine woke up",
    ),
    Cause.SHUTDOWN: (
        Reason.SHUTDOWN,
        Status.FAILED,
        ErrorType.SHUTDOWN,
        "ended by the stop of the daemon",
    ),
    Cause.INTERRUPTED: (
        Reason.INTERRUPTED,
        Status.FAILED,
        ErrorType.INTERRUPTED,
        "interrupted by system restart",
    ),
    Cause.BUDGET: (
        Reason.RUNTIME_LIMIT,
        Status.FAILED,
        ErrorType.BUDGET_EXCEEDED,
        "used more than it may",
    ),
    Cause.OUTPUT: (
        Reason.RUNTIME_LIMIT,
        Status.FAILED,
        ErrorType.RESOURCE_LIMIT,
        "wrote more than it may",
    ),
    Cause.BROKE: (Reason.STOPPED, Status.FAILED, ErrorType.UNKNOWN, "pxd failed"),
}
REASONS = {Cause.SETTLED: Reason.EXIT, **{cause: row[0] for cause, row in _ENDED_BY_US.items()}}
"""The words of CONTRACT §7 for the ends of processes that we ended."""


class ExitInfo(msgspec.Struct, frozen=True):
    """All that is known when nothing of an execution runs any more."""

    cause: Cause
    code: int | None = None  # of the leader, as is `signal`; both None where nobody knows
    signal: int | None = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    # why the cause came: the timeout in words, the ceiling, what survived the stop
    detail: str | None = None


# -- what a failure's words mean -------------------------------------------------------------------


def _status(codes: str) -> str:
    """Return the pattern of an HTTP status where a status stands: at a line's beginning, or
    after such a word.
    """
    words = r"status|http(?:/[\d.]+)?|error|code|status code|with|got|returned|api"
    return rf"(?:^\W*|(?:{words})[\s:=\"'(\[]{{1,4}})(?:{codes})(?![\w.-]*\w|%)"


# The first row that fits counts. A spent quota is told as a 429, too: quota comes before rate.
TABLE: dict[ErrorType, tuple[str, ...]] = {
    ErrorType.AGENT_INCOMPATIBLE: (
        r"does not provide an export named|webidl\.util|ERR_REQUIRE_ESM",
        r"^Node\.js v\d+|unsupported node(?:\.js)? version",
    ),
    ErrorType.SAFETY_REFUSAL: (
        r"content_filter|content_policy_violation|safety_refusal|stop.?reason\W{1,4}refusal",
        r"flagged (?:as|for) (?:possible|potential)|blocked (?:due to|by) safety",
    ),
    ErrorType.QUOTA_EXHAUSTED: (
        r"insufficient_quota|quota[_ ]exhausted|quota exceeded|exceeded your current quota",
        r"exhausted your (?:\w+ )?quota",
        r"insufficient[_ .]credits?|credits_exhausted|credit balance is too "
        r"low|daily_(?:cost_)?limit_exceeded",
        r"billing_(?:hard_limit|not_active)|check your plan and billing|usage limit reached",
        _status("402"),
    ),
    ErrorType.RATE_LIMITED: (
        r"rate[_ -]?limit|too many requests|overloaded_error|resource[_ ](?:has been )?exhausted",
        _status("429|529"),
    ),
    ErrorType.AUTH_FAILED: (
        r"invalid[_ ]api[_ ]key|incorrect api key|no api key found|not logged in|failed to "
        r"authenticate",
        r"authentication[_ ](?:error|failed)|missing environment "
        r"variable|\bunauthorized\b|\bpermission_denied\b",
        r"credential store read failed|must specify the \w+_API_KEY|invalid x-api-key",
        _status("401|403"),
    ),
    ErrorType.MODEL_NOT_FOUND: (
        r"model_not_found|model_not_allowed|unknown (?:model|provider)|try pulling it first",
        r"models?\b.{0,80}?\b(?:does not exist|not found|is not (?:available|supported))",
        r"not_found_error\W{1,4}message\W{1,4}model",
        _status("404") + r".{0,200}?model",
    ),
    ErrorType.CONTEXT_OVERFLOW: (
        r"context_length_exceeded|maximum context length|request too large|prompt is too long",
        r"context window exceeded|input is too long|ran out of room in the model's context window",
        r"exceeds the (?:context window|maximum number of (?:input )?tokens)",
        _status("413"),
    ),
    ErrorType.PROVIDER_ERROR: (
        r"server_error|internal server error|bad gateway|service unavailable|gateway time-?out",
        r"\bis (?:currently )?overloaded",
        r"stream ended without (?:a )?finish[_ ]reason|empty or malformed response|incomplete JSON "
        r"segment",
        r"failed to parse JSON|stream closed before response\.completed|experiencing high demand",
        r"in JSON at position|JSON parse error|is not valid JSON|malformed "
        r"server-sent|provider_protocol|api_error",
        _status(r"5\d\d"),
    ),
    ErrorType.NETWORK: (
        r"connection (?:error|refused|reset|dropped)|socket hang up|fetch failed|error sending "
        r"request",
        r"stream disconnected before completion",
        r"\b(?:ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EPIPE)\b",
        r"(?<![a-z])terminated(?:$|[:\]]| \()",
        r"network (?:error|is unreachable)|certificate verify failed",
        r"name or service not known|temporary failure in name resolution",
    ),
    ErrorType.DISK_FULL: (r"ENOSPC|no space left on device|disk quota exceeded",),
}
_COMPILED = tuple(
    (kind, re.compile("|".join(patterns), _FLAGS)) for kind, patterns in TABLE.items()
)
_MEMBER = re.compile(
    r'"(code|type|status|message|error|errorMessage|reason|detail)"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\d+))'
)
_SCAN_CHARS = 256 * 1024


def classify(
    text: str, patterns: Sequence[ErrorPattern] = (), *, provider_errors: bool = True
) -> ErrorType | None:
    """Return what a failure's words mean, None where no row fits. Only failed executions: an answer
    may quote "429".

    The adapter's own `patterns` are asked first, then, with `provider_errors`, what JSON objects in
    the text say of errors, then the text itself (its last 256 KiB).
    """
    text = text[-_SCAN_CHARS:]
    for each in patterns:
        if re.search(each.pattern, text, _FLAGS):
            return each.type
    if not provider_errors:
        return None
    # JSON inside of a JSON text has its quotes behind backslashes, more of them at each level.
    plain = re.sub(r"\\+[nrt]", " ", re.sub(r'\\+"', '"', text))
    told = "\n".join(f"{name}: {said or number}" for name, said, number in _MEMBER.findall(plain))
    for words in (told, text):
        for kind, pattern in _COMPILED:
            if pattern.search(words):
                return kind
    return None


_AFTER = re.compile(
    r"(?:retry[_ -]?after(?:[_ -]?(ms)|[_ -]?seconds?)?|reset_in)[\"'\s:=]{1,4}(\d+(?:\.\d+)?)",
    _FLAGS,
)
_SPOKEN = re.compile(
    r"(?:(?:try|retry|retrying|wait|again|reset)\w*)(?:\s+(?:again|after|for|in|at least))*\s+"
    r"(?:(\d+)\s*h(?:ours?|rs?)?\s*)?(?:(\d+)\s*m(?:in(?:ute)?s?)?(?![a-z])\s*)?"
    r"(?:(\d+(?:\.\d+)?)\s*(?:(m)(?:s|illiseconds?)|s(?:ec(?:ond)?s?)?)(?![a-z]))?",
    _FLAGS,
)


def hint_seconds(text: str) -> float | None:
    if found := _AFTER.search(text):
        return float(found[2]) * (0.001 if found[1] else 1.0)
    for spoken in _SPOKEN.finditer(text):
        hours, minutes, amount, milli = spoken.groups()
        if hours or minutes or amount:
            return (
                int(hours or 0) * 3600.0
                + int(minutes or 0) * 60.0
                + float(amount or 0) * (0.001 if milli else 1.0)
            )
    return None


# -- how it ended ----------------------------------------------------------------------------------

_NORMAL = frozenset((None, "stop", "end_turn", "stop_sequence", "success"))
_REFUSED = frozenset(("refusal", "content_filter", "content-filter", "safety"))
_CUT_OFF = "the answer was cut off at the token limit"
_IN_A_TOOL = "the run ended in the middle of a tool call"
_UNFINISHED = {
    "length": _CUT_OFF,
    "max_tokens": _CUT_OFF,
    "toolUse": _IN_A_TOOL,
    "tool_use": _IN_A_TOOL,
}


def judge(
    ended: ExitInfo,
    summary: Summary,
    rule: SuccessRule,
    errors: Sequence[ErrorPattern] = (),
    *,
    allow_empty: bool,
) -> Outcome:
    if ended.cause in _ENDED_BY_US:
        _, status, error_type, words = _ENDED_BY_US[ended.cause]
        ending = ended.detail or words
        last_error = (
            _last_error(ended, summary, rule, errors) if ended.cause is Cause.TIMEOUT else None
        )
        if last_error:
            ending = f"{ending}; the last error it told: {last_error}"
        return Outcome(status, error_type, ending)
    if summary.stop_reason in _REFUSED:
        return _failed(
            ErrorType.SAFETY_REFUSAL, summary.error_message or "the model refused to answer"
        )
    if (message := summary.error_message) is not None:
        error_type = summary.error_type or classify(message, errors) or ErrorType.UNKNOWN
        return _failed(error_type, message, hint_seconds(message))
    if ended.cause is not Cause.SETTLED and not (ended.signal is not None and summary.settled):
        if ended.signal is not None:
            name = next(
                (each.name for each in signals.Signals if each == ended.signal),
                f"signal {ended.signal}",
            )
            return _crashed(ended, summary, rule, errors, f"ended by {name}")
        if ended.code not in rule.exit:
            how = "ended, nobody knows how" if ended.code is None else f"exit code {ended.code}"
            return _crashed(ended, summary, rule, errors, how)
    if rule.scan_output and (hidden := _hidden_failure(ended, errors)):
        return hidden
    missing = _missing_output(summary, rule, allow_empty=allow_empty)
    return (
        Outcome(Status.COMPLETED) if missing is None else _failed(ErrorType.MISSING_OUTPUT, missing)
    )


def _last_error(
    ended: ExitInfo, summary: Summary, rule: SuccessRule, errors: Sequence[ErrorPattern]
) -> str | None:
    """Return the last error of an agent that tries again by itself until its time is over, None
    where it told none.
    """
    if summary.error_message is not None:
        return summary.error_message.strip()[:_REASON_CHARS]
    for line in reversed(ended.stderr_tail.splitlines()):
        if classify(line, errors, provider_errors=rule.provider_errors) is not None:
            return line.strip()[:_REASON_CHARS]
    return None


def _hidden_failure(ended: ExitInfo, errors: Sequence[ErrorPattern]) -> Outcome | None:
    for text in (ended.stderr_tail, ended.stdout_tail):
        for each in errors:
            if found := re.search(each.pattern, text, _FLAGS):
                line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
                return _failed(each.type, line, hint_seconds(text))
    return None


def _missing_output(summary: Summary, rule: SuccessRule, *, allow_empty: bool) -> str | None:
    wants_final = rule.require == "final_text"
    if wants_final and summary.stop_reason in _UNFINISHED:
        return _UNFINISHED[summary.stop_reason]
    has_text = summary.final_text.strip() if wants_final else summary.has_text
    if rule.require != "nothing" and not has_text and not allow_empty:
        if summary.garbage_lines and not summary.records:
            return (
                f"the agent wrote {summary.garbage_lines} lines that are not its format, and no "
                "answer"
            )
        return (
            "the agent ended well but gave no answer; the provider may have refused the request in "
            "silence"
        )
    if wants_final and summary.stop_reason not in _NORMAL:
        return f"the answer ended with {summary.stop_reason!r}"
    return None


def _crashed(
    ended: ExitInfo, summary: Summary, rule: SuccessRule, errors: Sequence[ErrorPattern], how: str
) -> Outcome:
    """Classify by what it printed: stderr first; the reason stands at the end, after pages of
    source and stack.
    """
    stdout = ended.stdout_tail
    # what a tool printed may quote any error in a record: only lines that are none count
    if summary.records:
        lines = (line.strip() for line in stdout.split("\n"))
        stdout = "\n".join(
            line for line in lines if not line.startswith("{") and not line.endswith("}")
        )
    texts = [text.strip() for text in (ended.stderr_tail, stdout)]
    for text in texts:
        if error_type := classify(text, errors, provider_errors=rule.provider_errors):
            return _failed(error_type, f"{how}: {text[-MESSAGE_CHARS // 2 :]}", hint_seconds(text))
    words = (texts[0] or texts[1])[-MESSAGE_CHARS // 2 :]
    return _failed(ErrorType.CRASH, f"{how}: {words}" if words else how)


def _failed(error_type: ErrorType, message: str, wait: float | None = None) -> Outcome:
    return Outcome(Status.FAILED, error_type, message.strip()[:MESSAGE_CHARS], wait)


def ceiling_exceeded(usage: Usage, plan: Plan) -> str | None:
    """Return a sentence that names the ceiling and what was used, None while all is within."""
    if plan.max_turns is not None and usage.turns > plan.max_turns:
        return f"took more than {plan.max_turns} turns (limits.turns)"
    if plan.max_tokens is not None and usage.total_tokens > plan.max_tokens:
        return f"used {usage.total_tokens} tokens of {plan.max_tokens} (limits.tokens)"
    if plan.max_cost is not None and usage.cost > plan.max_cost:
        return f"cost {usage.cost:.4f} USD of {plan.max_cost:g} (limits.cost)"
    return None


def ceiling_that_ends(summary: Summary, used: Usage, plan: Plan) -> str | None:
    """Return why a run is ended now, as a sentence that names the ceiling; None while it goes on.

    What the closing record of the agent tells is spent already. To stop it then would spare
    nothing, and would depend on how long its process takes to exit: such a run is judged by its
    end.
    """
    if summary.is_closed:
        return None
    return ceiling_exceeded(used, plan)


# -- what follows a failure ------------------------------------------------------------------------

# delay = first x growth^n, with jitter, up to the longest; a provider's hint wins.
GROWTH, LONGEST_SECONDS, JITTER = 3.0, 600.0, 0.2
_PASSING = frozenset((ErrorType.RATE_LIMITED, ErrorType.NETWORK, ErrorType.PROVIDER_ERROR))
_NO_OTHER_MODEL_HELPS = frozenset((
    ErrorType.CRASH, ErrorType.SAFETY_REFUSAL, ErrorType.CANCELLED, ErrorType.SHUTDOWN,
    ErrorType.INTERRUPTED, ErrorType.AGENT_NOT_FOUND, ErrorType.PRESET_NOT_FOUND,
    ErrorType.CONFIG_ERROR, ErrorType.DISK_FULL, ErrorType.AGENT_INCOMPATIBLE,
    ErrorType.BUDGET_EXCEEDED, ErrorType.RESOURCE_LIMIT,
))  # fmt: skip


def next_try(
    outcome: Outcome,
    plan: Plan,
    preset: Preset,
    retry_count: int,
    *,
    first: float,
    rules: RetryRules,
    chance: float,
) -> tuple[Plan, Preset, float | None] | None:
    """Decide on the retry of an execution: the next preset at once, the same again after some
    seconds, or nothing.

    `plan` and `preset` are what it was run with, `first` is the first delay in seconds where the
    pipe says nothing, `chance` in [0, 1) where in the jitter's range the delay falls.
    """
    error_type = outcome.error_type
    if error_type is None:
        return None
    if plan.fallbacks and error_type not in _NO_OTHER_MODEL_HELPS:
        return structs.replace(plan, fallbacks=plan.fallbacks[1:]), plan.fallbacks[0], None
    passes = error_type in _PASSING or (error_type is ErrorType.TIMEOUT and rules.on_timeout)
    if not passes or plan.retries <= 0:
        return None
    first = first if rules.delay_seconds is None else rules.delay_seconds
    delay = min(LONGEST_SECONDS, first * GROWTH ** min(retry_count, 64))
    if (hint := outcome.retry_after_seconds) is not None:
        delay = min(hint, LONGEST_SECONDS)
    # Jitter only ever adds, so that nobody comes too early.
    return structs.replace(plan, retries=plan.retries - 1), preset, delay * (1 + JITTER * chance)
