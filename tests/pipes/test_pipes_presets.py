"""Presets: what a pipe names is what it gets, or a sentence; never another model in silence (A1-A4, A8, A9, I3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.agents.presets import (
    PresetProblem,
    Presets,
    Resolved,
    load_presets,
    parse_presets,
    resolve,
)
from supervisord_py.pipes.execution import ErrorType, Preset
from supervisord_py.pipes.models import Fingerprint, PipeDefinition
from supervisord_py.pipes.schedule import Manual

FILE = "/conf/presets.toml"
TEXT = """
[presets.fast]
provider = "custom"
url = "http://127.0.0.1:8000/v1"
model = "small"
api_key = "$ACME_KEY"
prompt = "Be brief."
input_cost = 0.5
output_cost = 2
context_window = 32000
max_tokens = 1000

[presets.good]
provider = "anthropic"
model = "opus"
effort = "high"
default = true

[presets.local]
provider = "native-ollama"
model = "llama3"
"""
PRESETS = parse_presets(TEXT, FILE)


def pipe(*presets: str, **fields: Any) -> PipeDefinition:
    print_ = Fingerprint(0, 0, 0, 0, "")
    return PipeDefinition(
        "p", Path("/p"), Path("/p/pipe.md"), print_, Manual(), "manual", "body", presets=presets, **fields
    )


def resolved(definition: PipeDefinition, presets: Presets = PRESETS) -> Resolved:
    found = resolve(definition, presets)
    assert isinstance(found, Resolved), found
    return found


def refused(definition: PipeDefinition, presets: Presets = PRESETS) -> PresetProblem:
    found = resolve(definition, presets)
    assert isinstance(found, PresetProblem)
    return found


def test_the_file_is_read_whole() -> None:
    assert PRESETS.problems == ()
    assert PRESETS.names == ("fast", "good", "local")
    assert PRESETS.default_id == "good"
    assert PRESETS.by_id["fast"] == Preset(
        id="fast",
        provider="custom",
        model="small",
        url="http://127.0.0.1:8000/v1",
        api="openai-completions",
        api_key="$ACME_KEY",
        prompt="Be brief.",
        input_cost=0.5,
        output_cost=2,
        context_window=32000,
        max_tokens=1000,
    )
    assert PRESETS.by_id["local"].provider == "ollama"
    assert parse_presets('[presets.x]\nurl = "http://h"\n', FILE).by_id["x"].provider == "custom"


def test_the_order_is_preset_then_the_pipes_own_then_the_default_then_nothing() -> None:
    assert resolved(pipe("fast", provider="openai", model="gpt")).preset.id == "fast"
    assert resolved(pipe(provider="openai", model="gpt")).preset == Preset(provider="openai", model="gpt")
    assert resolved(pipe(model="gpt", effort="low")).preset == Preset(model="gpt", effort="low")
    assert resolved(pipe(provider="native-ollama")).preset.provider == "ollama"
    assert resolved(pipe()).preset.id == "good"
    assert resolved(pipe(), Presets(FILE)).preset == Preset()


def test_the_default_is_not_for_programs_that_ask_no_model() -> None:
    own = pipe(agent="command", command=("cat",), effort="low")
    assert resolved(own) == Resolved(Preset(effort="low"))
    assert resolved(pipe("fast", agent="command", command=("cat",))).preset.id == "fast", "but what it names is"


def test_a_list_is_a_chain_and_the_star_is_all_others() -> None:
    found = resolved(pipe("local", "fast", "local"))
    assert [each.id for each in (found.preset, *found.fallbacks)] == ["local", "fast"]
    found = resolved(pipe("local", "*"))
    assert [each.id for each in (found.preset, *found.fallbacks)] == ["local", "fast", "good"]
    assert [each.id for each in resolved(pipe("fast", "auto")).fallbacks] == ["good"]
    assert resolved(pipe("pi-agent")).preset.id == "good"


@pytest.mark.parametrize("word", ["auto", "default", "pi-agent"])
def test_who_asks_for_the_default_preset_gets_it_or_a_problem(word: str) -> None:
    assert resolved(pipe(word, model="gpt")).preset.id == "good"
    trouble = refused(pipe(word, model="gpt"), Presets(FILE, {"fast": PRESETS.by_id["fast"]}))
    assert trouble.error_type is ErrorType.PRESET_NOT_FOUND
    assert "is the default one" in trouble.message
    assert "default = true" in trouble.hint
    program = pipe(word, agent="command", command=("cat",))
    assert resolved(program) == Resolved(Preset()), "a program asks no model"
    twice = parse_presets("[presets.a]\ndefault = true\n[presets.b]\ndefault = true\n", FILE)
    assert "already" in resolved(pipe(word), twice).warnings[0]


def test_the_pipes_effort_wins() -> None:
    assert resolved(pipe("good", effort="low")).preset.effort == "low"
    assert resolved(pipe(effort="low")).preset.effort == "low"
    assert resolved(pipe("good")).preset.effort == "high"


def test_a_missing_preset_is_named_with_the_file_and_those_there_are() -> None:
    trouble = refused(pipe("good", "fats", model="gpt"))
    assert trouble.error_type is ErrorType.PRESET_NOT_FOUND
    assert trouble.message == "there is no preset 'fats' in /conf/presets.toml; there are: fast, good, local"
    assert trouble.hint == "did you mean 'fast'?"
    assert "add [presets.zzz]" in refused(pipe("zzz")).hint
    assert "there are: none at all" in refused(pipe("zzz"), Presets(FILE)).message
    assert "no preset of /conf/presets.toml is the default one" in refused(pipe("auto", "*"), Presets(FILE)).message
    assert "has none" in refused(pipe("*"), Presets(FILE)).message


WRONG = [
    ('modle = "x"', "modle", "there is no such key", "did you mean 'model'?"),
    ("model = 1", "model", "1 is not a text", "leave the key out"),
    ('model = ""', "model", "is not a text", "leave the key out"),
    ('effort = "max"', "effort", "'max' is none of low, medium, high", "low"),
    ('url = "localhost"', "url", "is no address", "https://"),
    ('provider = "custom"', "provider", "needs its url", "http://127.0.0.1:8000/v1"),
    ('api_key = "sk-123456789"', "api_key", "is no reference", "$ACME_API_KEY"),
    ("input_cost = -1", "input_cost", "is not a number of at least 0", "leave the key out"),
    ("output_cost = nan", "output_cost", "is not a number", "leave the key out"),
    ("max_tokens = 1.5", "max_tokens", "is not a whole number", "leave the key out"),
    ('default = "yes"', "default", "is not true or false", "leave the key out"),
]


@pytest.mark.parametrize(("text", "key", "detail", "hint"), WRONG)
def test_what_is_wrong_takes_only_its_own_preset_away(text: str, key: str, detail: str, hint: str) -> None:
    presets = parse_presets(f"{TEXT}\n[presets.bad]\n{text}\n", FILE)
    assert presets.names == PRESETS.names
    (problem,) = presets.problems
    assert problem.key == key
    trouble = refused(pipe("bad"), presets)
    assert problem.hint == trouble.hint
    assert problem.hint not in trouble.message, "it is said once"
    assert detail in problem.detail
    assert hint in problem.hint
    assert problem.line == TEXT.count("\n") + 3
    assert "sk-123456789" not in problem.text
    assert f"'bad' is broken: {problem.finding}" in refused(pipe("bad"), presets).message


def test_names_and_defaults_that_cannot_be() -> None:
    assert [problem.key for problem in parse_presets('[presets.auto]\n[presets."*"]\n', FILE).problems] == ["auto", "*"]
    two = parse_presets("[presets.a]\ndefault = true\n[presets.b]\ndefault = true\n", FILE)
    assert (two.default_id, list(two.broken)) == ("a", ["b"])
    assert "is no table" in parse_presets("[presets]\na = 1\n", FILE).problems[0].detail
    assert "'preset' has no place here" in parse_presets("[preset.a]\n", FILE).problems[0].text
    assert parse_presets("[preset.a]\n", FILE).problems[0].hint == "write [presets.a]"
    assert parse_presets("[fast]\n", FILE).problems[0].hint == "write [presets.fast]"
    assert "'presets' has no place here" in parse_presets("presets = 1\n", FILE).problems[0].text


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    parse_presets(text, FILE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "presets.toml"
    assert load_presets(file) == Presets(str(file))
    file.write_bytes(b"\xef\xbb\xbf[presets.a]\n")
    assert load_presets(file).names == ("a",)
    file.write_bytes(b"\xff")
    assert "is not UTF-8 at byte 0" in load_presets(file).problems[0].text
    file.unlink()
    file.mkdir()
    assert "cannot be read" in load_presets(file).problems[0].text


def test_whoever_gets_the_default_preset_is_told_of_a_second_one() -> None:
    both = parse_presets("[presets.a]\ndefault = true\n[presets.b]\ndefault = true\n", FILE)
    found = resolve(pipe(), both)
    assert isinstance(found, Resolved)
    assert found.preset.id == "a"
    assert len(found.warnings) == 1
    assert "[presets.b] default: another preset is the default one already" in found.warnings[0]
