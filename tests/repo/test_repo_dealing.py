"""The order in which several processes play the tests: nothing lost, files whole, long ones first."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dealing import LONG, dealt

FILES = ("tests/a.py", "tests/b.py", "tests/c.py", "tests/e2e/d.py", "tests/e2e/e.py", LONG[1])
SIZES = st.lists(st.tuples(st.sampled_from(FILES), st.integers(1, 9)), unique_by=lambda each: each[0])


@given(sizes=SIZES, hands=st.integers(1, 5))
def test_every_test_is_dealt_once_and_those_of_a_file_keep_their_order(
    sizes: list[tuple[str, int]], hands: int
) -> None:
    tests = [f"{file}::{number}" for file, size in sizes for number in range(size)]
    order = dealt(tests, hands, str)
    assert sorted(order) == sorted(tests)
    for file, size in sizes:
        assert [test for test in order if test.startswith(f"{file}::")] == [f"{file}::{n}" for n in range(size)]


@given(sizes=SIZES)
def test_alone_the_long_files_come_first_and_each_is_whole(sizes: list[tuple[str, int]]) -> None:
    tests = [f"{file}::{number}" for file, size in sizes for number in range(size)]
    order = [file for file, _ in groupby(test.partition("::")[0] for test in dealt(tests, 1, str))]
    assert len(order) == len(sizes)
    assert not [pair for pair in pairwise(order) if not pair[0].startswith(LONG) and pair[1].startswith(LONG)]


def test_each_of_the_equal_pieces_begins_with_its_share_of_the_long_files() -> None:
    short = [f"tests/{name}.py::{number}" for name in "abcd" for number in range(10)]
    long = [f"tests/e2e/{name}.py::{number}" for name in "vwxyz" for number in range(3)]
    order = dealt([*short, *long], 4, str)
    pieces, left = [], len(order)
    for hand in range(4):  # as worksteal cuts them
        size = left // (4 - hand)
        pieces.append(order[len(order) - left :][:size])
        left -= size
    assert [len([test for test in piece if test.startswith(LONG)]) for piece in pieces] == [6, 3, 3, 3]
    assert all(piece[0].startswith(LONG) and not piece[-1].startswith(LONG) for piece in pieces)


def test_what_is_called_long_is_there() -> None:
    assert [name for name in LONG if not (Path(__file__).parents[2] / name).exists()] == []
