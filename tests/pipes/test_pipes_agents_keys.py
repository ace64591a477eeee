"""Keys by reference: they arrive, or a sentence says why not; and nothing that can be printed shows them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.errors import ConfigError, StartFailedError
from supervisord_py.pipes.agents.programs import Answer, Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.secrets import KeyReference, KeySource, Secret, parse_reference, resolve_key
from supervisord_py.pipes.execution import ErrorType

KEY = "sk-very-secret-key"


@dataclass
class FakeAsk:
    """Answers what it is told to, and remembers what it was asked."""

    answer: Answer | Exception = field(default_factory=lambda: Answer(0, None, f"{KEY}\n"))
    programs: list[Program] = field(default_factory=list)

    async def __call__(self, program: Program, *, seconds: float) -> Answer:
        self.programs.append(program)
        assert seconds > 0
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def key(
    reference: str, environ: dict[str, str] | None = None, cwd: Path = Path("/"), ask: FakeAsk | None = None
) -> str:
    found = await resolve_key(reference, environ or {}, cwd=cwd, ask=ask or FakeAsk())
    return found.reveal()


async def refusal(
    reference: str, environ: dict[str, str] | None = None, cwd: Path = Path("/"), ask: FakeAsk | None = None
) -> str:
    with pytest.raises(CannotRunError) as refused:
        await key(reference, environ, cwd, ask)
    assert refused.value.error_type is ErrorType.AUTH_FAILED
    assert KEY not in refused.value.message
    return refused.value.message


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == KEY
    assert KEY not in repr(Answer(0, None, KEY, KEY))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("$ACME_KEY", KeyReference(KeySource.VARIABLE, ("ACME_KEY",))),
        ("${ACME_KEY}", KeyReference(KeySource.VARIABLE, ("ACME_KEY",))),
        ("file: ~/key ", KeyReference(KeySource.FILE, ("~/key",))),
        ("cmd:pass show 'a b'", KeyReference(KeySource.COMMAND, ("pass", "show", "a b"))),
    ],
)
def test_references_are_read(text: str, reference: KeyReference) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize("text", ["", KEY, "$", "$A-B", "${A", "file:", "file: ", "cmd:", "cmd: ", "cmd:'a"])
async def test_what_is_no_reference_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_reference(text)
    assert "$ACME_API_KEY" in (wrong.value.hint or "")
    with pytest.raises(CannotRunError) as refused:
        await key(text)
    assert refused.value.error_type is ErrorType.CONFIG_ERROR
    assert KEY not in refused.value.message


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_reference(text).words


async def test_a_variable() -> None:
    assert await key("$K", {"K": f" {KEY}\n"}) == KEY
    assert "the variable K is not set" in await refusal("$K", {"K": " "})
    assert ".env beside pipe.md" in await refusal("$K")


async def test_a_file_must_be_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    assert await key(f"file:{file}") == KEY
    assert await key("file:key", cwd=tmp_path) == KEY
    assert await key("file:~/key", {"HOME": str(tmp_path)}) == KEY
    file.chmod(0o640)
    assert f"(mode 640); chmod 600 {file}" in await refusal(f"file:{file}")
    file.chmod(0o400)
    assert await key(f"file:{file}") == KEY
    assert "cannot be read: No such file" in await refusal("file:nowhere")
    assert "cannot be read" in await refusal("file:~/nowhere")


async def test_a_file_without_a_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    assert "is empty" in await refusal(f"file:{file}")
    file.write_bytes(b"\xff\xfe")
    assert "is no text" in await refusal(f"file:{file}")


async def test_a_command_is_run_where_the_presets_are() -> None:
    ask = FakeAsk()
    assert await key("cmd:pass show acme", {"HOME": "/h"}, Path("/conf"), ask) == KEY
    assert ask.programs == [Program(("pass", "show", "acme"), "/conf", {"HOME": "/h"})]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(1, None, KEY, KEY), "(pass) exits with 1"),
        (Answer(None, 9), "(pass) was killed by signal 9"),
        (Answer(0, None, " \n"), "must print one line"),
        (Answer(0, None, f"{KEY}\nmore"), "must print one line"),
        (TimeoutError(), "did not end within 30 s"),
        (StartFailedError("no such file"), "cannot be started: no such file"),
    ],
)
async def test_a_command_that_gives_no_key(answer: Answer | Exception, words: str) -> None:
    assert words in await refusal("cmd:pass show acme", ask=FakeAsk(answer))
