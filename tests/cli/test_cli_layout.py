"""Tables fit, numbers and times read well, colour is optional."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxctl import output
from pxctl.output import Column, clean, table, wants_colour, width_of

COLUMNS = [
    Column("UNIT", "0"), Column("STATE", "1", 1), Column("PID", "2", 4, right=True), Column("REASON", "3", 2, minimum=8)
]  # fmt: skip
rows = st.lists(st.lists(st.text(max_size=30), min_size=4, max_size=4), min_size=1, max_size=5)


def lines_of(texts: list[list[str]], width: int | None) -> list[str]:
    rows = [{str(at): text for at, text in enumerate(row)} for row in texts]
    return table(COLUMNS, rows, width)


@given(rows, st.integers(1, 90))
def test_no_line_is_wider_than_asked_and_the_first_column_stays(texts: list[list[str]], width: int) -> None:
    lines = lines_of(texts, width)
    assert len(lines) == len(texts) + 1
    assert all(width_of(line) <= width for line in lines)
    for row, line in zip(texts, lines[1:], strict=True):
        name = clean(row[0]) if row[0] != "-" else ""
        assert name.isprintable()
        assert not name.strip() or width_of(name[0]) > width or line.lstrip()[:1] in {name.lstrip()[:1], "…"}


def test_what_matters_least_goes_first() -> None:
    texts = [["tool:some-name", "ready", "12345", "memory_limit"]]
    seen = [" ".join(lines_of(texts, width)[0].split()) for width in (60, 38, 31, 21, 9)]
    assert seen == ["UNIT STATE PID REASON", "UNIT STATE PID REASON", "UNIT STATE REASON", "UNIT STATE", "UNIT"]


def test_numbers_in_words() -> None:
    durations = {0: "0s", 0.44: "0.4s", 12.9: "12s", 200: "3m20s", 7500: "2h05m", 356_400: "4d03h", None: "-"}
    assert {seconds: output.duration(seconds) for seconds in durations} == durations
    sizes = {0: "0B", 812: "812B", 12_897_485: "12.3M", 2**62: "4096.0P", None: "-"}
    assert {count: output.size(count) for count in sizes} == sizes


@pytest.mark.parametrize(
    ("choice", "env", "terminal", "wanted"),
    [
        ("auto", {}, True, True), ("auto", {}, False, False), ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False), ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True), ("never", {"CLICOLOR_FORCE": "1"}, True, False),
    ],
)  # fmt: skip
def test_when_there_is_colour(choice: str, env: dict[str, str], terminal: object, wanted: object) -> None:
    assert wants_colour(choice, env, terminal=bool(terminal)) is wanted
