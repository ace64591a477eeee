"""Every key of a TOML document is found on the line where it stands."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon.toml_lines import error_line, key_lines

EVERYTHING = '''\
top = 1

# [not.a] table
[tools]  # a comment
plain = 1
"quoted key" = 2
dotted.deep = 3
many = [
  1, # one
  "]",
]
text = """
[logs]
fake = 1
"""
inline = { a = 1, b = { c = 2 } }

[ api . tcp ]
x = 1
[[arrays]]
y = 1
[[arrays]]
y = 2'''


def test_all_forms_of_keys_are_found() -> None:
    lines = key_lines(EVERYTHING)
    assert lines == {
        ("top",): 1,
        ("tools",): 4,
        ("tools", "plain"): 5,
        ("tools", "quoted key"): 6,
        ("tools", "dotted"): 7,
        ("tools", "dotted", "deep"): 7,
        ("tools", "many"): 8,
        ("tools", "text"): 12,
        ("tools", "inline"): 16,
        ("tools", "inline", "a"): 16,
        ("tools", "inline", "b"): 16,
        ("tools", "inline", "b", "c"): 16,
        ("api", "tcp"): 18,
        ("api", "tcp", "x"): 19,
        ("arrays",): 20,
        ("arrays", "y"): 21,
    }


names = st.text("abcdefgh_", min_size=1, max_size=6)
values = st.one_of(st.integers(), st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=20))


@given(st.dictionaries(names, st.dictionaries(names, st.tuples(values, st.integers(0, 3)), max_size=4), max_size=4))
def test_generated_documents(tables: dict[str, dict[str, tuple[int | str, int]]]) -> None:
    written: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table, keys in tables.items():
        written.append(f"[{table}]")
        expected[(table,)] = len(written)
        for key, (value, blanks) in keys.items():
            written += ["# pad = 1"] * blanks
            written += [f"{key} = [", f"  {json.dumps(value, ensure_ascii=False)},", "]"]
            expected[table, key] = len(written) - 2
    text = "\n".join(written)
    tomllib.loads(text)
    assert key_lines(text) == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = \n", 2), ("a = 1\n\nb = [1,\n", 3), ("a = 1\na = 2\n", 2), ("[x\n", 1), ("\n\n= 1", 3)],
)
def test_a_syntax_error_has_its_line(text: str, line: int) -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)
    assert error_line(caught.value, text) == line
