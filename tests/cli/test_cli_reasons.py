"""One list of reasons and error types: the daemon's words, `pxctl help reasons`, `pxctl why`,
and pxctl(1) agree.
"""

from __future__ import annotations

import re

from cli.px import REPOSITORY, Px
from pxctl.reasons import ERROR_TYPES, REASONS, TABLES, Meaning
from supervisord_py.api.status import MEANINGS
from supervisord_py.ledger.pipes import ErrorType
from supervisord_py.process.model import Reason


def paragraphs(table: tuple[Meaning, ...]) -> str:
    """Return a table as it stands in the page."""
    rows = (
        f".TP\n.B {one.word}\n{one.meaning[0].upper()}{one.meaning[1:]}.\n.br\n{one.step}.\n"
        for one in table
    )
    return "".join(rows).replace("--", "\\-\\-").replace("'", "\\(aq")


def test_no_word_of_the_daemon_is_left_out_and_none_is_made_up() -> None:
    assert [one.word for one in REASONS] == [reason.value for reason in Reason]
    assert [one.word for one in ERROR_TYPES] == [error.value for error in ErrorType]


def test_why_and_the_table_use_the_same_sentences() -> None:
    assert {one.word: one.meaning for one in REASONS} == {
        reason.value: told for reason, (told, _) in MEANINGS.items()
    }


def test_the_page_has_the_same_tables() -> None:
    page = (REPOSITORY / "man/man1/pxctl.1").read_text()
    (part,) = re.findall(
        r"^\.SH REASONS AND ERROR TYPES\n(.*?)^\.SH ", page, re.MULTILINE | re.DOTALL
    )
    for table in TABLES.values():
        assert paragraphs(table) in part


def test_help_shows_all_or_one_without_a_daemon(px: Px) -> None:
    shown = px("help", "reasons").text
    assert all(f"  {one.word} " in shown for table in TABLES.values() for one in table)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "-> pxctl pin --forever TOOL" in px("help", "evicted_ttl").text
    document = px("help", "timeout", "--json").json()
    assert (document["schema"], [one["kind"] for one in document["reasons"]]) == (
        "px.reasons/1", ["reason", "error_type"]
    )  # fmt: skip
    assert px("help", "evicted_tll").code == 2
