"""From an order to everything that a spawn needs; and the refusals on the way, which leave nothing behind."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.pipes.agents import run_files
from supervisord_py.pipes.agents.catalog import load_agents
from supervisord_py.pipes.agents.executable import candidates, find_executable, path_with
from supervisord_py.pipes.agents.launching import (
    LaunchOrder,
    Means,
    Prepared,
    check_agent,
    cleanup,
    launch,
    provider_doubt,
    recall_secrets,
)
from supervisord_py.pipes.agents.programs import Answer, Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.spec import AgentSpec, Piece
from supervisord_py.pipes.agents.versions import VersionCache
from supervisord_py.pipes.execution import ErrorType, Plan, Preset

if TYPE_CHECKING:
    from pathlib import Path

NODE_SCRIPT = "#!/usr/bin/env node\n"


@dataclass
class FakeAsk:
    """Answers by the name of the program; remembers what it was asked."""

    answers: dict[str, Answer | Exception] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)

    async def __call__(self, program: Program, *, seconds: float) -> Answer:
        self.programs.append(program)
        assert seconds > 0
        answer = self.answers.get(os.path.basename(program.argv[0]), Answer(0, None, "1.2.3"))
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class House:
    """A pipe's folder, programs on a PATH, and the means to launch them."""

    root: Path
    ask: FakeAsk = field(default_factory=FakeAsk)
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "pipe").mkdir()
        (self.root / "bin").mkdir()
        self.environ |= {"PATH": str(self.root / "bin"), "HOME": str(self.root)}

    def program(self, name: str, text: str = "#!/bin/sh\n") -> Path:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def agents(self, text: str) -> None:
        (self.root / "agents.toml").write_text(text)

    def order(self, agent: str = "mine", preset: Preset | None = None, **plan: Any) -> LaunchOrder:
        return LaunchOrder(
            execution_id=7,
            pipe_name="p",
            folder=self.root / "pipe",
            run_dir=self.root / "runs" / "7",
            output_dir=self.root / "pipe" / "output" / "7",
            prompt="the prompt",
            plan=Plan(agent, **plan),
            preset=preset or Preset(),
            socket="/run/pxd.sock",
            session_dir=self.root / "sessions" / "p",
        )

    def means(self, **changes: Any) -> Means:
        catalog = load_agents(self.root / "agents.toml")
        means = Means(catalog, self.environ, ("PATH", "HOME"), self.ask, self.root, preflight=False)
        return replace(means, **changes)

    async def launch(self, *arguments: Any, **plan: Any) -> Prepared:
        return await launch(self.order(*arguments, **plan), self.means())

    async def refused(self, *arguments: Any, **plan: Any) -> CannotRunError:
        with pytest.raises(CannotRunError) as refused:
            await self.launch(*arguments, **plan)
        assert not (self.root / "runs" / "7" / "agent").exists()
        assert not (self.root / "runs" / "7" / "prompt.md").exists()
        return refused.value


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_pi_is_made_ready(house: House) -> None:
    house.program("pi", NODE_SCRIPT)
    house.program("node")
    house.ask.answers = {"pi": Answer(0, None, "", "0.74.2\n"), "node": Answer(0, None, "v20.20.2")}
    house.environ["MY_KEY"] = "sk-very-secret"
    preset = Preset("x", "custom", "m", "http://127.0.0.1:1/v1", "openai-completions", "$MY_KEY")
    old = os.umask(0)
    try:
        prepared = await house.launch("pi", preset, history=True)
    finally:
        os.umask(old)
    run_dir = house.root / "runs" / "7"
    assert prepared.argv[0] == str(house.root / "bin" / "pi")
    assert prepared.argv[-3:] == ("--session-dir", str(house.root / "sessions" / "p"), "--continue")
    assert (prepared.cwd, prepared.stdin_file, prepared.parser) == (
        str(house.root / "pipe"),
        run_dir / "prompt.md",
        "pi-jsonl",
    )
    assert (run_dir / "prompt.md").read_text() == "the prompt"
    assert json.loads((run_dir / "agent" / "models.json").read_text())["providers"]["custom"]["apiKey"] == "PX_KEY"
    private = [run_dir, *run_dir.rglob("*"), house.root / "sessions" / "p"]
    assert {mode(path) for path in private} == {0o700, 0o600}
    assert prepared.env["PX_KEY"] == "sk-very-secret"
    assert prepared.env["PI_CODING_AGENT_DIR"] == str(run_dir / "agent")
    assert prepared.env["PX_OUTPUT_DIR"] == str(house.root / "pipe" / "output" / "7")
    assert (prepared.env["PX_EXECUTION_ID"], prepared.env["PX_SOCKET"]) == ("7", "/run/pxd.sock")
    assert (house.root / "pipe" / "output" / "7").is_dir()
    assert (prepared.agent_version, prepared.warnings) == ("0.74.2", ())
    assert prepared.session_path == str(house.root / "sessions" / "p")
    assert [secret.reveal() for secret in prepared.secrets] == ["sk-very-secret"]
    everything = repr(prepared) + "".join(path.read_text() for path in run_dir.rglob("*") if path.is_file())
    assert "sk-very-secret" not in everything
    assert "sk-very-secret" not in "".join(prepared.argv)


async def test_again_is_the_same_and_cleanup_takes_it_all_away(house: House) -> None:
    house.program("mine")
    house.agents('[agents.mine]\nargv = ["mine"]\nfiles."a/b".text = "x"\n')
    first = await house.launch()
    (house.root / "runs" / "7" / "agent" / "left").write_text("over")
    (house.root / "runs" / "7" / "stdout").write_text("kept")
    assert await house.launch() == first
    assert not (house.root / "runs" / "7" / "agent" / "left").exists()
    cleanup(house.root / "runs" / "7")
    cleanup(house.root / "runs" / "7")
    assert os.listdir(house.root / "runs" / "7") == ["stdout"]


async def test_a_pipes_own_command_is_taken_as_it_is(house: House) -> None:
    script = house.root / "pipe" / "agent.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    prepared = await house.launch("command", command=("./agent.sh", "--x", "{model} {y}"))
    assert prepared.argv == (str(script), "--x", "{model} {y}")
    assert prepared.agent_version is None


async def test_dotenv_beside_the_pipe_comes_along_and_may_hold_the_key(house: House) -> None:
    house.program("mine")
    house.agents('[agents.mine]\nargv = ["mine"]\nkey_variable = "MINE_KEY"\n')
    (house.root / "pipe" / ".env").write_text("ACME_KEY=sk-from-dotenv\nnonsense here\n")
    prepared = await house.launch("mine", Preset("x", api_key="$ACME_KEY"))
    assert prepared.env["MINE_KEY"] == "sk-from-dotenv"
    assert "line 2" in prepared.warnings[0]


async def test_doubts_are_told(house: House) -> None:
    house.program("claude")
    house.ask.answers = {"claude": Answer(0, None, "9.0.0 (Claude Code)")}
    prepared = await house.launch("claude", Preset(provider="antropic"), history=True)
    assert prepared.session_path is None
    assert prepared.warnings == (
        "claude is 9.0.0; this adapter was tested with <3",
        "the agent 'claude' keeps no sessions here; history is left out",
        provider_doubt(load_agents(None).get("claude"), "antropic"),
    )
    assert "(did you mean 'anthropic'?); it is passed on" in prepared.warnings[-1]
    assert "custom" not in (provider_doubt(load_agents(None).get("pi"), "zzzzzz") or "")
    assert provider_doubt(AgentSpec("x", ()), "anything") is None
    assert (await check_agent(house.order("claude"), house.means())).text == "9.0.0"


# -- refusals -------------------------------------------------------------------------------------------------------


async def test_an_agent_that_is_not_there_is_told_with_the_paths_tried(house: House) -> None:
    refused = await house.refused("pi")
    assert refused.error_type is ErrorType.AGENT_NOT_FOUND
    assert f"tried {house.root}/bin/pi, {house.root}/.local/bin/pi" in refused.message
    refused = await house.refused("agnet")
    assert (refused.error_type, refused.problem()["error_type"]) == (ErrorType.CONFIG_ERROR, "config_error")
    assert "there is no agent 'agnet'" in refused.message
    (house.root / "bin" / "pi").write_text("x")
    assert "chmod +x" in (await house.refused("pi")).message


async def test_folders_that_cannot_be_written(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.program("mine")
    house.agents('[agents.mine]\nargv = ["mine"]\n')

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files, "_write", full)
    assert (await house.refused("mine")).error_type is ErrorType.DISK_FULL
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CannotRunError, match="Permission denied"):
        run_files.make_folder(house.root)


# -- programs -------------------------------------------------------------------------------------------------------


def test_where_programs_are_looked_for(tmp_path: Path) -> None:
    found = candidates("x", path="/a:rel::/b:/a", home="/h", folder=tmp_path)
    assert found[:3] == ("/a/x", "/b/x", "/h/.local/bin/x")
    assert candidates("~/x", path="", home="/h", folder=tmp_path) == ("/h/x",)
    assert candidates("/x/y", path="", home="/h", folder=tmp_path) == ("/x/y",)
    assert candidates("./x", path="", home="/h", folder=tmp_path) == (str(tmp_path / "x"),)
    with pytest.raises(CannotRunError, match=r"tried /nowhere/x$"):
        find_executable("/nowhere/x", path="", home="/h", folder=tmp_path, agent="x")
    for agent, place in (("x", "agents.toml"), ("command", "`command` in pipe.md")):
        with pytest.raises(CannotRunError) as caught:
            find_executable("/nowhere/x", path="", home="/h", folder=tmp_path, agent=agent)
        assert place in str(caught.value.hint)


def test_a_program_finds_its_runtime_beside_it(tmp_path: Path) -> None:
    bin_dir = tmp_path / ".bun" / "bin"
    bin_dir.mkdir(parents=True)
    places = path_with("/bin", str(tmp_path / "pi"), str(tmp_path)).split(":")
    assert places[0] == "/bin"
    assert {str(tmp_path), str(bin_dir)} <= set(places)
    assert len(places) == len(set(places))
    assert path_with("", "/bin/x", "/nowhere").startswith("/usr/local/bin")


# -- versions -------------------------------------------------------------------------------------------------------


async def test_a_crash_at_start_under_the_wrong_node_is_no_crash_of_the_pipe(house: House) -> None:
    house.program("pi")
    trouble = "x" * 60_000 + "\nTypeError: webidl.util.markAsUncloneable is not a function\nNode.js v20.20.2\n"
    house.ask.answers = {"pi": Answer(1, None, "", trouble)}
    refused = await house.refused("pi")
    assert refused.error_type is ErrorType.AGENT_INCOMPATIBLE
    assert "does not start under what is there to run it: Node.js v20.20.2" in refused.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (TimeoutError(), "it did not answer within 30 s"),
        (StartFailedError("exec failed"), "exec failed"),
        (Answer(0, None, "who knows\n"), "who knows"),
        (Answer(0), "it printed nothing"),
    ],
)
async def test_an_unknown_version_is_a_warning(house: House, answer: Answer | Exception, words: str) -> None:
    house.program("pi")
    house.ask.answers = {"pi": answer}
    assert (await house.launch("pi")).warnings == (f"the version of pi could not be found: {words}",)


async def test_versions_are_asked_once_for_each_file(house: House) -> None:
    path = house.program("claude")
    cache, spec = VersionCache(), load_agents(None).get("claude")
    for answer in ("2.1.3", "9.9.9"):
        house.ask.answers = {"claude": Answer(0, None, answer)}
        assert (await cache.probe(spec, str(path), house.root, {}, house.ask)).text == "2.1.3"
    path.unlink()
    house.program("claude", "#!/bin/sh\n# another one\n")
    os.utime(path, ns=(1, 1))
    assert (await cache.probe(spec, str(path), house.root, {}, house.ask)).text == "9.9.9"


async def test_another_program_than_the_adapters_is_not_asked_for_a_version(house: House) -> None:
    spec = replace(load_agents(None).get("claude"), argv=(Piece(("node",)),))
    found = await VersionCache().probe(spec, "/nowhere", house.root, {}, house.ask)
    assert found.warnings == ("nobody can say which version of claude this is",)


async def test_keys_are_recalled_for_who_must_strike_them_out(house: House) -> None:
    """Of every provider, of `.env`, and behind the preset's reference; what is not to be had is no reason to fail."""
    house.environ |= {"ANTHROPIC_API_KEY": "sk-ant", "OTHER": "x"}
    (house.root / "pipe" / ".env").write_text("MY_TOKEN=of-the-env\nPLAIN=word\n")
    house.ask.answers = {"pass": Answer(0, None, "from-the-store\n")}
    own = Preset(provider="acme", api_key="cmd:pass show acme")
    assert await recall_secrets(house.order("claude", own), house.means()) == (
        "of-the-env", "sk-ant", "from-the-store"
    )  # fmt: skip
    lost = Preset(provider="acme", api_key="$NOT_THERE")
    assert await recall_secrets(house.order("claude", lost), house.means()) == ("of-the-env", "sk-ant")
    assert await recall_secrets(house.order("claude"), house.means()) == ("of-the-env", "sk-ant")
    assert await recall_secrets(house.order("nobody"), house.means()) == ()
