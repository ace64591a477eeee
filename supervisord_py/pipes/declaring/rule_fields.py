"""The keys that hold rules: retries, budget and limits. Pure.

Each may be written short (`retries: 3`) or as a map; these maps are ours, so an unknown key in one is a mistake.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.nodes import Scalar
from supervisord_py.pipes.declaring.problems import clip, shown
from supervisord_py.pipes.declaring.values import count_of, money_of, size_of, whole_of
from supervisord_py.pipes.definition import BudgetRules, RetryRules, RunLimits

if TYPE_CHECKING:
    from supervisord_py.pipes.declaring.field_reader import Fields

MOST_RETRIES = 20
MOST_TURNS = 100_000
LEAST_MEMORY = 1024**2
"""Bytes; with less no program comes to its first line, and a size without its unit was meant."""

_NEVER = frozenset({"no", "off", "false", "none", "never"})


def read_retries(fields: Fields) -> RetryRules:
    """Read `retries: 3` or `retries: {max, on_timeout, delay}`."""
    node = fields.node("retries")
    if isinstance(node, Scalar):
        return RetryRules(max_retries=fields.read("retries", None, _retries_of))
    inner = fields.table("retries", ("max", "on_timeout", "delay"))
    if inner is None:
        return RetryRules()
    return RetryRules(inner.read("max", None, _retries_of), inner.flag("on_timeout"), inner.seconds("delay"))


def _retries_of(text: str) -> int:
    return 0 if text.strip().lower() in _NEVER else whole_of(text, 0, MOST_RETRIES)


def read_budget(fields: Fields) -> BudgetRules:
    """Read `budget: {daily_tokens, daily_cost}`."""
    inner = fields.table("budget", ("daily_tokens", "daily_cost"))
    if inner is None:
        return BudgetRules()
    return BudgetRules(inner.read("daily_tokens", None, count_of), inner.read("daily_cost", None, money_of))


def read_limits(fields: Fields) -> RunLimits:
    """Read `limits: {turns, tokens, cost, memory}`."""
    inner = fields.table("limits", ("turns", "tokens", "cost", "memory"))
    if inner is None:
        return RunLimits()
    memory = inner.read("memory", None, size_of)
    if memory is not None and memory < LEAST_MEMORY:
        fields.warn(f"limits.memory: {memory} bytes are too few for any program; write a size such as 512MB")
    return RunLimits(
        inner.whole("turns", 1, MOST_TURNS),
        inner.read("tokens", None, count_of),
        inner.read("cost", None, money_of),
        memory,
    )


def read_redact(fields: Fields) -> tuple[str, ...]:
    """Read regular expressions; each must compile, and none may match nothing at all."""
    found = []
    for text, node in fields.texts("redact"):
        try:
            matches_nothing = re.compile(text).match("") is not None
        except (re.error, OverflowError, RecursionError) as error:
            hint = "mend the expression, or escape its special characters with a backslash"
            fields.complain("redact", f"{shown(text)} is no regular expression: {clip(str(error), 100)}", hint, node)
            continue
        if matches_nothing:
            fields.complain("redact", f"{shown(text)} matches the empty text", "write what must be there", node)
            continue
        found.append(text)
    return tuple(found)
