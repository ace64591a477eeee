"""agents.toml: adapters as data. A wrong key is told with file, key and what was meant, and harms only its agent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.agents.catalog import AgentCatalog, load_agents
from supervisord_py.pipes.agents.presets import parse_presets
from supervisord_py.pipes.agents.spec import AgentLimits, AuthCheck, Piece, PrivateFile, PromptBy, StopRule, Variable
from supervisord_py.pipes.agents.spec_reading import read_spec
from supervisord_py.pipes.agents.templates import GAPS
from supervisord_py.pipes.agents.toml_table import TomlTable, line_of, nearest, quoted
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.values import ErrorPattern, Requirement

MAN = Path(__file__).parents[2] / "man" / "man5"
OURS = ("aider", "claude", "codex", "command", "gemini", "llm", "opencode", "pi", "qwen")


def loaded(tmp_path: Path, text: str) -> AgentCatalog:
    file = tmp_path / "agents.toml"
    file.write_text(text)
    return load_agents(file)


def test_the_adapters_that_come_along_are_all_right(tmp_path: Path) -> None:
    catalog = load_agents(tmp_path / "absent.toml")
    assert catalog.names == OURS
    assert catalog.problems == ()
    assert load_agents(None).names == OURS


def test_an_adapter_of_a_users_own(tmp_path: Path) -> None:
    catalog = loaded(
        tmp_path,
        """
[agents.mine]
argv = ["my-agent", ["--model", "{model}"]]
prompt = "arg"
prompt_argv = ["--", "{prompt}"]
parser = "pi-jsonl"
pass_env = ["ACME_*"]
key_variable = "ACME_KEY"
provider_keys = { acme = "ACME_KEY" }
extra_argv = ["-v"]
env = { A = "1", B = { value = "{model}", when = "url" } }
errors = [{ type = "rate_limited", pattern = 'slow down' }]
success = { exit = 3, require = "text", scan_output = true }
stop = { signal = "int", grace_seconds = 1.5, settle_seconds = 0 }
limits = { turns = 3, tokens = 1000, cost = 0.5 }
auth_check = { argv = ["my-agent", "auth"] }
[agents.mine.files."a/b.json"]
json = [1]
""",
    )
    assert catalog.problems == ()
    spec = catalog.get("mine")
    assert spec.argv == (Piece(("my-agent",)), Piece(("--model", "{model}"), optional=True))
    assert (spec.prompt, spec.parser, spec.pass_env) == (PromptBy.ARG, "pi-jsonl", ("ACME_*",))
    assert spec.env == (Variable("A", "1"), Variable("B", "{model}", ("url",)))
    assert spec.success.patterns == (ErrorPattern(ErrorType.RATE_LIMITED, "slow down"),)
    assert (spec.success.exit_codes, spec.success.require) == ((3,), Requirement.TEXT)
    assert spec.stop == StopRule(2, 1.5, 0)
    assert spec.limits == AgentLimits(3, 1000, 0.5)
    assert spec.auth_check == AuthCheck((Piece(("my-agent",)), Piece(("auth",))))
    assert spec.files == (PrivateFile("a/b.json", json=[1]),)
    assert not spec.supports_history


def test_a_known_adapter_is_overridden_key_by_key(tmp_path: Path) -> None:
    catalog = loaded(tmp_path, '[agents.pi]\nextra_argv = ["--tools", "read"]\nenv.PI_TELEMETRY = "1"\n')
    mine, ours = catalog.get("pi"), load_agents(None).get("pi")
    assert mine.extra_argv == (Piece(("--tools",)), Piece(("read",)))
    assert {each.name: each.value for each in mine.env}["PI_TELEMETRY"] == "1"
    assert len(mine.env) == len(ours.env)
    assert (mine.argv, mine.files, mine.version) == (ours.argv, ours.files, ours.version)


WRONG = [
    ('argv = ["x"]\nprmpt = "stdin"', "prmpt", "there is no such key", "did you mean 'prompt'?"),
    ('parser = "text"', "argv", "is missing", "my-agent"),
    ('argv = "x"', "argv", "'x' is no command line", "program"),
    ('argv = ["x", 1]', "argv", "is no command line", "program"),
    ('argv = ["x", "{modle}"]', "argv", "{modle} is no gap", "did you mean {model}?"),
    ('argv = ["x", "{qqqqq}"]', "argv", "{qqqqq} is no gap", "agents.toml(5)"),
    ('argv = ["x", "{key}"]', "argv", "{key} cannot stand here", "agents.toml(5)"),
    ('argv = ["x", "{prompt}"]', "argv", "{prompt} cannot stand here", "agents.toml(5)"),
    ('argv = ["x"]\nprompt = "stdni"', "prompt", "is none of stdin, file, arg", "did you mean 'stdin'?"),
    ('argv = ["x"]\nprompt = 1', "prompt", "1 is not a text", "leave the key out"),
    ('argv = ["x"]\nprompt = "file"', "prompt", '"file" needs {prompt_file}', "prompt_argv"),
    ('argv = ["x"]\nparser = "pi-json"', "parser", "is no output format", "pi-jsonl"),
    ('argv = ["x"]\nenv = 1', "env", "is not a table", "[agents.mine.env]"),
    ('argv = ["x"]\nenv = { "A-B" = "1" }', "A-B", "cannot be set for an agent", "ACME_API_KEY"),
    ('argv = ["x"]\nenv = { PX_UNIT = "1" }', "PX_UNIT", "cannot be set for an agent", "ACME_API_KEY"),
    ('argv = ["x"]\nenv = { A = 1 }', "A", "1 is no text", "write A"),
    ('argv = ["x"]\nenv = { A = { when = "url" } }', "A", "is no text", "write A"),
    ('argv = ["x"]\nenv = { A = { value = "a", when = "u" } }', "when", "'u' is no gap", "known are"),
    ('argv = ["x"]\nenv = { A = "{prompt}" }', "A", "cannot stand here", "agents.toml(5)"),
    ('argv = ["x"]\npass_env = "A"', "pass_env", "is not a list of texts", "leave the key out"),
    ('argv = ["x"]\npass_env = ["A B"]', "pass_env", "'A B' cannot be set", "ACME_API_KEY"),
    ('argv = ["x"]\nkey_reference = [{ agent = "<1" }]', "text", "is missing", "$PX_KEY"),
    ('argv = ["x"]\nkey_reference = [{ text = "a", agent = "1" }]', "agent", "is no bound of a version", ">=0.74,<2"),
    ('argv = ["x"]\nkey_reference = { text = "a" }', "key_reference", "is not a list of tables", "[[agents.mine"),
    ('argv = ["x"]\nfiles = { "../x" = { text = "a" } }', "../x", "is no path below", "conf/settings.json"),
    ('argv = ["x"]\nfiles = { "x" = {} }', "x", "needs either json or text", "text ="),
    ('argv = ["x"]\nfiles = { "x" = { text = "{key}" } }', "text", "{key} cannot stand here", "agents.toml(5)"),
    ('argv = ["x"]\nfiles = { "x" = { json = { a = "{zzzz}" } } }', "json", "{zzzz} is no gap", "agents.toml(5)"),
    ('argv = ["x"]\nsuccess = { exit = [300] }', "exit", "are no exit codes", "[0]"),
    ('argv = ["x"]\nsuccess = { require = "words" }', "require", "is none of nothing, text, final_text", "known are"),
    ('argv = ["x"]\nsuccess = { scan_output = 1 }', "scan_output", "is not true or false", "leave the key out"),
    ('argv = ["x"]\nerrors = [{ type = "rate" }]', "type", "is none of", "known are"),
    ('argv = ["x"]\nerrors = [{ pattern = "a" }]', "pattern", "needs a type and a pattern", "rate_limited"),
    ('argv = ["x"]\nerrors = [{ type = "crash", pattern = "(" }]', "pattern", "is no regular expression", "quote it"),
    ('argv = ["x"]\nstop = { signal = "TREM" }', "signal", "'TREM' is no signal", "TERM"),
    ('argv = ["x"]\nstop = { grace_seconds = -1 }', "grace_seconds", "is not a number of at least 0", "leave"),
    ('argv = ["x"]\nlimits = { turns = 0 }', "turns", "is not a whole number of at least 1", "leave"),
]


@pytest.mark.parametrize(("text", "key", "detail", "hint"), WRONG)
def test_what_is_wrong_is_told_and_takes_only_its_own_agent_away(
    tmp_path: Path, text: str, key: str, detail: str, hint: str
) -> None:
    catalog = loaded(tmp_path, f"# first line\n[agents.mine]\n{text}\n\n[agents.other]\nargv = ['y']\n")
    assert set(catalog.names) == {*OURS, "other"}
    told = {problem.key: problem for problem in catalog.problems}
    assert key in told, catalog.problems
    assert detail in told[key].detail
    assert hint in told[key].hint
    assert str(tmp_path / "agents.toml") in told[key].text
    assert told[key].line in {2, 3, 4}
    with pytest.raises(ConfigError, match="the agent 'mine' is broken"):
        catalog.get("mine")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("[agents.pi\n", "is no TOML"),
        ("[agent.pi]\n", "'agent' has no place here"),
        ("agents = 1\n", "'agents' has no place here"),
        ("\x00", "is no TOML"),
    ],
)
def test_a_broken_file_takes_no_adapter_of_ours_away(tmp_path: Path, text: str, detail: str) -> None:
    catalog = loaded(tmp_path, text)
    assert catalog.names == OURS
    assert detail in catalog.problems[0].detail
    with pytest.raises(ConfigError, match=r"there is no agent 'mine'; and .*has no place|is no TOML"):
        catalog.get("mine")


def test_a_file_that_cannot_be_read_is_a_problem_too(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").mkdir()
    assert "cannot be read" in load_agents(tmp_path / "agents.toml").problems[0].text


def test_a_broken_override_takes_the_adapter_of_ours_away_and_says_why(tmp_path: Path) -> None:
    catalog = loaded(tmp_path, "[agents]\npi = 1\n")
    with pytest.raises(ConfigError, match="'pi' is no table"):
        catalog.get("pi")


def test_the_nearest_agent_is_named() -> None:
    with pytest.raises(ConfigError) as unknown:
        load_agents(None).get("cladue")
    assert unknown.value.hint == "did you mean 'claude'?"
    with pytest.raises(ConfigError) as unknown:
        load_agents(None).get("zzz")
    assert "known are aider, claude" in (unknown.value.hint or "")


def test_lines_are_found_by_their_words() -> None:
    text = 'top = 1\n[a."b.c"]  # comment\n"x" = 1\ny.z = 2\n[a.d]\n[[a.e]]\nx = 3\n'
    assert line_of(text, ("a", "b.c"), "x") == 3
    assert line_of(text, ("a", "b.c"), "y") == 4
    assert line_of(text, ("a", "b.c"), "nowhere") == 2
    assert line_of(text, ("a", "b.c")) == 2
    assert line_of(text, ("a", "e"), "x") == 7
    assert line_of(text, ("a", "e"), "nowhere") == 6
    assert line_of(text, ("q", "x")) is None
    assert line_of("[a]\n[a.b]\n", ("a",), "b") == 2


def test_long_values_are_quoted_shortened() -> None:
    assert quoted("x" * 200).endswith("…")
    assert nearest("x" * 500, ["y"]) is None


def documented(page: str, name: str) -> bool:
    text = (MAN / page).read_text()
    return re.search(rf"^\.(B|BR|BI) (.*\W)?{name}(\W|$)", text, re.MULTILINE) is not None


def test_every_key_and_every_gap_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    original = TomlTable.raw

    def noting(table: TomlTable, key: str) -> Any:
        asked.add(key)
        return original(table, key)

    monkeypatch.setattr(TomlTable, "raw", noting)
    rows = {"version": {}, "files": {"x": {}}, "errors": [{}], "key_reference": [{}]}
    whole = {**rows, "success": {}, "stop": {}, "limits": {}, "auth_check": {}}
    read_spec("x", TomlTable(whole, file="", text="", path=("agents", "x"), problems=[]))
    assert [name for name in sorted({*asked, *GAPS} - {"x"}) if not documented("agents.toml.5", name)] == []
    asked.clear()
    assert parse_presets("[presets.a]\n", "").problems == ()
    assert [name for name in sorted(asked) if not documented("presets.toml.5", name)] == []
