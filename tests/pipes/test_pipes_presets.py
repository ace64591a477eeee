"""Presets: what a pipe names is what it gets, or a sentence; never another model in silence
(A1-A4, A8, A9, I3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisord_py.ledger.pipes import ErrorType, Plan, Preset
from supervisord_py.pipes.adapters import CannotRunError, finding
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.presets import Presets, load_presets, resolve
from supervisord_py.pipes.schedule import Manual

TEXT = """
[presets.fast]
url = "http://127.0.0.1:8000/v1"
model = "small"
api_key = "$ACME_KEY"
prompt = "Be brief."
input_cost = 0.5
max_tokens = 1000

[presets.good]
provider = "anthropic"
model = "opus"
effort = "high"
default = true

[presets.local]
provider = "native-ollama"
"""
TWO_DEFAULTS = "[presets.a]\ndefault = true\n[presets.b]\ndefault = true\n"
COMMAND = Plan("command", ("cat",))


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(text: str = TEXT) -> Presets:
        file = tmp_path / "presets.toml"
        file.write_text(text)
        return load_presets(file)

    return load


def pipe(*presets: str, **fields: Any) -> PipeDefinition:
    return PipeDefinition(
        "p", Path("/p"), Path("/p/pipe.md"), Manual(), "manual", "body", presets=presets, **fields
    )


def refused(definition: PipeDefinition, presets: Presets) -> CannotRunError:
    with pytest.raises(CannotRunError) as caught:
        resolve(definition, presets)
    return caught.value


def test_the_file_is_read_whole_and_one_that_is_not_there_is_no_problem(
    load: Any, tmp_path: Path
) -> None:
    absent = load_presets(tmp_path / "absent")
    assert (absent.problems, absent.by_id, absent.default_id) == ([], {}, None)
    assert "cannot be read" in load_presets(tmp_path).problems[0].message
    presets: Presets = load()
    assert (presets.problems, list(presets.by_id), presets.default_id) == (
        [],
        ["fast", "good", "local"],
        "good",
    )
    place = ("custom", "small", "http://127.0.0.1:8000/v1", "openai-completions", "$ACME_KEY")
    assert presets.by_id["fast"] == Preset(
        "fast", *place, "Be brief.", input_cost=0.5, max_tokens=1000
    )
    assert presets.by_id["local"].provider == "ollama"


@pytest.mark.parametrize(
    ("definition", "names"),
    [
        (pipe("fast", provider="openai", model="gpt"), ["fast"]),
        (pipe(provider="openai", model="gpt"), [None]),
        (pipe(), ["good"]),
        (pipe("pi-agent"), ["good"]),
        (pipe("local", "fast", "local"), ["local", "fast"]),
        (pipe("local", "*"), ["local", "fast", "good"]),
        (pipe(plan=COMMAND), [None]),
        (pipe("auto", plan=COMMAND), [None]),
        (pipe("fast", plan=COMMAND), ["fast"]),
    ],
)
def test_the_order_is_preset_then_the_pipes_own_then_the_default_then_nothing(
    load: Any, definition: PipeDefinition, names: list[str | None]
) -> None:
    chain, _ = resolve(definition, load())
    assert [each.id for each in chain] == names
    assert resolve(pipe(), load(""))[0] == (Preset(),)
    assert resolve(pipe(provider="native-ollama"), load())[0][0].provider == "ollama"
    assert [resolve(pipe(*it, effort="low"), load())[0][0].effort for it in ((), ("good",))] == [
        "low",
        "low",
    ]


def test_a_missing_preset_is_named_with_the_file_and_those_there_are(load: Any) -> None:
    presets: Presets = load()
    trouble = refused(pipe("good", "fats", model="gpt"), presets)
    assert trouble.error_type is ErrorType.PRESET_NOT_FOUND
    said = (
        f"there is no preset 'fats' in {presets.file}; did you mean 'fast'?; there are: fast, "
        "good, local"
    )
    assert (trouble.detail, "add [presets.fats]" in str(trouble.hint)) == (said, True)
    assert "there are: none" in refused(pipe("zzz"), load("")).message
    assert "has none" in refused(pipe("*"), load("")).message
    for word in ("auto", "default", "pi-agent"):
        asked = refused(pipe(word, "*"), load("[presets.a]\n"))
        assert (asked.error_type, "is the default one" in asked.message) == (
            ErrorType.PRESET_NOT_FOUND,
            True,
        )


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('modle = "x"', "modle", "unknown key 'modle'; did you mean 'model'?"),
        ('url = "localhost"', "url", "is no address"),
        ('provider = "custom"', "provider", "needs its url"),
        ('api_key = "sk-123456789"', "api_key", "is no reference"),
        ("output_cost = nan", "output_cost", ">= 0"),
    ],
)
def test_what_is_wrong_takes_only_its_own_preset_away(
    load: Any, text: str, key: str, message: str
) -> None:
    presets: Presets = load(f"{TEXT}\n[presets.bad]\n{text}\n")
    assert list(presets.by_id) == ["fast", "good", "local"]
    [problem] = presets.problems
    assert (problem.pointer, problem.line) == (f"/presets/bad/{key}", TEXT.count("\n") + 3)
    assert (message in problem.message, "sk-123456789" in str(problem)) == (True, False)
    assert f"'bad' is broken: {finding(problem)}" in refused(pipe("bad"), presets).message


@pytest.mark.parametrize(
    ("text", "pointer", "told"),
    [
        ("[presets.auto]\n", "/presets/auto", "cannot be called 'auto'"),
        (TWO_DEFAULTS, "/presets/b/default", "another preset is the default one already"),
        ("[preset.a]\n", "/preset", "'preset' has no place here"),
        ("[presets.a", "", "is no TOML"),
    ],
)
def test_names_defaults_and_files_that_cannot_be(
    load: Any, text: str, pointer: str, told: str
) -> None:
    [problem] = load(text).problems
    assert (problem.pointer, told in problem.message) == (pointer, True)


def test_a_broken_default_is_never_passed_over(load: Any) -> None:
    for text in (
        "[presets.main]\nmodle = 'x'\ndefault = true\n",
        "[presets.default]\n",
        "[presets.a",
    ):
        found = refused(pipe(), load(text))
        assert found.error_type is ErrorType.CONFIG_ERROR
        assert resolve(pipe(model="own"), load(text))[0][0].model == "own"
    assert resolve(pipe(), load(TWO_DEFAULTS))[0][0].id == "a"
