"""From an order to everything that a spawn needs; and the refusals on the way, which leave nothing behind."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.ledger.pipe_executions import ErrorType, Execution, Plan, Preset
from supervisord_py.pipes.adapters import AgentSpec, CannotRunError, PromptBy, load_adapters
from supervisord_py.pipes.driver import RunDriver
from supervisord_py.pipes.launch import (
    ARGUMENT_BYTES,
    HAS_KEY,
    LaunchSpec,
    build_environment,
    cleanup,
    command_line,
    file_texts,
    placeholder_values,
    recall_secrets,
)
from supervisord_py.pipes.models import PipesConfig
from supervisord_py.pipes.preflight import AgentShelf, Completed
from supervisord_py.pipes.scheduler import Clocks

BUILTIN = load_adapters(None)
NO_PRESET = Preset()
CUSTOM = Preset("x", "custom", "m", "http://127.0.0.1:1/v1", "openai-completions", "$K")
MINE = '[agents.mine]\nargv = ["mine"]\n'


def settings(root: Path) -> PipesConfig:
    """Return what launches read of the settings."""
    files = {f"{name}_dir": root / name for name in ("pipes", "examples")}
    files |= {f"{name}_file": root / f"{name}.toml" for name in ("presets", "agents")} | {
        "executions_dir": root / "runs"
    }
    return PipesConfig(**files, socket="/run/pxd.sock", preflight_seconds=0.0, env_allow=("PATH", "HOME"))


class House:
    """A pipe's folder, programs on a PATH, and the shelf to launch them from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "pipe"
        self.run_dir = root / "runs" / "7"
        self.stdin: bytes | None = None
        self.answers: dict[str, Completed | Exception] = {}
        self.room: Any = SimpleNamespace(config=settings(root), placement=None, clocks=Clocks(), own={})
        environ = {"PATH": str(root / "bin"), "HOME": str(root), "K": "sk-very-secret"}
        self.shelf = self.room.shelf = AgentShelf(self.room.config, self.room.placement, environ)
        self.shelf.run = self.run
        for name in ("pipe", "bin"):
            (root / name).mkdir()

    async def run(self, argv: Any, **_: Any) -> Completed:
        answer = self.answers.get(Path(argv[0]).name, Completed(0, None, "1.2.3"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def program(self, name: str) -> Path:
        path = self.root / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def execution(self, agent: str = "mine", preset: Preset = NO_PRESET, **plan: Any) -> Execution:
        output, plans = str(self.folder / "output" / "7"), Plan(agent, **plan)
        return Execution(
            id=7, pipe_name="p", output_dir=output, rendered_prompt="the prompt", plan=plans, preset=preset
        )

    async def prepare(self, *order: Any, agents: str = MINE, **plan: Any) -> LaunchSpec:
        (self.root / "agents.toml").write_text(agents)
        it = self.execution(*order, **plan)
        run: Any = SimpleNamespace(execution=it, unit=it.unit, definition=None, home=self.folder, folder=self.run_dir)
        await RunDriver(self.room).prepare(run)
        found: LaunchSpec = run.launch
        self.stdin = os.read(run.fds[2], 1000) if len(run.fds) > 2 else None
        for fd in run.fds:
            os.close(fd)
        return found

    async def refused(self, *order: Any, **plan: Any) -> Any:
        with pytest.raises((CannotRunError, OSError)) as caught:
            await self.prepare(*order, **plan)
        assert not (self.run_dir / "agent").exists()
        assert not (self.run_dir / "prompt.md").exists()
        return caught.value


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_pi_is_made_ready(house: House) -> None:
    house.program("pi")
    house.answers = {"pi": Completed(0, None, "", "0.74.2\n")}
    old = os.umask(0)
    try:
        found = await house.prepare("pi", CUSTOM, history=True)
    finally:
        os.umask(old)
    sessions = str(house.root / "runs" / "sessions" / "p")
    assert found.argv[0] == str(house.root / "bin" / "pi")
    assert found.argv[-3:] == ("--session-dir", sessions, "--continue")
    assert (found.cwd, house.stdin) == (str(house.root / "pipe"), b"the prompt")
    assert not (house.run_dir / "prompt.md").exists(), "nobody is told of it"
    models = json.loads((house.run_dir / "agent" / "models.json").read_text())
    assert models["providers"]["custom"]["apiKey"] == "PX_KEY", "as this version names it"
    private = [house.run_dir, *house.run_dir.rglob("*"), Path(sessions)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700, 0o600}
    expected = {
        "PX_KEY": "sk-very-secret",
        "PI_CODING_AGENT_DIR": str(house.run_dir / "agent"),
        "PX_OUTPUT_DIR": str(house.root / "pipe" / "output" / "7"),
        "PX_EXECUTION_ID": "7",
        "PX_SOCKET": "/run/pxd.sock",
    }
    assert {name: found.env[name] for name in expected} == expected
    assert Path(expected["PX_OUTPUT_DIR"]).is_dir()
    assert (found.version, found.warnings, found.session_path) == ("0.74.2", (), sessions)
    assert list(found.secrets) == ["sk-very-secret"]
    everything = repr(found) + "".join(path.read_text() for path in house.run_dir.rglob("*") if path.is_file())
    assert "sk-very-secret" not in everything + "".join(found.argv)


async def test_again_is_the_same_and_cleanup_takes_it_all_away(house: House) -> None:
    house.program("mine")
    agents = f'{MINE}files."a/b".text = "x"\nkey_variable = "MINE_KEY"\n'
    agents += 'prompt = "file"\nprompt_argv = ["--file", "{prompt_file}"]\n'
    (house.root / "pipe" / ".env").write_text("ACME_KEY=sk-from-dotenv\nnonsense here\n")
    for _ in range(2):
        found = await house.prepare("mine", Preset("x", api_key="$ACME_KEY"), agents=agents)
        assert (house.run_dir / "agent" / "a" / "b").read_text() == "x"
        assert ((house.run_dir / "prompt.md").read_text(), house.stdin) == ("the prompt", None)
        assert not (house.run_dir / "agent" / "left").exists()
        (house.run_dir / "agent" / "left").write_text("over")
        (house.run_dir / "stdout").write_text("kept")
    assert found.env["MINE_KEY"] == "sk-from-dotenv"
    assert "line 2" in found.warnings[0]
    cleanup(house.run_dir)
    cleanup(house.run_dir)
    assert {name.removeprefix("raw.") for name in os.listdir(house.run_dir)} == {"stderr", "stdout"}


async def test_an_agent_that_is_not_there_is_told_with_the_command_that_installs_it(house: House) -> None:
    refused = await house.refused("pi")
    assert refused.error_type is ErrorType.AGENT_NOT_FOUND
    assert "install it: npm install -g @earendil-works/pi-coding-agent; or" in refused.message
    assert refused.problem()["tried"][:2] == [f"{house.root}/bin/pi", f"{house.root}/.local/bin/pi"]
    (house.root / "bin" / "pi").write_text("x")
    assert f"chmod +x {house.root}/bin/pi" in (await house.refused("pi")).message
    refused = await house.refused("agnet")
    assert (refused.problem()["error_type"], "no agent 'agnet'" in refused.message) == ("config_error", True)
    refused = await house.refused("command", command=("./gone.sh",))
    assert f"tried {house.root}/pipe/gone.sh; " in refused.message
    assert "`command` in pipe.md" in refused.message
    assert "the pipe has none" in (await house.refused("command")).message


async def test_keys_are_recalled_for_who_must_strike_them_out(house: House) -> None:
    """Of every provider, of `.env`, and behind the preset's reference; what is not to be had is no reason to fail."""
    house.shelf.environ |= {"ANTHROPIC_API_KEY": "sk-ant", "OTHER": "x"}
    (house.root / "pipe" / ".env").write_text("MY_TOKEN=of-the-env\nPLAIN=word\n")
    house.answers = {"pass": Completed(0, None, "from-the-store\n"), "gone": StartFailedError("no")}
    known = ("of-the-env", "sk-ant")
    rows = [
        ("cmd:pass show acme", (*known, "from-the-store")),
        ("$NOT_THERE", known),
        ("cmd:gone", known),
        (None, known),
    ]
    for reference, secrets in rows:
        it = house.execution("claude", Preset(provider="acme", api_key=reference))
        assert await recall_secrets(house.shelf, it, house.folder) == secrets
    assert await recall_secrets(house.shelf, house.execution("nobody"), house.folder) == ()


# -- what adapters are filled with -------------------------------------------------------------------------------------


def values(name: str, preset: Preset, version: tuple[int, ...] | None = None) -> Any:
    it = Execution(id=7, pipe_name="p", output_dir="/p/output/7", plan=Plan(name), preset=preset)
    has_key = preset.api_key is not None
    spec = BUILTIN.get(name)
    values = placeholder_values(spec, it, Path("/p"), settings(Path("/")), has_key=has_key)
    return {**values, "key_reference": spec.reference(version)}


def argv(name: str, preset: Preset = NO_PRESET) -> tuple[str, ...]:
    return command_line(BUILTIN.get(name), values(name, preset), "what to do", history=False)


def written(name: str, preset: Preset = CUSTOM, version: tuple[int, ...] | None = None) -> dict[str, str]:
    return file_texts(BUILTIN.get(name), values(name, preset, version))


@pytest.mark.parametrize("name", sorted(set(BUILTIN.agents) - {"command"}))
@pytest.mark.parametrize("preset", [Preset(), CUSTOM, Preset("x", "ollama", "llama", effort="high")])
def test_no_adapter_puts_prompt_or_key_into_its_argv_or_files(name: str, preset: Preset) -> None:
    words = argv(name, preset)
    assert "what to do" not in words
    assert not any(HAS_KEY in word or "{" in word for word in words)
    assert HAS_KEY not in json.dumps(written(name, preset))


def test_a_prompt_that_cannot_be_an_argument_is_refused() -> None:
    spec = AgentSpec(name="x", argv=("a",), prompt=PromptBy.ARG, prompt_argv=("{prompt}",))
    for prompt in ("-x", "@file", "a\0b", "é" * ARGUMENT_BYTES):
        with pytest.raises(CannotRunError, match="takes its prompt as an argument"):
            command_line(spec, {}, prompt, history=False)
    guarded = msgspec.structs.replace(spec, prompt_argv=("--", "{prompt}"))
    assert command_line(guarded, {}, "-x", history=False) == ("a", "--", "-x")


# -- environments ------------------------------------------------------------------------------------------------------

DAEMON = {
    "PATH": "/bin", "HOME": "/h", "OPENAI_API_KEY": "sk-openai", "ANTHROPIC_API_KEY": "sk-anthropic",
    "AZURE_OPENAI_BASE_URL": "https://azure", "PX_API__TOKEN": "ours", "OTHER_TOKEN": "x",
}  # fmt: skip


def environment(
    spec: AgentSpec | str, preset: Preset = NO_PRESET, dotenv: dict[str, str] | None = None
) -> tuple[dict[str, str], set[str]]:
    spec = BUILTIN.get(spec) if isinstance(spec, str) else spec
    known = values(spec.name, preset) if spec.name in BUILTIN.agents else {}
    key = "sk-preset" if preset.api_key else None
    env, secrets = build_environment(spec, known, DAEMON, ("PATH", "HOME"), dotenv or {}, key)
    return env, set(secrets)


def test_an_agent_gets_the_keys_of_its_own_provider_alone() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt"))
    assert set(env) & {*DAEMON, "PX_KEY"} == {"PATH", "HOME", "OPENAI_API_KEY", "AZURE_OPENAI_BASE_URL"}
    assert secrets == {"sk-openai"}
    assert environment("pi", Preset("x", "unheard-of"))[1] == set()
    assert environment("pi")[1] == {"sk-openai", "sk-anthropic"}, "where the agent chooses, all it may choose from"


def test_a_presets_key_replaces_the_daemons() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt", api_key="$K"))
    assert (env["OPENAI_API_KEY"], secrets) == ("sk-preset", {"sk-preset"})
    env, _ = environment("pi", CUSTOM)
    assert (env["PX_KEY"], "OPENAI_API_KEY" in env) == ("sk-preset", False)
    env, secrets = environment("pi", Preset("x", "ollama", "llama"))
    assert (env["PX_KEY"], secrets) == ("none", set())
    assert "CLAUDE_CONFIG_DIR" not in environment("claude")[0], "only with a key it stands apart from the user's login"
    env, _ = environment("claude", CUSTOM)
    assert (env["CLAUDE_CONFIG_DIR"], env["ANTHROPIC_BASE_URL"]) == ("/runs/7/agent", "http://127.0.0.1:1")
