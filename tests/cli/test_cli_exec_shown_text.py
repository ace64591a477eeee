"""What a cell printed is shown harmless, clamped and collapsed, however it is cut into pieces."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from pxctl.shaper import SHOWN_LINES, TAIL_LINES, Shaper, harmless

FRAGMENTS = st.sampled_from(
    ["a", "word ", "\n", "\n\n", "\r", "\r\n", "\t", "\x1b", "\x1b[", "\x1b[31m", "\x1b[0m", "\x1b[2J", "\x1b]0;t\x07",
     "\x1b]8;;x\x1b\\", "\x1bP1;q", "\x1b\\", "\x1b(B", "m", "[", "]", "1;3", "é", "日本", "\x07", "\x9b",
     "\u202e", "\x7f", "line\n" * 9]
)  # fmt: skip
texts = st.lists(FRAGMENTS, max_size=40).map("".join)
STEERS = re.compile(r"\x1b(?!\[[0-9;:]*m|\[K)")
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def note(count: int) -> str:
    return f"<{count} hidden>"


def show(pieces: list[str], *, colour: bool = True, full: bool = False) -> str:
    shaper = Shaper(colour=colour, full=full)
    return "".join(map(shaper.feed, pieces)) + shaper.end(note)


@given(texts, st.lists(st.integers(0, 200), max_size=10), st.booleans(), st.booleans())
def test_the_pieces_do_not_matter(text: str, cuts: list[int], colour: bool, full: bool) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    whole = show([text], colour=colour, full=full)
    assert show(pieces, colour=colour, full=full) == whole
    assert show(list(text), colour=colour, full=full) == whole


@given(st.text() | texts, st.booleans())
def test_nothing_that_is_shown_steers_the_terminal(text: str, colour: bool) -> None:
    shown = show([text], colour=colour)
    assert not CONTROLS.search(shown)
    assert not STEERS.search(shown)
    assert colour or not re.search(r"\x1b\[[0-9;:]*m", shown.replace("\r\x1b[K", ""))
    assert not CONTROLS.search(harmless(text, colour=colour))


@given(st.integers(0, 60), st.booleans())
def test_long_output_is_collapsed_and_what_is_hidden_is_counted(count: int, ends: bool) -> None:
    text = "".join(f"{at}\n" for at in range(count)).removesuffix("" if ends else "\n")
    lines = show([text]).splitlines()
    numbers = [line for line in lines if line.isdigit()]
    if count <= SHOWN_LINES:
        assert lines == [str(at) for at in range(count)]
    else:
        head = SHOWN_LINES - TAIL_LINES
        assert numbers == [str(at) for at in [*range(head), *range(count - TAIL_LINES, count)]]
        assert lines[head] == note(count - SHOWN_LINES)
        assert len(lines) == SHOWN_LINES + 1
    assert show([text], full=True).splitlines() == [str(at) for at in range(count)]
