"""Words of events: each that is published has its journal, and successes are kept apart from
failures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxctl.commands.history import EVENT_WORDS
from supervisord_py.ledger.schema import EVENT_TABLES
from supervisord_py.process.event_words import WORDS, Journal, journal_of, words_named

ROOT = Path(__file__).parents[2]
RUNS, LIFE, FAILURES, FAILED_RUNS = (
    Journal.RUNS,
    Journal.LIFE,
    Journal.FAILURES,
    Journal.FAILED_RUNS,
)


@pytest.mark.parametrize(
    ("event", "reason", "facts", "journal"),
    [
        ("run", None, {"outcome": "completed"}, RUNS),
        ("run", None, {"outcome": "cancelled"}, RUNS),
        ("run", None, {}, RUNS),
        ("run", None, {"outcome": "failed"}, FAILED_RUNS),
        ("run", None, {"outcome": "timeout"}, FAILED_RUNS),
        ("run", None, {"outcome": "memory_limit"}, FAILED_RUNS),
        ("run_failed", None, {"status": 500}, FAILED_RUNS),
        ("execution_completed", None, {}, RUNS),
        ("execution_failed", None, {"error_type": "crash"}, FAILED_RUNS),
        ("execution_timed_out", "timeout", {}, FAILED_RUNS),
        ("starting", None, {}, LIFE),
        ("stopped", "stopped", {"code": 0}, LIFE),
        ("stopped", "evicted_ttl", {}, LIFE),
        ("stopped", "memory_limit", {}, FAILURES),
        ("stopping", "runtime_limit", {}, FAILURES),
        ("died", "signal", {}, FAILURES),
        ("start_failed", "early_exit", {}, FAILURES),
        ("interrupted", "interrupted", {}, FAILURES),
        ("interrupted_cell", None, {"why": "timed_out"}, FAILURES),
        ("interrupted_cell", None, {"why": "cancelled"}, LIFE),
        ("keeper_lost", None, {}, FAILURES),
        ("a_word_of_another_version", None, {}, FAILURES),
    ],
)
def test_each_event_has_its_journal(
    event: str, reason: str | None, facts: dict[str, object], journal: Journal
) -> None:
    assert journal_of(event, reason, facts) is journal


def test_journals_are_the_tables_of_the_ledger() -> None:
    assert sorted(EVENT_TABLES) == sorted(Journal)


def test_names_and_globs_mean_words() -> None:
    assert words_named(["died", "execution_*ed"]) == (
        {"died", "execution_queued", "execution_started", "execution_adopted", "execution_settled",
         "execution_completed", "execution_cancelled", "execution_failed"} , None,
    )  # fmt: skip
    assert words_named(["died", "dyed"]) == (frozenset(), "dyed")
    assert words_named(["*"]) == (WORDS.keys(), None)


def published_words() -> Iterator[str]:
    """Yield the words that the sources publish; `execution_{}` of one that is made of parts."""
    for path in (ROOT / "supervisord_py").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and bool(node.args)
            )
            if not is_call or ast.unparse(node.func).rpartition(".")[2] not in {"publish", "say"}:
                continue
            owner = ast.unparse(node.func).rpartition(".")[0].rpartition(".")[2]
            if owner in {"events", "_events", "supervisor"} or (
                owner == "self" and path.name == "supervisor.py"
            ):
                yield from words_of(node.args[0])


def words_of(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.Constant):
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from words_of(argument.body)
        yield from words_of(argument.orelse)
    elif isinstance(argument, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in argument.values
        )


def test_every_word_that_is_published_is_in_the_table() -> None:
    published = set(published_words())
    assert len(published) > 30, "they were found"
    unknown = [word for word in published if not any(fits(word, known) for known in WORDS)]
    assert unknown == []


def fits(word: str, known: str) -> bool:
    return re.fullmatch(re.escape(word).replace(r"\{\}", "[a-z_]+"), known) is not None


def test_client_and_manual_have_the_same_words() -> None:
    assert tuple(WORDS) == EVENT_WORDS
    page = (ROOT / "man" / "man1" / "pxctl.1").read_text(encoding="utf-8")
    events = page.partition(".SH EVENTS")[2].partition(".SH ")[0]
    missing = [word for word in WORDS if not re.search(rf"\b{word}\b", events)]
    assert missing == []
