"""The table of other programs' keys: whole, without contradictions, and with no wrong cure."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipe_texts import pipe_text, read, usable
from supervisord_py.pipes.definition import USED, cure_of
from supervisord_py.pipes.foreign_keys import FOREIGN_EVENTS, TABLE, Reading, Weight, plain
from supervisord_py.pipes.front_matter import inline
from supervisord_py.pipes.models import PipeDefinition

WORDS = [word for row in TABLE for word in row.words.split()]
VALUES = (
    "5", "0.5", "true", "false", "yes", "30m", "1h", "0 9 * * *", "09:30", "hourly", "daily", "Europe/Berlin", "Berlin",
    "paused", "claude", "a b", "./run.sh --x | y", "[a, b]", "{a: 1}", "[{cron: 0 9 * * 1}]", "512M", "high", "'*'",
)  # fmt: skip


def test_no_word_stands_twice_and_none_is_a_key_of_ours() -> None:
    assert [word for word, count in Counter(map(plain, WORDS)).items() if count > 1] == []
    assert {plain(key) for key in USED} & set(map(plain, WORDS)) == set()


def test_each_row_has_a_cure_and_names_a_key_of_ours() -> None:
    for row in TABLE:
        assert row.hint or row.weight is Weight.MINOR, row
        assert bool(row.key) is (row.reading is not Reading.NOTHING), row
        assert not row.key or row.key.partition(".")[0] in USED, row


def test_the_manual_page_has_every_word_and_every_cure() -> None:
    page = (Path(__file__).parents[2] / "man" / "man5" / "pipe.md.5").read_text()
    text = page.replace("\\-", "-").replace("\\(aq", "'").replace("\\(dq", '"')
    assert [word for word in WORDS if not re.search(rf"(?m)(^|[ ]){re.escape(word)}[,.\n]", text)] == []
    assert [row.hint for row in TABLE if row.hint.removeprefix("write ") not in text] == []


@pytest.mark.parametrize("value", VALUES)
def test_what_a_cure_says_to_write_reads_well(value: str) -> None:
    """A word of each row, with each value: the line that is written in its place is read without another remark."""
    general = {row.hint for row in TABLE}
    for row in TABLE:
        word = row.words.split()[0]
        [remark] = usable(f"{word}: {value}").remarks
        if remark.hint is None or remark.hint in general or not remark.hint.startswith("write "):
            continue
        header = "\n".join(remark.hint.removeprefix("write ").split(", and "))
        found = read(pipe_text(header))
        assert isinstance(found, PipeDefinition), (word, remark, found)
        assert found.remarks == (), (word, remark)


@given(st.from_regex(r"[A-Za-z][A-Za-z_. -]{0,20}", fullmatch=True), st.sampled_from(VALUES))
def test_any_key_is_one_of_ours_or_named(key: str, value: str) -> None:
    key = key.strip()
    found = read(pipe_text(f"{inline(key)}: {value}"))
    if isinstance(found, PipeDefinition) and key not in USED:
        assert [key in remark.message for remark in found.remarks] == [True], found.remarks


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tz", "Europe/Berlin", "write timezone: Europe/Berlin"),
        ("permissions", "reader", "extra_argv"),
        ("shedule", "hourly", "did you mean 'schedule'?"),
        ("frobnicate", 7, "written into the file by hand"),
    ],
)
def test_what_a_change_of_such_a_key_is_answered(key: str, value: object, expected: str) -> None:
    assert expected in cure_of(key, value)


@pytest.mark.parametrize("event", FOREIGN_EVENTS)
def test_an_event_of_other_programs_is_told(event: str) -> None:
    [remark] = usable(f"trigger: {event}").remarks
    assert remark.key == "trigger"
    assert event in remark.message


def test_words_that_other_programs_fill_in_are_told_with_their_line() -> None:
    [remark] = usable("title: x", "From\n{{start_time}} on").remarks
    assert (remark.key, remark.line, remark.is_minor) == ("prompt", 5, True)
