"""agents.toml: adapters as data.

A wrong key is told with file, line and what was meant, and harms only its agent.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisord_py.pipes import adapters as a
from supervisord_py.pipes.adapters import (
    AgentSpec,
    CannotRunError,
    Variable,
    in_range,
    load_adapters,
    parse_version,
)
from supervisord_py.pipes.outcome import ErrorPattern, SuccessRule
from supervisord_py.pipes.presets import PresetTable
from supervisord_py.pipes.streams import PARSERS

MAN = Path(__file__).parents[2] / "man" / "man5"
OURS = {"aider", "claude", "codex", "command", "gemini", "llm", "opencode", "pi", "qwen"}


def loaded(tmp_path: Path, text: str) -> a.Adapters:
    file = tmp_path / "agents.toml"
    file.write_text(text)
    return load_adapters(file)


def test_the_adapters_that_come_along_are_all_right(tmp_path: Path) -> None:
    found = load_adapters(tmp_path / "absent.toml")
    assert (set(found.agents), found.problems) == (OURS, [])
    assert set(a.ParserName.__args__) == set(PARSERS)  # type: ignore[attr-defined]  # of a Literal
    uninstallable = {name for name, spec in found.agents.items() if spec.install is None}
    assert uninstallable == {"command"}


def test_an_adapter_of_a_users_own_and_one_that_is_overridden_key_by_key(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
[agents.pi]
extra_argv = ["--tools", "read"]
env.PI_TELEMETRY = "1"
[agents.mine]
argv = ["my-agent", ["--model", "{model}"]]
prompt = "arg"
prompt_argv = ["--", "{prompt}"]
env = { A = "1", B = { value = "{model}", when = ["url"] } }
provider_keys = { acme = "ACME_KEY", other = ["A", "B"] }
""",
    )
    assert found.problems == []
    spec, mine, ours = found.get("mine"), found.get("pi"), load_adapters(None).get("pi")
    assert spec.argv == ("my-agent", ("--model", "{model}"))
    assert (spec.prompt, spec.env["B"]) == ("arg", Variable("{model}", ("url",)))
    assert [spec.keys_of(each) for each in ("acme", "nobody", None)] == [
        ("ACME_KEY",),
        (),
        ("ACME_KEY", "A", "B"),
    ]
    assert (mine.extra_argv, mine.env["PI_TELEMETRY"], len(mine.env)) == (
        ("--tools", "read"),
        "1",
        len(ours.env),
    )
    assert (mine.argv, mine.files, mine.version) == (ours.argv, ours.files, ours.version)


X = 'argv = ["x"]\n'
WRONG = [
    (X + 'prmpt = "stdin"', "prmpt", "unknown key 'prmpt'; did you mean 'prompt'?"),
    ('parser = "text"', "", "the key 'argv' is missing"),
    ('argv = ["x", "{modle}"]', "argv", "{modle} is no placeholder; did you mean 'model'?"),
    ('argv = ["x", "{key}"]', "argv", "{key} cannot stand here"),
    (X + 'prompt = "file"', "prompt", '"file" needs {prompt_file} in prompt_argv'),
    (X + 'env = { "A-B" = "1" }', "env/A-B", "'A-B' cannot be set for an agent"),
    (X + 'env = { PX_UNIT = "1" }', "env/PX_UNIT", "'PX_UNIT' cannot be set for an agent"),
    (
        X + 'errors = [{ type = "crash", pattern = "(" }]',
        "errors/0/pattern",
        "is no regular expression",
    ),
]


@pytest.mark.parametrize(("text", "key", "message"), WRONG)
def test_what_is_wrong_is_told_and_takes_only_its_own_agent_away(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    found = loaded(
        tmp_path, f"# first line\n[agents.mine]\n{text}\n\n[agents.other]\nargv = ['y']\n"
    )
    assert set(found.agents) == {*OURS, "other"}
    [problem] = found.problems
    assert problem.pointer.startswith(f"/agents/mine/{key}".rstrip("/"))
    assert message in problem.message
    assert problem.line in {2, 3, 4}
    with pytest.raises(CannotRunError, match="the agent 'mine' is broken") as caught:
        found.get("mine")
    assert a.finding(problem) in caught.value.detail


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agents.pi\n", "is no TOML"),
        ("[agent.pi]\n", "'agent' has no place here"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_file_takes_no_adapter_of_ours_away(
    tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "agents.toml"
    file.mkdir() if text is None else file.write_text(text)
    found = load_adapters(file)
    assert set(found.agents) == OURS
    assert message in found.problems[0].message
    with pytest.raises(CannotRunError, match=r"there is no agent 'zzz'; and .*agents\.toml.*:"):
        found.get("zzz")


def test_a_broken_override_takes_ours_away_and_the_nearest_agent_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="must be an object"):
        loaded(tmp_path, "[agents]\npi = 1\n").get("pi")
    with pytest.raises(CannotRunError, match=r"did you mean 'claude'\?"):
        load_adapters(None).get("cladue")


def test_every_key_and_every_placeholder_is_documented() -> None:
    tables = [
        AgentSpec,
        Variable,
        a.PrivateFile,
        a.TextByVersion,
        a.VersionRule,
        a.StopRule,
        SuccessRule,
        ErrorPattern,
    ]
    keys = {each.encode_name for table in tables for each in msgspec.structs.fields(table)} - {
        "name"
    }
    pages = {
        "agents.toml.5": keys | a.PLACEHOLDERS,
        "presets.toml.5": set(PresetTable.__struct_fields__) - {"id"},
    }
    for page, names in pages.items():
        text = (MAN / page).read_text()
        missing = [
            it
            for it in sorted(names)
            if not re.search(rf"^\.(B|BR|BI) (.*\W)?{it}(\W|$)", text, re.MULTILINE)
        ]
        assert missing == [], page


# -- placeholders and versions ---------------------------------------------------------------------

VALUES = {
    "model": "m",
    "url": 'a"b',
    "execution_id": 7,
    "api": None,
    "max_tokens": 5,
    "input_cost": 0.5,
}
FILLED: list[tuple[Any, Any]] = [
    ('{"a": {model}, {env:PX}, {url:json}, {execution_id}}', '{"a": m, {env:PX}, "a\\"b", 7}'),
    ("{api|x y}{api|}", "x y"),
    ("{api}", None),
    ("{api:json|v} {model:json|v}", '"v" "m"'),
    ({"{model}": "{max_tokens}", "{api}": "gone", "cost": "{input_cost}"}, {"m": 5, "cost": 0.5}),
    ({"zero": "{output_cost|0}", "word": "{effort|true}"}, {"zero": 0, "word": "true"}),
    ({"list": ["{api}", "x", {"y": "{api}"}], "plain": None}, {"list": ["x", {}], "plain": None}),
]


@pytest.mark.parametrize(("template", "filled"), FILLED)
def test_placeholders_are_filled_and_a_missing_one_takes_its_member_along(
    template: Any, filled: Any
) -> None:
    assert (
        a.fill(template, VALUES) if isinstance(template, str) else a.fill_json(template, VALUES)
    ) == filled


def test_a_version_is_found_in_what_programs_print() -> None:
    printed = {
        "0.74.2\n": (0, 74, 2),
        "v20.20.2": (20, 20, 2),
        "llm, 0.36": (0, 36),
        "12 o'clock": None,
        "x1.2": None,
    }
    assert {text: parse_version(text) for text in printed} == printed


def test_a_range_has_all_of_its_bounds() -> None:
    inside = [
        in_range(each, ">=0.74, <2")
        for each in [(0, 73, 9), (0, 74), (0, 74, 0), (1, 99), (2,), (2, 0)]
    ]
    assert inside == [False, True, True, True, False, False]
    assert [in_range((1, 2), f"{sign}1.2") for sign in ("==", "!=", ">", "<", ">=", "<=")] == [
        *(True, False, False, False, True, True)
    ]
    pi = load_adapters(None).get("pi")
    assert [pi.reference(it) for it in ((0, 76, 9), (0, 77), None)] == [
        "PX_KEY",
        "$PX_KEY",
        "$PX_KEY",
    ]
    assert AgentSpec().reference((1, 0)) is None
