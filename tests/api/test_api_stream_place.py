"""Where the stream of a call is: the id of an event, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.api.stream_place import START, StreamPlace, read_place

COUNT = st.integers(0, 10**18 - 1)
PIECE = st.tuples(st.sampled_from(["stdout", "stderr"]), COUNT, st.binary(min_size=1, max_size=3))
HELD = st.lists(PIECE, max_size=2).map(tuple)
NEARLY = r"[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}(-[oex][0-9]{0,2}[.][0-9a-g]{0,8})*"
BROKEN = ["", "1", "1-2", "-1-0-0", "1-2-3-", "1-2-3-o4", "1-2-3-o4.c", "1-2-3-x4.c3", "1-2--2"]


@given(st.builds(StreamPlace, COUNT, COUNT, st.integers(-1, 10**18 - 1), HELD))
def test_a_place_is_read_as_it_was_said(place: StreamPlace) -> None:
    text = str(place)
    assert read_place(text) == place
    assert text.isascii()
    assert not {"\n", "\r", "\0", " "} & set(text), "it is one line of a header"


def test_the_start_is_before_everything() -> None:
    assert read_place("0-0--1") == START


@given(st.text() | st.from_regex(NEARLY, fullmatch=True))
def test_anything_else_is_no_place(text: str) -> None:
    place = read_place(text)
    assert place is None or read_place(str(place)) == place


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_one_is_none(text: str) -> None:
    assert read_place(text) is None
