"""How an execution ended: one decision over everything that is known when nothing of it runs any more.

Law, in this order: what we ended has our reason; a limit that the keeper enforced is the reason; an error that the
agent's stream ends with is a failure whatever the exit code; an answer that is complete is a success even where the
process had to be stopped; only then does the exit code speak. Text that was never asked for is no success.
"""

from __future__ import annotations

import re
import signal as signals
from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.judging.classify import classify, hint_seconds
from supervisord_py.pipes.judging.values import Cause, Requirement

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import Plan, Usage
    from supervisord_py.pipes.judging.values import Ending, SuccessRule, Summary


MESSAGE_CHARS = 2000
_NORMAL = frozenset((None, "stop", "end_turn", "stop_sequence", "success"))
_REFUSED = frozenset(("refusal", "content_filter", "safety"))
_UNFINISHED = {
    "length": "the answer was cut off at the token limit",
    "max_tokens": "the answer was cut off at the token limit",
    "toolUse": "the run ended in the middle of a tool call",
    "tool_use": "the run ended in the middle of a tool call",
}
_ENDED_BY_US: dict[Cause, tuple[Status, ErrorType, str]] = {
    Cause.CANCELLED: (Status.CANCELLED, ErrorType.CANCELLED, "cancelled"),
    Cause.TIMEOUT: (Status.TIMED_OUT, ErrorType.TIMEOUT, "did not end within its timeout"),
    Cause.SILENT: (Status.TIMED_OUT, ErrorType.TIMEOUT, "said nothing after the machine woke up"),
    Cause.SHUTDOWN: (Status.FAILED, ErrorType.SHUTDOWN, "ended by the stop of the daemon"),
    Cause.INTERRUPTED: (Status.FAILED, ErrorType.INTERRUPTED, "interrupted by system restart"),
    Cause.BUDGET: (Status.FAILED, ErrorType.BUDGET_EXCEEDED, "used more than it may"),
}


def judge(ending: Ending, summary: Summary, rule: SuccessRule, *, allow_empty: bool) -> Outcome:
    """Decide how an execution ended.

    Args:
        ending: How its process ended, and why.
        summary: What its stream came to.
        rule: When its agent has succeeded.
        allow_empty: No text is no failure.
    """
    ours = _ENDED_BY_US.get(ending.cause)
    if ours is not None:
        status, error_type, words = ours
        return Outcome(status, error_type, ending.detail or words)
    if ending.limit is not None:
        return _failed(ErrorType.RESOURCE_LIMIT, ending.detail or f"the keeper ended it: {ending.limit}")
    return _by_words(summary, rule) or _by_exit(ending, summary, rule, allow_empty=allow_empty)


def _by_words(summary: Summary, rule: SuccessRule) -> Outcome | None:
    """Return the failure that the stream itself tells of."""
    if summary.stop_reason in _REFUSED:
        return _failed(ErrorType.SAFETY_REFUSAL, summary.error_message or "the model refused to answer")
    if summary.error_message is not None:
        error_type = classify(summary.error_message, rule.patterns) or ErrorType.UNKNOWN
        return _failed(error_type, summary.error_message, hint_seconds(summary.error_message))
    return None


def _by_exit(ending: Ending, summary: Summary, rule: SuccessRule, *, allow_empty: bool) -> Outcome:
    stopped = ending.cause is Cause.SETTLED or (ending.signal is not None and summary.settled)
    if not stopped and ending.signal is not None:
        return _crashed(ending, summary, rule, f"ended by {_name(ending.signal)}")
    if not stopped and ending.code not in rule.exit_codes:
        return _crashed(ending, summary, rule, _exit_words(ending.code))
    hidden = _hidden(ending, rule) if rule.scan_output else None
    return hidden or _transcript(summary, rule, allow_empty=allow_empty)


def _hidden(ending: Ending, rule: SuccessRule) -> Outcome | None:
    """Look for the adapter's own patterns in what an agent printed that hides its failures behind exit code 0."""
    for text in (ending.stderr_tail, ending.stdout_tail):
        for each in rule.patterns:
            found = re.search(each.pattern, text, re.MULTILINE | re.IGNORECASE)
            if found is not None:
                line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
                return _failed(each.error_type, line, hint_seconds(text))
    return None


def _transcript(summary: Summary, rule: SuccessRule, *, allow_empty: bool) -> Outcome:
    """Judge by the words alone."""
    completed = Outcome(Status.COMPLETED)
    if rule.require is Requirement.NOTHING:
        return completed
    if rule.require is Requirement.FINAL_TEXT:
        unfinished = _UNFINISHED.get(summary.stop_reason or "")
        if unfinished is not None:
            return _failed(ErrorType.MISSING_OUTPUT, unfinished)
        if not summary.final_text.strip() and not allow_empty:
            return _failed(ErrorType.MISSING_OUTPUT, _silence(summary))
        if summary.stop_reason not in _NORMAL:
            return _failed(ErrorType.MISSING_OUTPUT, f"the answer ended with {summary.stop_reason!r}")
        return completed
    return completed if summary.has_text or allow_empty else _failed(ErrorType.MISSING_OUTPUT, _silence(summary))


def _silence(summary: Summary) -> str:
    if summary.garbage_lines and not summary.records:
        return f"the agent wrote {summary.garbage_lines} lines that are not its format, and no answer"
    return "the agent ended well but gave no answer; the provider may have refused the request in silence"


def _crashed(ending: Ending, summary: Summary, rule: SuccessRule, how: str) -> Outcome:
    """Classify by what it printed: stderr first, its last words count."""
    stdout = _unread(ending.stdout_tail) if summary.records else ending.stdout_tail
    for text in (ending.stderr_tail, stdout):
        error_type = classify(text, rule.patterns)
        if error_type is not None:
            return _failed(error_type, f"{how}: {_last_words(text)}", hint_seconds(text))
    words = _last_words(ending.stderr_tail) or _last_words(stdout)
    return _failed(ErrorType.CRASH, f"{how}: {words}" if words else how)


def _unread(text: str) -> str:
    """Return the lines that are no records, nor the end of one: what a tool printed may quote any error in a record."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if not line.startswith("{") and not line.endswith("}"))


def _failed(error_type: ErrorType, message: str, wait: float | None = None) -> Outcome:
    return Outcome(Status.FAILED, error_type, message.strip()[:MESSAGE_CHARS], wait)


def _last_words(text: str) -> str:
    """Return the end of a text: where the reason of a failure stands, after pages of source and stack."""
    return text.strip()[-MESSAGE_CHARS // 2 :]


def _exit_words(code: int | None) -> str:
    return "ended, nobody knows how" if code is None else f"exit code {code}"


def _name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exceeded(usage: Usage, plan: Plan) -> str | None:
    """Return a sentence that names the ceiling and what was used, None while all is within."""
    if plan.max_turns is not None and usage.turns > plan.max_turns:
        return f"took more than {plan.max_turns} turns (limits.turns)"
    if plan.max_tokens is not None and usage.total_tokens > plan.max_tokens:
        return f"used {usage.total_tokens} tokens of {plan.max_tokens} (limits.tokens)"
    if plan.max_cost is not None and usage.cost > plan.max_cost:
        return f"cost {usage.cost:.4f} USD of {plan.max_cost:g} (limits.cost)"
    return None
