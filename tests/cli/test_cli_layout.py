"""Tables fit, numbers and times read well, colour is optional."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxctl import output
from pxctl.output import Column, clean, table, wants_colour, width_of

COLUMNS = [
    Column("UNIT", "0", minimum=6),
    Column("STATE", "1", 1),
    Column("PID", "2", 4, right=True),
    Column("REASON", "3", 2, minimum=8),
]
STIFF = [
    Column("CHECK", "0", minimum=10),
    Column("RESULT", "1"),
    Column("MESSAGE", "2", minimum=20),
    Column("TIME", "3"),
]
rows = st.lists(st.lists(st.text(max_size=30), min_size=4, max_size=4), max_size=5)


def lines_of(texts: list[list[str]], width: int | None, columns: list[Column] = COLUMNS) -> list[str]:
    rows = [{str(at): text for at, text in enumerate(row)} for row in texts]
    return ["".join(text for text, _ in line) for line in table(columns, rows, width)]


@given(rows, st.integers(1, 90), st.sampled_from([COLUMNS, STIFF]))
def test_no_line_is_wider_than_asked_and_the_first_column_stays(
    texts: list[list[str]], width: int, columns: list[Column]
) -> None:
    lines = lines_of(texts, width, columns)
    assert len(lines) == len(texts) + 1
    assert all(width_of(line.rstrip()) <= width for line in lines)
    for row, line in zip(texts, lines[1:], strict=True):
        name = clean(row[0]) if row[0] != "-" else ""
        assert not name.strip() or width_of(name[0]) > width or line.lstrip()[:1] in {name.lstrip()[:1], "…"}


def test_what_matters_least_goes_first() -> None:
    texts = [["tool:some-name", "ready", "12345", "memory_limit"]]
    seen = [lines_of(texts, width)[0].split() for width in (60, 38, 31, 21, 9)]
    assert seen == [
        ["UNIT", "STATE", "PID", "REASON"],
        ["UNIT", "STATE", "PID", "REASON"],
        ["UNIT", "STATE", "REASON"],
        ["UNIT", "STATE"],
        ["UNIT"],
    ]


@given(st.text())
def test_nothing_in_a_cell_can_steer_a_terminal(text: str) -> None:
    assert clean(text).isprintable()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"), (0.44, "0.4s"), (5, "5s"), (9.99, "10.0s"), (12.9, "12s"), (200, "3m20s"), (7500, "2h05m"),
        (356_400, "4d03h"), (-3, "0s"), (None, "-"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, words: str) -> None:
    assert output.duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0B"), (812, "812B"), (12_897_485, "12.3M"), (2**62, "4096.0P"), (None, "-")]
)
def test_sizes(count: float | None, words: str) -> None:
    assert output.size(count) == words


@pytest.mark.parametrize(
    ("choice", "env", "terminal", "wanted"),
    [
        ("auto", {}, True, True), ("auto", {}, False, False), ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True), ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"CLICOLOR_FORCE": "1"}, False, True), ("auto", {"CLICOLOR_FORCE": "0"}, False, False),
        ("always", {"NO_COLOR": "1"}, False, True), ("never", {"CLICOLOR_FORCE": "1"}, True, False),
    ],
)  # fmt: skip
def test_when_there_is_colour(choice: str, env: dict[str, str], terminal: object, wanted: object) -> None:
    assert wants_colour(choice, env, terminal=bool(terminal)) is wanted
