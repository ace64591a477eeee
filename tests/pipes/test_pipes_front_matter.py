"""Front matter: where it lies, what its YAML says, that every fault has line and cure, and edits by key."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipe_texts import pipe_text
from supervisord_py.config.documents import DocumentError, Problem
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.front_matter import Value, parse, set_keys

BODY = "\n# Do it\n\n```yaml\nenabled: false\n---\n```\n\n---\nMore {{start_time}} $x\n"


def fault(text: str) -> Problem:
    with pytest.raises(DocumentError) as caught:
        parse(text, "pipe.md")
    return caught.value.problem


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("---\na: 1\n---\nDo it.\n", {"a": "1"}, "Do it."),
        ("---\na: 1\n-----\nDo it.", {"a": "1"}, "Do it."),
        ("---\n---", {}, ""),
        ("---\na: {b: [c, 'd e']}\nf:\n- g\n-\n  h: ~\n---\n", {"a": {"b": ["c", "d e"]}, "f": ["g", {"h": None}]}, ""),
        ("---\na: 9:30\nb: 010\nc: yes\nd: 2026-01-01\ne: 0x1F\ng: ''\n---\n",
         {"a": "9:30", "b": "010", "c": "yes", "d": "2026-01-01", "e": "0x1F", "g": ""}, ""),
        ("---\nnäme: — 日本 😀\n---\n日本", {"näme": "— 日本 😀"}, "日本"),
    ],
)  # fmt: skip
def test_a_file_is_header_and_body(text: str, header: object, body: str) -> None:
    found = parse(text, "pipe.md")
    assert (found.header.value, found.body) == (header, body)


@pytest.mark.parametrize(
    ("text", "line", "detail", "hint"),
    [
        ("", 1, "there is no front matter", "begin the file with a line ---"),
        ("\n---\na: 1\n", 2, "never closed", "begin the file"),
        ("---\na: 1\n--- b: 2\nx", 3, "'b: 2' follows the closing ---", "a line of its own"),
        # What people meet in YAML.
        (pipe_text("a: 1\nschedule: */30 * * * *  # often"), 3, "no valid YAML", "quote it: schedule: '*/30 * * * *'"),
        (pipe_text("preset: [fast, *]"), 2, "no valid YAML", 'quote what is odd: "*"'),
        (pipe_text("a: !!int 3"), 2, "no valid YAML", "quote it: a: '!!int 3'"),
        (pipe_text("description: Notes: the day's"), 2, "no valid YAML", "quote it: description: 'Notes: the day''s'"),
        (pipe_text("a: 1\n\tb: 2"), 3, "no valid YAML", "use spaces"),
        (pipe_text("a: [b, c\nd: e"), 2, "no valid YAML", "close what is opened"),
        (pipe_text("- a\n- b"), 2, "not made of lines of key: value", "begin the file"),
        (pipe_text("a: 1\nb: 2\na: 3"), 4, "'a' stands twice", ""),
        (pipe_text("a: " + "[" * 200 + "]" * 200), 2, "100 levels", ""),
        (pipe_text("a: [" + "b, " * 20_000 + "]"), 2, "more than 10000 values", ""),
    ],
)  # fmt: skip
def test_every_fault_has_line_and_cure(text: str, line: int, detail: str, hint: str) -> None:
    found = fault(text)
    assert (found.line, detail in found.message, hint in (found.hint or "")) == (line, True, True), found


@given(st.text(max_size=300))
@example("\xa0\xa0\U00010000\x1f")
@example("a: \ufeffb")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\nbody\n"):
        try:
            parse(whole, "pipe.md")
        except DocumentError as error:
            assert error.problem.message


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
         "preset: [x, '*']  # second\n\n# more\nc: 1\n"),
        ("preset: [a,\n  b] # c\nd: 1\n", {"preset": []}, "preset: [] # c\nd: 1\n"),
        ("d: |\n  one\n\n  two\n\n\ne: 1\n", {"d": "x: y"}, "d: 'x: y'\n\n\ne: 1\n"),
        ("d: >-\n  one\n", {"d": 'two\nlin"es\u2028'}, 'd: "two\\nlin\\"es\\u2028"\n'),
        ("a: 1\nb: 2\nc: 3\n", {"b": None}, "a: 1\nc: 3\n"),
        ("a: 1\nb:\n  - x\n  - y # z\n\nc: 3\n", {"b": None}, "a: 1\n\nc: 3\n"),
        ("b: [{k: v}]\nd:\n  - k:\n    - |\n     y\n\nc: 3\n", {"b": None, "d": None}, "\nc: 3\n"),
        ("a: 1\n", {"a": None}, ""),
        ("a: 1\n", {"r": {"max": 3, "on": True, "x y": [None, 1.5]}},
         "a: 1\nr: {max: 3, 'on': true, x y: [null, 1.5]}\n"),
        ("a: 1\n", {"s": "*/30 * * * *", "t": "9:30", "u": "it's", "v": "", "w": "no"},
         "a: 1\ns: '*/30 * * * *'\nt: '9:30'\nu: 'it''s'\nv: ''\nw: 'no'\n"),
        ("a: 1\n", {"s": "every 10m", "t": "600", "u": "pipe_completed:x", "v": "~/x", "w": "./a.sh"},
         "a: 1\ns: every 10m\nt: 600\nu: pipe_completed:x\nv: '~/x'\nw: ./a.sh\n"),
        ("x-own: {deep: [&#1]}\n".replace("&#1", "1"), {"y": "ä😀"}, "x-own: {deep: [1]}\ny: 'ä😀'\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_edits(header: str, changes: dict[str, Value], expected: str, newline: str) -> None:
    for begin in ("---\n", "\ufeff\n---\n"):
        before = f"{begin}{header}---\n{BODY}".replace("\n", newline)
        after = set_keys(before, changes)
        assert after == f"{begin}{expected}---\n{BODY}".replace("\n", newline)
        assert set_keys(after, changes) == after


@pytest.mark.parametrize(
    ("text", "changes", "detail"),
    [
        ("# no front matter", {"a": "1"}, "no front matter"),
        ("---\na: *x\n---\n", {"a": "1"}, "anchors, aliases"),
        ("---\n{a: 1}\n---\n", {"a": "2"}, "in braces"),
        ("---\n? a\n: 1\n---\n", {"a": "2"}, "not of the form a: value"),
        ("---\na: |+\n  x\nb: 1\n\n---\n", {"b": None}, "cannot be changed without changing other keys"),
        ("---\na: 1\n---\n", {"a b": "2"}, "no key of front matter"),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, changes: dict[str, Value], detail: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_keys(text, changes)
    assert detail in caught.value.detail
    assert caught.value.hint
