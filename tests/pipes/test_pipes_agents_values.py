"""What adapters are filled with: versions, gaps, command lines, files, environments. Values in, values out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.agents.catalog import load_agents
from supervisord_py.pipes.agents.command_line import ARGUMENT_BYTES, command_line
from supervisord_py.pipes.agents.environment import Layers, build_environment, key_variable
from supervisord_py.pipes.agents.launching import HAS_KEY, Places, gap_values
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.run_files import FileText, file_texts
from supervisord_py.pipes.agents.secrets import Secret
from supervisord_py.pipes.agents.spec import AgentSpec, ByVersion, Piece, PrivateFile, PromptBy, Variable
from supervisord_py.pipes.agents.templates import GAPS, fill, fill_json, gaps, gaps_of, missing
from supervisord_py.pipes.agents.versions import Version, parse_range, parse_version, version_text
from supervisord_py.pipes.execution import ErrorType, Preset

BUILTIN = load_agents(None)
PLACES = Places("/run/7", "/run/7/agent", "/run/7/prompt.md", "/sessions/p", "/p/output/7", "/p", "p", 7, "/s")
CUSTOM = Preset("x", "custom", "m", "http://127.0.0.1:1/v1/", "openai-completions", "$K")


# -- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("0.74.2\n", (0, 74, 2)),
        ("v20.20.2", (20, 20, 2)),
        ("codex-cli 0.169.0", (0, 169, 0)),
        ("2.1.328 (Claude Code)", (2, 1, 328)),
        ("llm, version 0.36", (0, 36)),
        ("nothing at 12 o'clock", None),
        ("x1.2", None),
    ],
)
def test_a_version_is_found_in_what_programs_print(printed: str, version: Version | None) -> None:
    assert parse_version(printed) == version


@given(st.lists(st.integers(0, 99), min_size=2, max_size=4).map(tuple))
def test_a_version_is_read_back(version: Version) -> None:
    assert parse_version(version_text(version)) == version
    assert version in parse_range(f"=={version_text(version)}")
    assert version not in parse_range(f"!={version_text(version)}")
    assert version in parse_range(f">={version_text(version)}, <={version_text(version)}")
    assert version not in parse_range(f"<{version_text(version)}")
    assert version not in parse_range(f">{version_text(version)}")


def test_a_range_has_all_of_its_bounds() -> None:
    wanted = parse_range(">=0.74,<2")
    assert [each in wanted for each in [(0, 73, 9), (0, 74), (0, 74, 0), (1, 99), (2,), (2, 0)]] == [
        *(False, True, True, True),
        *(False, False),
    ]
    assert str(wanted) == ">=0.74,<2"


@pytest.mark.parametrize("text", ["", "0.74", "~1.2", ">=1 || <3", ">=x"])
def test_what_is_no_range_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no bound of a version"):
        parse_range(text)


# -- gaps -----------------------------------------------------------------------------------------------------------


def test_gaps_are_filled_and_other_braces_stay() -> None:
    values = {"model": "m", "url": 'a"b', "execution_id": 7, "api": None}
    assert fill('{"a": {model}, {env:PX}, {url:json}, {execution_id}}', values) == '{"a": m, {env:PX}, "a\\"b", 7}'
    assert fill("{api|x y}{api|}", values) == "x y"
    assert fill("{api}", values) is None
    assert fill("{api:json|v} {model:json|v}", values) == '"v" "m"'
    assert gaps("{model}{b|c}") == ("model", "b")
    assert list(gaps_of({"{a}": ["{b}", 1, {"c": "{d}"}]})) == ["a", "b", "d"]
    assert missing("{api}{model}{nobody}", values) == ("api", "nobody")


def test_in_json_a_gap_keeps_its_type_and_a_missing_one_takes_its_member_along() -> None:
    values = {"model": "m", "max_tokens": 5, "input_cost": 0.5, "url": None}
    template = {
        "{model}": "{max_tokens}",
        "{url}": "gone",
        "cost": "{input_cost}",
        "text": "a {model}",
        "quoted": "{model:json}",
        "default": "{output_cost|0}",
        "word": "{effort|low}",
        "flag": "{effort|true}",
        "list": ["{url}", "x", {"y": "{url}"}],
        "plain": None,
    }
    assert fill_json(template, values) == {
        "m": 5,
        "cost": 0.5,
        "text": "a m",
        "quoted": '"m"',
        "default": 0,
        "word": "low",
        "flag": "true",
        "list": ["x", {}],
        "plain": None,
    }
    assert fill_json("{url}", values) is None


@given(st.text())
def test_a_text_without_gaps_stays_as_it_is(text: str) -> None:
    if not gaps(text):
        assert fill(text, {}) == text
        assert fill_json({"x": [text]}, {}) == {"x": [text]}


def test_every_gap_has_a_value_from_somewhere() -> None:
    values = gap_values(BUILTIN.get("pi"), CUSTOM, PLACES, version=(0, 74, 2), has_key=True)
    assert {*values, "prompt"} == set(GAPS)
    assert values["key"] == HAS_KEY
    assert values["url_root"] == "http://127.0.0.1:1"
    assert gap_values(AgentSpec("x", ()), Preset(url="http://h"), PLACES)["provider"] == "custom"
    assert gap_values(AgentSpec("x", ()), Preset(), PLACES)["provider"] is None
    assert gap_values(BUILTIN.get("pi"), Preset(provider="ollama"), PLACES)["url"] == "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    ("version", "reference"), [((0, 73, 1), "PX_KEY"), ((0, 76, 9), "PX_KEY"), ((0, 77), "$PX_KEY"), (None, "$PX_KEY")]
)
def test_pi_is_told_of_its_key_in_the_way_of_its_version(version: Version | None, reference: str) -> None:
    assert BUILTIN.get("pi").reference(version) == reference


def test_a_reference_may_be_the_same_for_all_versions_or_none_at_all() -> None:
    assert AgentSpec("x", (), key_reference=(ByVersion("$K"),)).reference(None) == "$K"
    assert AgentSpec("x", ()).reference((1, 0)) is None


# -- command lines --------------------------------------------------------------------------------------------------


def argv(name: str, preset: Preset, *, history: bool = False) -> tuple[str, ...]:
    spec = BUILTIN.get(name)
    return command_line(spec, gap_values(spec, preset, PLACES), "what to do", history=history)


def test_pi_is_called_in_json_mode_without_a_session() -> None:
    head = ("pi", "--mode", "json", "--offline", "--no-extensions")
    assert argv("pi", Preset()) == (*head, "--no-session")
    assert argv("pi", Preset("x", "openai", "gpt", effort="low")) == (
        *head,
        *("--provider", "openai", "--model", "gpt", "--thinking", "low", "--no-session"),
    )
    assert argv("pi", Preset(), history=True)[-3:] == ("--session-dir", "/sessions/p", "--continue")


@pytest.mark.parametrize("name", sorted(set(BUILTIN.names) - {"command"}))
@pytest.mark.parametrize("preset", [Preset(), CUSTOM, Preset("x", "ollama", "llama", effort="high")])
def test_no_adapter_puts_prompt_or_key_into_its_argv(name: str, preset: Preset) -> None:
    words = argv(name, preset)
    assert "what to do" not in words
    assert not any(HAS_KEY in word or "{" in word for word in words)


def test_prompts_by_file_and_the_odd_ways_of_stdin() -> None:
    assert argv("aider", Preset())[-2:] == ("--message-file", "/run/7/prompt.md")
    assert argv("gemini", Preset())[-2:] == ("-p", "")
    assert argv("codex", Preset(effort="low"))[-3:] == ("-c", 'model_reasoning_effort="low"', "-")


def test_a_piece_that_is_not_optional_needs_its_value() -> None:
    spec = AgentSpec("x", (Piece(("a", "{model}")), Piece(("{effort}",), optional=True)))
    assert command_line(spec, {"model": "m"}, "", history=True) == ("a", "m")
    with pytest.raises(CannotRunError, match="the agent 'x' needs a model") as refused:
        command_line(spec, {}, "", history=False)
    assert refused.value.error_type is ErrorType.CONFIG_ERROR
    assert "model: …" in refused.value.message


@pytest.mark.parametrize(
    ("prompt", "trouble"),
    [
        ("-x", "begins with '-'"),
        ("@file", "begins with '@'"),
        ("a\0b", "holds a NUL"),
        ("é" * ARGUMENT_BYTES, "131072 bytes long"),
    ],
)
def test_a_prompt_that_cannot_be_an_argument_is_refused(prompt: str, trouble: str) -> None:
    spec = AgentSpec("x", (Piece(("a",)),), PromptBy.ARG, prompt_argv=(Piece(("{prompt}",)),))
    with pytest.raises(CannotRunError, match=trouble):
        command_line(spec, {}, prompt, history=False)


def test_behind_two_dashes_a_prompt_may_begin_as_it_likes() -> None:
    spec = AgentSpec("x", (Piece(("a",)),), PromptBy.ARG, prompt_argv=(Piece(("--", "{prompt}")),))
    assert command_line(spec, {}, "-x", history=False) == ("a", "--", "-x")
    assert command_line(replace(spec, prompt_argv=(Piece(("{prompt}",)),)), {}, "x", history=False) == ("a", "x")


# -- files ----------------------------------------------------------------------------------------------------------


def written(name: str, preset: Preset, version: Version | None = None) -> dict[str, str]:
    spec = BUILTIN.get(name)
    values = gap_values(spec, preset, PLACES, version=version, has_key=preset.api_key is not None)
    return {file.path: file.text for file in file_texts(spec, values)}


def test_pi_gets_its_provider_and_no_retries_of_its_own() -> None:
    files = written("pi", replace(CUSTOM, input_cost=3.0, context_window=9000), (0, 74, 2))
    settings = json.loads(files["settings.json"])
    assert settings["retry"] == {"enabled": False, "maxRetries": 0, "provider": {"maxRetries": 0}}
    assert json.loads(files["models.json"]) == {
        "providers": {
            "custom": {
                "baseUrl": "http://127.0.0.1:1/v1/",
                "api": "openai-completions",
                "apiKey": "PX_KEY",
                "models": [
                    {
                        "id": "m",
                        "contextWindow": 9000,
                        "cost": {"input": 3.0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                    }
                ],
            }
        }
    }
    assert json.loads(written("pi", CUSTOM, (0, 84, 1))["models.json"])["providers"]["custom"]["apiKey"] == "$PX_KEY"
    assert files["auth.json"] == "{}\n", "it stores no key and has none of the user's"
    assert set(written("pi", Preset("x", "anthropic", "claude"))) == {"auth.json", "settings.json"}


def test_a_url_needs_a_model_where_the_file_does() -> None:
    with pytest.raises(CannotRunError, match="needs a model"):
        written("pi", Preset(url="http://h/v1"))


def test_files_of_other_adapters_hold_no_key_and_no_loose_end() -> None:
    import tomllib

    config = tomllib.loads(written("codex", replace(CUSTOM, url='http://h/"x'))["config.toml"])
    assert config["model_providers"]["px"]["base_url"] == 'http://h/"x'
    assert config["model_providers"]["px"]["request_max_retries"] == 0
    assert CUSTOM.api == "openai-completions"
    assert config["model_providers"]["px"]["wire_api"] == "responses", "it knows no other"
    models = json.loads(written("opencode", CUSTOM)["opencode.json"])["provider"]["custom"]["models"]
    rest = {"limit": {"context": 0, "output": 0}, "options": {}}
    assert models == {"m": {"name": "m", "cost": {"input": 0, "output": 0}, **rest}}
    assert json.loads(written("aider", CUSTOM)["models.json"])["openai/m"]["litellm_provider"] == "openai"
    assert [word for word in argv("aider", CUSTOM) if word.endswith("m")][-1] == "openai/m", "the last --model counts"
    assert json.loads(written("llm", CUSTOM)["extra-openai-models.yaml"])[0]["api_base"] == CUSTOM.url
    assert json.loads(written("gemini", CUSTOM)[".gemini/settings.json"])["general"]["maxAttempts"] == 1
    assert json.loads(written("qwen", CUSTOM)["settings.json"])["memory"]["enableManagedAutoMemory"] is False
    assert written("gemini", Preset()) == {}
    for name in set(BUILTIN.names):
        assert HAS_KEY not in json.dumps(written(name, CUSTOM))


def test_a_text_file_with_a_missing_gap_is_empty_rather_than_half() -> None:
    spec = AgentSpec("x", (), files=(PrivateFile("a", text="{effort} x"),))
    assert file_texts(spec, {}) == (FileText("a", ""),)


# -- environments ---------------------------------------------------------------------------------------------------

DAEMON = {
    "PATH": "/bin",
    "HOME": "/h",
    "OPENAI_API_KEY": "sk-daemon-openai",
    "ANTHROPIC_API_KEY": "sk-daemon-anthropic",
    "AZURE_OPENAI_BASE_URL": "https://azure",
    "PX_API__TOKEN": "ours",
    "OTHER_TOKEN": "x",
}


def environment(name: str, preset: Preset, dotenv: dict[str, str] | None = None) -> tuple[dict[str, str], set[str]]:
    spec = BUILTIN.get(name)
    values = gap_values(spec, preset, PLACES, has_key=preset.api_key is not None)
    key = Secret("sk-preset") if preset.api_key else None
    provider: Any = values["provider"]
    layers = Layers(DAEMON, ("PATH", "HOME"), dotenv or {}, {"PX_PIPE": "p"}, provider, key)
    env, secrets = build_environment(spec, layers, values)
    return dict(env), set(secrets)


def test_an_agent_gets_the_keys_of_its_own_provider_alone() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt"))
    assert env["OPENAI_API_KEY"] == "sk-daemon-openai"
    assert not {"ANTHROPIC_API_KEY", "OTHER_TOKEN", "PX_API__TOKEN", "PX_KEY"} & set(env)
    assert env["AZURE_OPENAI_BASE_URL"] == "https://azure"
    assert env["PX_PIPE"] == "p"
    assert secrets == {"sk-daemon-openai"}
    assert environment("pi", Preset("x", "unheard-of"))[1] == set()


def test_where_the_agent_chooses_it_gets_what_it_may_choose_from() -> None:
    assert environment("pi", Preset())[1] == {"sk-daemon-openai", "sk-daemon-anthropic"}


def test_a_presets_key_replaces_the_daemons() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt", api_key="$K"))
    assert (env["OPENAI_API_KEY"], secrets) == ("sk-preset", {"sk-preset"})
    env, _ = environment("pi", CUSTOM)
    assert env["PX_KEY"] == "sk-preset"
    assert "OPENAI_API_KEY" not in env
    env, secrets = environment("pi", Preset("x", "ollama", "llama"))
    assert (env["PX_KEY"], secrets) == ("none", set())


def test_dotenv_passes_whole_and_what_looks_like_a_key_in_it_is_a_secret() -> None:
    env, secrets = environment("command", Preset(), {"MY_TOKEN": "t-123", "COLOR": "red", "EMPTY_KEY": ""})
    assert {"MY_TOKEN", "COLOR", "EMPTY_KEY", "PATH"} <= set(env)
    assert secrets == {"t-123"}


def test_claude_stands_apart_from_the_users_login_only_with_a_key_of_its_own() -> None:
    assert "CLAUDE_CONFIG_DIR" not in environment("claude", Preset())[0]
    env, _ = environment("claude", Preset("x", model="opus", api_key="$K"))
    assert (env["CLAUDE_CONFIG_DIR"], env["ANTHROPIC_API_KEY"]) == ("/run/7/agent", "sk-preset")
    assert environment("claude", CUSTOM)[0]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"


def test_a_variable_with_the_key_in_it_is_left_out_without_one() -> None:
    spec = AgentSpec("x", (), env=(Variable("AUTH", "Bearer {key}"),))
    assert "AUTH" not in build_environment(spec, Layers({}, (), {}, {}), {})[0]
    env, secrets = build_environment(spec, Layers({}, (), {}, {}, key=Secret("abc")), {})
    assert (env["AUTH"], secrets) == ("Bearer abc", ("abc",))


def test_the_variable_of_the_key() -> None:
    one = AgentSpec("x", (), key_variable="K", provider_keys={"a": ("A", "B")})
    assert key_variable(one, None, has_url=False) == "A"
    assert key_variable(one, "a", has_url=True) == "K"
    two = replace(one, provider_keys={"a": ("A",), "b": ("B",)})
    assert [key_variable(two, each, has_url=False) for each in ("b", None)] == ["B", "K"]
