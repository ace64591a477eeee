"""Edits by key: only the characters of that value change, whatever else the file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisord_py.pipes.declaring.edit import EditError, as_read, edit_keys, inline
from supervisord_py.pipes.declaring.front_matter import parse, simple

if TYPE_CHECKING:
    from supervisord_py.pipes.declaring.edit import Value

BODY = "\n# Do it\n\n```yaml\nenabled: false\n---\n```\n\n---\nMore {{start_time}} $x\n"


def values_of(text: str) -> Any:
    return simple(parse(text, "pipe.md").header)


@pytest.mark.parametrize(
    ("header", "changes", "expected"),
    [
        ("a: 1\n", {"enabled": False}, "a: 1\nenabled: false\n"),
        ("", {"enabled": False}, "enabled: false\n"),
        ("enabled:   true   # why\nb: 2\n", {"enabled": False}, "enabled:   false   # why\nb: 2\n"),
        ("enabled: no  # why\n", {"enabled": False}, "enabled: false  # why\n"),
        ("enabled: 'false'\n", {"enabled": False}, "enabled: 'false'\n"),
        ("enabled:\nb: 2\n", {"enabled": False}, "enabled: false\nb: 2\n"),
        ('"enabled" : true\n', {"enabled": False}, '"enabled" : false\n'),
        ("preset: # which\n  - a  # first\n  - b  # second\n\n# more\nc: 1\n", {"preset": ["x", "*"]},
         "preset: [x, '*'] # which  # second\n\n# more\nc: 1\n"),
        ("preset: [a,\n  b] # c\nd: 1\n", {"preset": []}, "preset: [] # c\nd: 1\n"),
        ("d: |\n  one\n\n  two\n\n\ne: 1\n", {"d": "x: y"}, "d: 'x: y'\n\n\ne: 1\n"),
        ("d: >-\n  one\n", {"d": "two\nlines\t\u2028"}, 'd: "two\\nlines\\t\\U00002028"\n'),
        ("d: one\n  more\ne: 1\n", {"d": "x"}, "d: x\ne: 1\n"),
        ("a: 1\nb: 2\nc: 3\n", {"b": None}, "a: 1\nc: 3\n"),
        ("a: 1\nb:\n  - x\n  - y # z\n\nc: 3\n", {"b": None}, "a: 1\n\nc: 3\n"),
        ("e: |\n  x\nb: |\n    y\n   \n\nc: 3\n", {"b": None}, "e: |\n  x\nc: 3\n"),
        ("b: [{k: v}]\nd:\n  - k:\n    - |\n     y\n\nc: 3\n", {"b": None, "d": None}, "c: 3\n"),
        ("a: 1\n", {"a": None}, ""),
        ("a: 1\n", {"r": {"max": 3, "on": True, "x y": [None, 1.5]}},
         "a: 1\nr: {max: 3, 'on': true, x y: [null, 1.5]}\n"),
        ("a: 1\n", {"s": "*/30 * * * *", "t": "9:30", "u": "it's", "v": "", "w": "no"},
         "a: 1\ns: '*/30 * * * *'\nt: '9:30'\nu: 'it''s'\nv: ''\nw: 'no'\n"),
        ("a: 1\n", {"s": "every 10m", "t": "600", "u": "pipe_completed:x", "v": "~/x", "w": "./a.sh"},
         "a: 1\ns: every 10m\nt: 600\nu: pipe_completed:x\nv: '~/x'\nw: ./a.sh\n"),
        ("a: [ 1 ]\n", {"a": ["1"]}, "a: [ 1 ]\n"),
        ("x-own: {deep: [&#1]}\n".replace("&#1", "1"), {"y": "ä😀"}, "x-own: {deep: [1]}\ny: 'ä😀'\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_edits(header: str, changes: dict[str, Value], expected: str, newline: str) -> None:
    for begin in ("---\n", "\ufeff\n---\n"):
        before = f"{begin}{header}---\n{BODY}".replace("\n", newline)
        after = edit_keys(before, changes)
        assert after == f"{begin}{expected}---\n{BODY}".replace("\n", newline)
        assert edit_keys(after, changes) == after


@pytest.mark.parametrize(
    ("text", "changes", "detail"),
    [
        ("# no front matter", {"a": "1"}, "no front matter"),
        ("---\na: *x\n---\n", {"a": "1"}, "begins with *"),
        ("---\n{a: 1}\n---\n", {"a": "2"}, "in braces"),
        ("---\n? a\n: 1\n---\n", {"a": "2"}, "not of the form a: value"),
        ("---\n? a\n: 1\n---\n", {"a": None}, "not of the form a: value"),
        ("---\n~\n---\n", {"a": "2"}, "not"),
        ("---\na: |+\n  x\nb: 1\n\n---\n", {"b": None}, "cannot be changed without changing other keys"),
        ("---\na: 1\n---\n", {"a b": "2"}, "no key of front matter"),
        ("---\na: 1\n---\n", {"a": float("inf")}, "cannot be written"),
        ("---\na: 1\n---\n", {"a": "\ud800"}, "half of a character"),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, changes: dict[str, Value], detail: str) -> None:
    with pytest.raises(EditError) as caught:
        edit_keys(text, changes)
    assert detail in caught.value.detail
    assert caught.value.hint


scalars = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=12),
    st.sampled_from(["yes", "null", "*", "a: b", "a #b", "- x", "9:30", "{x}", "'", '"', "\\", " a", "a ", "x:", "<<"]),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
names = st.text("ab: ", max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
styles = st.sampled_from(
    ["v", "'quoted: x'", '"dq"', "[a, b]  # c", "\n  - one  # c\n  - two", "|\n  block\n\n  text", ">-\n  folded", "",
     "  # only a comment", "\n  k: v\n  l: [m]", "two words", "one\n  continued", "|-\n    deep\n   \n", "{a: 1}"]
)  # fmt: skip
keys = st.sampled_from(["a", "b", "c_d", "e-f", "enabled", "schedule"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """A file as people write them: any order, comments, blank lines, each style of value."""
    lines = []
    for key in draw(st.lists(keys, unique=True, max_size=5)):
        lines += draw(st.lists(st.sampled_from(["# a comment", "", "#x: y"]), max_size=2))
        lines.append(f"{key}: {draw(styles)}")
    lines += draw(st.lists(st.sampled_from(["# the end", ""]), max_size=2))
    text = "".join(f"{each}\n" for each in ["---", *lines, "---", *draw(st.lists(st.text("a-:# \t", max_size=6)))])
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@given(files(), st.dictionaries(keys, values | st.none(), max_size=3))
def test_an_edit_changes_what_was_asked_and_nothing_else(text: str, changes: dict[str, Value]) -> None:
    before = parse(text, "pipe.md")
    after_text = edit_keys(text, changes)
    after = parse(after_text, "pipe.md")
    body = text[before.sections.body_start :]
    assert after_text[after.sections.body_start :] == body
    assert values_of(after_text) == {
        key: as_read(changes[key]) if key in changes else value
        for key, value in (values_of(text) | dict.fromkeys(changes)).items()
        if key not in changes or changes[key] is not None
    }
    untouched = [each for each in before.header.entries if each.key not in changes]
    for each in untouched:
        written = text[each.span.start : each.value.span.end]
        assert written in after_text
    assert edit_keys(after_text, changes) == after_text


@given(values)
def test_every_value_reads_back_as_it_was_written(value: Value) -> None:
    assume(value is not None)
    assert values_of(f"---\na: {inline(value)}\n---\n") == {"a": as_read(value)}


@given(st.text(max_size=200), st.dictionaries(keys, values, max_size=2))
def test_any_text_is_edited_or_refused(text: str, changes: dict[str, Value]) -> None:
    for whole in (text, f"---\n{text}\n---\n"):
        try:
            after = edit_keys(whole, changes)
        except EditError:
            continue
        assert edit_keys(after, changes) == after
