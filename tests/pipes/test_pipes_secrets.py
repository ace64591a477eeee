"""Keys by reference arrive, or a sentence says why not; and nothing that is stored or can be printed shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipe_texts import pipes_config
from supervisord_py.errors import StartFailedError
from supervisord_py.ledger.pipe_executions import ErrorType
from supervisord_py.pipes import output
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.launch import resolve_key
from supervisord_py.pipes.output import MARK, Redactor, redact
from supervisord_py.pipes.preflight import Completed

KEY = "sk-very-secret-key"


async def key(
    reference: str,
    environ: dict[str, str] | None = None,
    cwd: Path = Path("/"),
    answer: Completed | Exception | None = None,
) -> str:
    async def run(argv: list[str], **_: object) -> Completed:
        assert argv == ["pass", "show", "a b"]
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    shelf: Any = SimpleNamespace(environ=environ or {}, run=run, config=pipes_config(cwd))
    try:
        return await resolve_key(shelf, reference, {})
    except CannotRunError as error:
        assert KEY not in error.message
        return f"{error.error_type}: {error.message}"


@pytest.mark.parametrize("text", ["", KEY, "$", "$A-B", "${A", "file:", "file: ", "cmd:", "cmd: ", "cmd:'a"])
async def test_what_is_no_reference_is_refused_and_not_quoted(text: str) -> None:
    found = await key(text)
    assert found.startswith("config_error: an api_key is no reference")
    assert "$ACME_API_KEY" in found


async def test_a_variable() -> None:
    assert [await key(it, {"K": f" {KEY}\n"}) for it in ("$K", "${K}")] == [KEY, KEY]
    found = await key("$K", {"K": " "})
    assert found.startswith(f"{ErrorType.AUTH_FAILED}: the variable K is not set")
    assert ".env beside pipe.md" in found


async def test_a_file_must_be_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    assert await key(f"file: {file}") == KEY
    assert await key("file:key", cwd=tmp_path) == KEY
    assert await key("file:~/key", {"HOME": str(tmp_path)}) == KEY
    file.chmod(0o640)
    assert f"(mode 640); chmod 600 {file}" in await key(f"file:{file}")
    file.chmod(0o600)
    assert "cannot be read: No such file" in await key("file:nowhere")
    for content, words in ((b"", "is empty"), (b"\xff\xfe", "it is no text")):
        file.write_bytes(content)
        assert words in await key(f"file:{file}")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Completed(0, None, f"{KEY}\n", "a hint"), KEY),
        (Completed(2, None, KEY, KEY), "(pass) exits with 2; run the command by hand"),
        (Completed(None, 9), "was killed by signal 9"),
        (Completed(0), "must print one line"),
        (Completed(0, None, f"{KEY}\n{KEY}"), "must print one line"),
        (TimeoutError(), "did not end within 30 s"),
        (StartFailedError("no such file"), "cannot be started: no such file"),
    ],
)
async def test_a_command_prints_the_key_or_the_reason_is_told(answer: Completed | Exception, words: str) -> None:
    assert words in await key("cmd:pass show 'a b'", answer=answer)


# -- redaction ---------------------------------------------------------------------------------------------------------

VALUES = st.lists(st.text("ab", min_size=6, max_size=9) | st.text('ab"\\é', min_size=6, max_size=8), max_size=4)
TEXTS = st.lists(st.sampled_from("ab\n") | st.sampled_from(["ababab", 'é"', "\\"]), max_size=60).map("".join)
CUTS = st.lists(st.integers(0, 300), max_size=8)
PATTERNS = st.sampled_from([(), ("a+b",), ("b*", "^a.b$")])


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[one:other] for one, other in pairwise(places)]


def streamed(redactor: Redactor, parts: Iterable[bytes]) -> bytes:
    return b"".join([*(redactor.feed(part) for part in parts), redactor.end()])


@given(values=VALUES, text=TEXTS, cuts=CUTS, patterns=PATTERNS)
@example(values=["bababa"], text="bbbababab\naab", cuts=[4, 6, 12], patterns=("a+b",))
def test_no_value_comes_through_and_the_cuts_make_no_difference(
    values: list[str], text: str, cuts: list[int], patterns: tuple[str, ...]
) -> None:
    whole = redact(text, values, patterns).encode()
    parts = pieces(text.encode(), cuts)
    assert streamed(Redactor(values, patterns), parts) == whole
    for value in values:
        assert len(value.strip()) < 6 or value.strip().encode() not in whole


def test_what_is_held_and_what_is_a_secret() -> None:
    redactor = Redactor(["secret", "secret-and-more"], [r"\d{4}-\d{4}$"])
    assert redactor.feed(b"secret-and-more secret. 1234-5678") == b"", "lines are looked at when they are whole"
    assert (redactor.feed(b"\nrest"), redactor.end()) == (MARK + b" " + MARK + b". " + MARK + b"\n", b"rest")
    assert Redactor([]).feed(b"any") == b"any", "who knows no secret holds nothing back"
    assert redact(r'{"k": "pa\"ss\u00e9word"}', ['pa"sséword']) == '{"k": "[redacted]"}', "as JSON writes it"
    assert redact("a short abc", ["", "short", "  abc  "]) == "a short abc", "short values are left alone"
    assert redact("one: first-line\nsecond-line", ["first-line\nsecond-line"]) == "one: [redacted]\n[redacted]"
    with pytest.raises(re.error):
        Redactor([], ["[a"])


def test_a_line_without_end_is_let_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LINE_BYTES", 10)
    redactor = Redactor([], ["x[0-9]+x"])
    assert redactor.feed(b"x7x" + b"." * 10) == MARK + b"." * 7
    assert redactor.end() == b"..."
