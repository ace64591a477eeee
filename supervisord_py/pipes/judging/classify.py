"""Why an execution failed, read from what it said: an ordered table, the first row that fits wins.

Law: only failed executions are asked about (an answer may well quote "429"). JSON error objects in the text are read
before the text itself; quota comes before rate, because a spent quota is told as a 429, too; numbers count only where a
status stands, never inside ids and times.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from supervisord_py.pipes.judging.values import ErrorPattern

_STATUS = r"(?:^\W*|(?:status|http(?:/[\d.]+)?|error|code|status code|with|got|returned|api)[\s:=\"'(\[]{1,4})"
_PLACE = re.MULTILINE | re.IGNORECASE


def _status(codes: str) -> str:
    """Return the pattern of an HTTP status where a status stands: at a line's beginning, or after such a word."""
    return rf"{_STATUS}(?:{codes})(?![\w.-]*\w|%)"


TABLE: tuple[tuple[ErrorType, tuple[str, ...]], ...] = (
    (
        ErrorType.AGENT_INCOMPATIBLE,
        (
            r"does not provide an export named|webidl\.util|ERR_REQUIRE_ESM",
            r"^Node\.js v\d+|unsupported node(?:\.js)? version",
        ),
    ),
    (
        ErrorType.SAFETY_REFUSAL,
        (
            r"content_filter|content_policy_violation|safety_refusal|stop.?reason\W{1,4}refusal",
            r"flagged (?:as|for) (?:possible|potential)|blocked (?:due to|by) safety",
        ),
    ),
    (
        ErrorType.QUOTA_EXHAUSTED,
        (
            r"insufficient_quota|quota[_ ]exhausted|quota exceeded|exceeded your current quota",
            r"exhausted your (?:\w+ )?quota",
            r"insufficient[_ .]credits?|credits_exhausted|credit balance is too low|daily_(?:cost_)?limit_exceeded",
            r"billing_(?:hard_limit|not_active)|check your plan and billing|usage limit reached",
            _status("402"),
        ),
    ),
    (
        ErrorType.RATE_LIMITED,
        (
            r"rate[_ -]?limit|too many requests|overloaded_error|resource[_ ](?:has been )?exhausted",
            _status("429|529"),
        ),
    ),
    (
        ErrorType.AUTH_FAILED,
        (
            r"invalid[_ ]api[_ ]key|incorrect api key|no api key found|not logged in|failed to authenticate",
            r"authentication[_ ](?:error|failed)|missing environment variable|\bunauthorized\b|\bpermission_denied\b",
            r"credential store read failed|must specify the \w+_API_KEY|invalid x-api-key",
            _status("401|403"),
        ),
    ),
    (
        ErrorType.MODEL_NOT_FOUND,
        (
            r"model_not_found|model_not_allowed|unknown (?:model|provider)|try pulling it first",
            r"models?\b.{0,80}?\b(?:does not exist|not found|is not (?:available|supported))",
            r"not_found_error\W{1,4}message\W{1,4}model",
            _status("404") + r".{0,200}?model",
        ),
    ),
    (
        ErrorType.CONTEXT_OVERFLOW,
        (
            r"context_length_exceeded|maximum context length|request too large|prompt is too long",
            r"context window exceeded|input is too long|ran out of room in the model's context window",
            r"exceeds the (?:context window|maximum number of (?:input )?tokens)",
            _status("413"),
        ),
    ),
    (
        ErrorType.PROVIDER_ERROR,
        (
            r"server_error|internal server error|bad gateway|service unavailable|gateway time-?out",
            r"\bis (?:currently )?overloaded",
            r"stream ended without finish_reason|stream closed before response\.completed|experiencing high demand",
            r"in JSON at position|JSON parse error|is not valid JSON|malformed server-sent|provider_protocol|api_error",
            _status(r"5\d\d"),
        ),
    ),
    (
        ErrorType.NETWORK,
        (
            r"connection (?:error|refused|reset|dropped)|socket hang up|fetch failed|error sending request",
            r"stream disconnected before completion",
            r"\b(?:ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EPIPE)\b|(?<![a-z])terminated(?:$|[:\]]| \()",
            r"network (?:error|is unreachable)|certificate verify failed",
            r"name or service not known|temporary failure in name resolution",
        ),
    ),
    (ErrorType.DISK_FULL, (r"ENOSPC|no space left on device|disk quota exceeded",)),
)
"""Rows in order. Searched without regard to case, `^` and `$` at each line."""

_COMPILED = tuple((kind, re.compile("|".join(patterns), _PLACE)) for kind, patterns in TABLE)
_JSON_MEMBERS = ("code", "type", "status", "message", "error", "errorMessage", "reason", "detail")
_JSON_START = re.compile(r"[{\[]")
_OBJECTS_MAX = 64
_SCAN_CHARS = 256 * 1024


def classify(text: str, patterns: Sequence[ErrorPattern] = ()) -> ErrorType | None:
    """Return what a failure's words mean, None where no row fits.

    Args:
        text: Of the failure; only the last 256 KiB count.
        patterns: The adapter's own, asked first.
    """
    text = text[-_SCAN_CHARS:]
    for each in patterns:
        if re.search(each.pattern, text, _PLACE):
            return each.error_type
    for words in _json_errors(text):
        found = _first(words)
        if found is not None:
            return found
    return _first(text)


def _first(text: str) -> ErrorType | None:
    return next((kind for kind, pattern in _COMPILED if pattern.search(text)), None)


def _json_errors(text: str) -> Iterator[str]:
    """Yield the words of each JSON object in the text: members that tell of errors, one a line."""
    decoder, place, seen = json.JSONDecoder(), 0, 0
    while seen < _OBJECTS_MAX and (match := _JSON_START.search(text, place)):
        seen += 1
        try:
            found, place = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            place = match.start() + 1
            continue
        words = "\n".join(_words(found, 0))
        if words:
            yield words


_DEPTH = 6


def _words(found: Any, depth: int) -> Iterable[str]:
    if depth > _DEPTH:
        return
    if isinstance(found, list):
        for each in found:
            yield from _words(each, depth + 1)
        return
    for name in _JSON_MEMBERS:
        it = reading.member(found, name)
        if isinstance(it, str) or (isinstance(it, int) and not isinstance(it, bool)):
            yield f"{name}: {it}"
        elif it is not None:
            yield from _words(it, depth + 1)


_HINTS = (
    (re.compile(r"retry[_ -]?after[_ -]?ms[\"'\s:=]{1,4}(\d+(?:\.\d+)?)", re.IGNORECASE), 0.001),
    (re.compile(r"(?:retry[_ -]?after(?:[_ -]?seconds?)?|reset_in)[\"'\s:=]{1,4}(\d+(?:\.\d+)?)", re.IGNORECASE), 1.0),
)
_SPOKEN = re.compile(
    r"(?:(?:try|retry|retrying|wait|again|reset)\w*)(?:\s+(?:again|after|for|in|at least))*\s+"
    r"(?:(\d+)\s*h(?:ours?|rs?)?\s*)?(?:(\d+)\s*m(?:in(?:ute)?s?)?(?![a-z])\s*)?"
    r"(?:(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s(?:ec(?:ond)?s?)?)(?![a-z]))?",
    re.IGNORECASE,
)


def hint_seconds(text: str) -> float | None:
    """Return how long a provider asks to wait, None where it does not say."""
    for pattern, unit in _HINTS:
        if found := pattern.search(text):
            return float(found[1]) * unit
    for spoken in _SPOKEN.finditer(text):
        hours, minutes, amount, unit_name = spoken.groups()
        if hours or minutes or amount:
            fine = float(amount or 0) * (0.001 if (unit_name or "").lower().startswith("m") else 1.0)
            return int(hours or 0) * 3600.0 + int(minutes or 0) * 60.0 + fine
    return None
