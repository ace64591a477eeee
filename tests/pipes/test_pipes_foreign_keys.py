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
from supervisord_py.pipes.foreign_keys import FOREIGN_EVENTS, TABLE, Reading, Weight, is_own, plain
from supervisord_py.pipes.front_matter import inline
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.schedule import Every

WORDS = [word for row in TABLE for word in row.words.split()]
VALUES = (
    "5", "0.5", "true", "false", "yes", "30m", "1h", "0 9 * * *", "09:30", "hourly", "daily",
    "Europe/Berlin", "Berlin",
    "paused", "claude", "a b", "./run.sh --x | y", "[a, b]", "{a: 1}", "[{cron: 0 9 * * 1}]",
    "512M", "high", "'*'",
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
    assert [
        word for word in WORDS if not re.search(rf"(?m)(^|[ ]){re.escape(word)}[,.\n]", text)
    ] == []
    cures = [row.hint.removeprefix("write ").removeprefix("for example ") for row in TABLE]
    assert [cure for cure in cures if cure not in text] == []


@pytest.mark.parametrize("value", VALUES)
def test_what_a_cure_says_to_write_reads_well(value: str) -> None:
    """A word of each row, with each value: the line that is written in its place is read without
    another remark.
    """
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


SECONDS_OF = {
    Reading.MILLISECONDS: 0.001, Reading.SECONDS: 1, Reading.MINUTES: 60, Reading.HOURS: 3600,
    Reading.DAYS: 86400, Reading.EVERY_MILLISECONDS: 0.001, Reading.EVERY_SECONDS: 1,
    Reading.EVERY_MINUTES: 60, Reading.EVERY_HOURS: 3600, Reading.EVERY_DAYS: 86400,
}  # fmt: skip
OF_A_TIME = [
    (word, row.reading) for row in TABLE for word in row.words.split() if row.reading in SECONDS_OF
]
NUMBERS = st.integers(0, 100_000).map(str) | st.decimals(0, 5000, places=3).map(
    lambda number: f"{number:f}"
)


@given(st.sampled_from(OF_A_TIME), NUMBERS)
def test_a_number_with_a_unit_means_the_same_time_in_its_cure(
    word: tuple[str, Reading], number: str
) -> None:
    """Where it cannot be written, it is out of the bounds of the key, and what is told is an
    example.
    """
    key, reading = word
    seconds = float(number) * SECONDS_OF[reading]
    [remark] = usable(f"{key}: {number}").remarks
    hint = remark.hint or ""
    if hint.startswith("write for example "):
        assert seconds < 10 or seconds > 365 * 86400, hint
        return
    found = usable(hint.removeprefix("write "))
    is_schedule = hint.startswith("write schedule: ")
    meant = found.schedule.seconds if isinstance(found.schedule, Every) else found.timeout_seconds
    assert isinstance(found.schedule, Every) is is_schedule
    assert meant == pytest.approx(seconds, abs=0.0005), hint


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("timeout_hours: 0.5", "write timeout: 30m"),
        ("timeout_minutes: 1.5", "write timeout: 90s"),
        ("max_runtime_minutes: 0.5", "write timeout: 30s"),
        ("timeout_hours: 2", "write timeout: 2h"),
        ("timeout_hours: 45m", "write timeout: 45m"),
        ("timeout_hours: soon", "write for example timeout: 1h"),
        ("timeout_days: 0.5", "write timeout: 12h"),
        ("timeout_ms: 1500", "write timeout: 1.5s"),
        ("max_duration_mins: 5", "write timeout: 5m"),
        ("timeout_weeks: 1", "pipe.md(5) lists the keys"),
        ("timeoutH: 1", "write timeout: 1h"),
        ("interval_hours: 0.5", "write schedule: every 30m"),
        ("interval_ms: 60000", "write schedule: every 1m"),
        ("interval_days: 2", "write schedule: every 2d"),
        ("interval_ms: 10", "write for example schedule: every 90s"),
        ("Schedule: {kind: every, everyMs: 60000}", "write schedule: every 1m"),
        ("cpus: 2", "write limits: {cpu_percent: 200}"),
        ("cpus: 0.5", "write limits: {cpu_percent: 50}"),
        ("cpu: 500m", "write limits: {cpu_percent: 50}"),
        ("cpu_quota: 20%", "write limits: {cpu_percent: 20}"),
        ("cpu: 2", "write for example limits: {cpu_percent: 50}"),
        ("cpu_percent: 80", "write limits: {cpu_percent: 80}"),
        ("retry: {max: 2}", "write retries: 2"),
        ("retry: {max: 2, delay: 30s}", "write retries: {max: 2, delay: 30s}"),
        ("retry: {when: always}", "write for example retries: 3"),
        ("memory_limit: 512", "write for example limits: {memory: 512MB}"),
        ("memory_limit: 512M", "write limits: {memory: 512M}"),
        ("memory_limit: 2Gi", "write limits: {memory: 2GiB}"),
        ("memory_limit: 536870912", "write limits: {memory: 536870912}"),
        ("memory_mb: 512", "write limits: {memory: 512MB}"),
        ("memory_mb: 0.5", "write limits: {memory: 0.5MB}"),
    ],
)
def test_a_cure_has_the_value_in_our_unit_or_is_told_as_an_example(
    header: str, expected: str
) -> None:
    key, _, value = header.partition(": ")
    found = read(pipe_text(header))
    hint = found.remarks[0].hint if isinstance(found, PipeDefinition) else None
    assert hint == expected, (key, value)


@given(st.from_regex(r"[A-Za-z][A-Za-z_. -]{0,20}", fullmatch=True), st.sampled_from(VALUES))
def test_any_key_is_one_of_ours_or_named(key: str, value: str) -> None:
    key = key.strip()
    found = read(pipe_text(f"{inline(key)}: {value}"))
    if isinstance(found, PipeDefinition) and key not in USED and not is_own(key):
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


def test_a_key_of_ones_own_is_not_told() -> None:
    assert usable("x-mine: 5\nX-Tags: [a]\nx-timeout-hours: 2").remarks == ()


@pytest.mark.parametrize("event", FOREIGN_EVENTS)
def test_an_event_of_other_programs_is_told(event: str) -> None:
    [remark] = usable(f"trigger: {event}").remarks
    assert remark.key == "trigger"
    assert event in remark.message


def test_words_that_other_programs_fill_in_are_told_with_their_line() -> None:
    [remark] = usable("title: x", "From\n{{start_time}} on").remarks
    assert (remark.key, remark.line, remark.is_minor) == ("prompt", 5, True)
