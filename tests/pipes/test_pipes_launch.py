"""From an execution to all that a spawn needs: its prompt, key, environment, program with
version, provider, files.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from beside import free_port
from pipe_texts import pipes_config
from supervisord_py.errors import StartFailedError
from supervisord_py.ledger.pipes import ErrorType, Execution, Plan, Preset
from supervisord_py.pipes import launch, preflight
from supervisord_py.pipes.adapters import AgentSpec, CannotRunError, load_adapters
from supervisord_py.pipes.context import render_prompt
from supervisord_py.pipes.launch import LaunchSpec, command_line
from supervisord_py.pipes.machine_zone import machine_zone
from supervisord_py.pipes.preflight import AgentShelf, Completed, check_provider
from supervisord_py.pipes.secret_names import is_secret_name
from waiting import PATIENCE

BUILTIN = load_adapters(None)
NO_PRESET = Preset()
KEY = "sk-very-secret"
CUSTOM = Preset("x", "custom", "m", "http://127.0.0.1:1/v1", "openai-completions", "$K")
MINE = '[agents.mine]\nargv = ["mine"]\n'


class House:
    """A pipe's folder, programs on a PATH, and the shelf to launch them from."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.run_dir = root, root / "pipe", root / "executions" / "7"
        self.stdin: bytes | None = None
        self.answers: dict[str, Completed | Exception] = {}
        config = pipes_config(root, env_allow=("PATH", "HOME"))
        environ = {"PATH": str(root / "bin"), "HOME": str(root), "K": KEY}
        nobody: Any = None
        self.shelf = AgentShelf(config, nobody, environ)
        self.shelf.run = self.run
        for name in ("pipe", "bin"):
            (root / name).mkdir()

    async def run(self, argv: Any, **_: Any) -> Completed:
        answer = self.answers.get(Path(argv[0]).name, Completed(0, None, "1.2.3"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def program(self, name: str) -> None:
        (self.root / "bin" / name).write_text("#!/bin/sh\n")
        (self.root / "bin" / name).chmod(0o755)

    def execution(self, agent: str = "mine", preset: Preset = NO_PRESET, **plan: Any) -> Execution:
        output, plans = str(self.folder / "output" / "7"), Plan(agent, **plan)
        return Execution(
            id=7, pipe_name="p", output_dir=output, rendered_prompt="ask", plan=plans, preset=preset
        )

    async def prepare(self, *order: Any, agents: str = MINE, **plan: Any) -> LaunchSpec:
        (self.root / "agents.toml").write_text(agents)
        found, fds = (
            await launch.check(self.shelf, self.execution(*order, **plan), self.folder),
            list[int](),
        )
        launch.write_files(found, self.run_dir, "ask", fds)
        self.stdin = os.read(fds[2], 1000) if len(fds) > 2 else None
        for fd in fds:
            os.close(fd)
        return found


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
    sessions = str(house.root / "executions" / "sessions" / "p")
    assert found.argv[0] == str(house.root / "bin" / "pi")
    assert found.argv[-3:] == ("--session-dir", sessions, "--continue")
    assert house.stdin == b"ask"
    models = json.loads((house.run_dir / "agent" / "models.json").read_text())
    assert models["providers"]["custom"]["apiKey"] == "PX_KEY", "as this version names it"
    private = [house.run_dir, *house.run_dir.rglob("*"), Path(sessions)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700, 0o600}
    output = house.folder / "output" / "7"
    expected = {"PX_KEY": KEY, "PI_CODING_AGENT_DIR": str(house.run_dir / "agent")}
    expected |= {
        "PX_OUTPUT_DIR": str(output),
        "PX_EXECUTION_ID": "7",
        "PX_SOCKET": f"{house.root}/pxd.sock",
    }
    assert {name: found.env[name] for name in expected} == expected
    assert output.is_dir()
    assert (found.version, found.warnings, found.session_path) == ("0.74.2", (), sessions)
    assert list(found.secrets) == [KEY]
    everything = repr(found) + "".join(
        path.read_text() for path in house.run_dir.rglob("*") if path.is_file()
    )
    assert KEY not in everything + "".join(found.argv)


async def test_again_is_the_same_and_cleanup_takes_it_all_away(house: House) -> None:
    house.program("mine")
    agents = f'{MINE}files."a/b".text = "x"\nkey_variable = "MINE_KEY"\n'
    agents += 'prompt = "file"\nprompt_argv = ["--file", "{prompt_file}"]\n'
    (house.folder / ".env").write_text("ACME_KEY=sk-from-dotenv\nnonsense here\n")
    for _ in range(2):
        found = await house.prepare("mine", Preset("x", api_key="$ACME_KEY"), agents=agents)
        assert (house.run_dir / "agent" / "a" / "b").read_text() == "x"
        assert ((house.run_dir / "prompt.md").read_text(), house.stdin) == ("ask", None)
        assert not (house.run_dir / "agent" / "left").exists()
        (house.run_dir / "agent" / "left").write_text("over")
    assert (found.env["MINE_KEY"], "line 2" in found.warnings[0]) == ("sk-from-dotenv", True)
    launch.cleanup(house.run_dir)
    launch.cleanup(house.run_dir)
    assert {name.removeprefix("raw.") for name in os.listdir(house.run_dir)} == {"stderr", "stdout"}


SECRET_NAMES = (
    "API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "apiKey", "SECRET_ACCESS_KEY", "PASSWORD",
    "PGPASSWORD", "DB_PASSWORD", "github-token", "accessToken", "AWS_ACCESS_KEY_ID",
    "SECRET_KEY_BASE", "APIKEY", "OPENAI_APIKEY", "GHTOKEN", "clientSecret", "API_KEY_2", "KEY1",
    "MYSQL_PWD", "SSH_PASSPHRASE", "GOOGLE_CREDENTIALS", "API_KEYS", "TOKEN",
)  # fmt: skip
OTHER_NAMES = (
    "MAX_TOKENS", "KEYSPACE", "MONKEYPATCH", "KEYBOARD", "TOKENIZER", "TURKEY", "HOTKEYS",
    "TOKENS_PER_MINUTE", "PWD", "OLDPWD", "TOKEN_LIMIT", "KEY_LENGTH", "SSH_KEY_PATH",
    "PASSWORD_FILE", "MAX_TOKEN", "SECRETARY", "MONKEY", "PATH", "", "_", "PASSENGERS", "BYPASS",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [*((name, True) for name in SECRET_NAMES), *((name, False) for name in OTHER_NAMES)],
)
def test_a_secret_is_told_by_a_whole_word_of_its_name(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


async def test_keys_are_recalled_for_who_must_strike_them_out(house: House) -> None:
    """Of every provider, of `.env`, and behind the preset's reference; what is not to be had is
    no reason to fail.
    """
    house.shelf.environ |= {"ANTHROPIC_API_KEY": "sk-ant", "OTHER": "x"}
    (house.folder / ".env").write_text("MY_TOKEN=of-the-env\nPLAIN=word\n")
    house.answers = {"pass": Completed(0, None, "from-the-store\n"), "gone": StartFailedError("no")}
    known = {"of-the-env": "MY_TOKEN", "sk-ant": "ANTHROPIC_API_KEY"}
    stored = {"from-the-store": "api_key"}
    for reference, more in (("cmd:pass show acme", stored), ("$NOT_THERE", {}), ("cmd:gone", {})):
        it = house.execution("claude", Preset(provider="acme", api_key=reference))
        assert await launch.recall_secrets(house.shelf, it, house.folder) == {**known, **more}
    assert await launch.recall_secrets(house.shelf, house.execution("nobody"), house.folder) == {}


# -- keys ------------------------------------------------------------------------------------------


async def key(house: House, reference: str, **environ: str) -> str:
    try:
        return await launch.resolve_key(house.shelf, reference, environ)
    except CannotRunError as error:
        assert KEY not in error.message
        return f"{error.error_type}: {error.message}"


@pytest.mark.parametrize(
    "text", ["", KEY, "$", "$A-B", "${A", "file:", "file: ", "cmd:", "cmd: ", "cmd:'a"]
)
async def test_what_is_no_reference_is_refused_and_not_quoted(house: House, text: str) -> None:
    found = await key(house, text)
    assert found.startswith("config_error: an api_key is no reference")
    assert "$ACME_API_KEY" in found


async def test_a_key_of_a_variable_or_of_a_file_that_is_its_owners_alone(house: House) -> None:
    assert [await key(house, it, V=f" {KEY}\n") for it in ("$V", "${V}")] == [KEY, KEY]
    assert "auth_failed: the variable V is not set; set V in the .env beside pipe.md" in await key(
        house, "$V", V=" "
    )
    file = house.root / "key"
    file.write_text(f"{KEY}\n")
    file.chmod(0o600)
    assert {await key(house, it) for it in (f"file: {file}", "file:key", "file:~/key")} == {KEY}
    file.chmod(0o640)
    assert f"(mode 640); chmod 600 {file}" in await key(house, f"file:{file}")
    file.chmod(0o600)
    assert "cannot be read: No such file" in await key(house, "file:nowhere")
    for content, words in ((b"", "is empty"), (b"\xff\xfe", "it is no text")):
        file.write_bytes(content)
        assert words in await key(house, f"file:{file}")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Completed(0, None, f"{KEY}\n", "a hint"), KEY),
        (Completed(2, None, KEY, KEY), "(pass) exits with 2; run the command by hand"),
        (Completed(None, 9), "was killed by signal 9"),
        (Completed(0, None, f"{KEY}\n{KEY}"), "must print one line"),
        (TimeoutError(), "did not end within 30 s"),
        (StartFailedError("no such file"), "cannot be started: no such file"),
    ],
)
async def test_a_command_prints_the_key_or_the_reason_is_told(
    house: House, answer: Completed | Exception, words: str
) -> None:
    house.answers = {"pass": answer}
    assert words in await key(house, "cmd:pass show 'a b'")


# -- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Completed(0, None, "", "2.1.3\n"), None),
        (TimeoutError(), "the version of claude could not be found: it did not answer within 30 s"),
        (StartFailedError("exec failed"), "the version of claude could not be found: exec failed"),
        (Completed(0, None, "who knows\n"), "the version of claude could not be found: who knows"),
        (Completed(0), "the version of claude could not be found: it printed nothing"),
    ],
)
async def test_an_odd_version_is_a_warning(
    house: House, answer: Completed | Exception, words: str | None
) -> None:
    house.answers = {"sh": answer}
    _version, found = await house.shelf.version(BUILTIN.get("claude"), "/bin/sh", house.folder, {})
    assert found == (() if words is None else (words,))


async def test_a_version_that_cannot_work_is_agent_incompatible_with_its_cure(house: House) -> None:
    trouble = (
        "x" * 60_000
        + "\nTypeError: webidl.util.markAsUncloneable is not a function\nNode.js v20.20.2\n"
    )
    house.answers = {"sh": Completed(1, None, "", trouble)}
    with pytest.raises(
        CannotRunError, match=r"under what is there to run it: Node.js v20.20.2"
    ) as caught:
        await house.shelf.version(BUILTIN.get("pi"), "/bin/sh", house.folder, {})
    assert (caught.value.error_type, "node" in str(caught.value.hint)) == (
        ErrorType.AGENT_INCOMPATIBLE,
        True,
    )


async def test_versions_are_asked_once_for_each_file(house: House) -> None:
    house.program("claude")
    program = house.root / "bin" / "claude"
    for said, version in (("2.1.3", (2, 1, 3)), ("2.9.9", (2, 1, 3)), ("2.9.9", (2, 9, 9))):
        house.answers = {"claude": Completed(0, None, said)}
        assert await house.shelf.version(BUILTIN.get("claude"), str(program), house.folder, {}) == (
            version,
            (),
        )
        if said == "2.9.9":
            os.utime(program, ns=(1, 1))


# -- preflights: only certain trouble of a provider stops an execution, and it is told what it is
# (A5, A6, A7)


async def look(
    url: str, provider: str = "custom", model: str | None = "ok", seconds: float = PATIENCE
) -> None:
    """Let nobody wait between two attempts; an answer may be as late as the machine is slow."""
    values = {"url": url, "url_root": url.removesuffix("/v1"), "provider": provider, "model": model}
    with pytest.MonkeyPatch.context() as at_once:
        at_once.setattr(preflight, "FIRST_WAIT_SECONDS", 0.0)
        at_once.setattr(preflight, "READ_SECONDS", PATIENCE)
        await check_provider(values, seconds=seconds)


async def test_nothing_answers_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    for each in (url, "http://[bad"):
        with pytest.raises(CannotRunError) as caught:
            await look(each)
        assert caught.value.error_type is ErrorType.NETWORK
        assert caught.value.detail.startswith(f"nothing answers at {each}: ")
        assert "ssl:" not in caught.value.detail, "the system's words, not the library's"

    async def never(*_: object, **__: object) -> object:
        return await asyncio.Event().wait()

    monkeypatch.setattr("aiohttp.TCPConnector.connect", never)
    with pytest.raises(CannotRunError, match=r"no connection within 0\.05 s$"):
        await look(url, seconds=0.05)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


NAMES = ok(b'{"models": [{"name": "a:latest", "size": 1}, {"name": "b/c:8b"}], "x": 2}')
SAID = [
    (b"nonsense\r\n\r\n", "a", True),
    (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "a", True),
    (ok(b'{"models": 1}'), "a", True),
    (NAMES, "a", True),
    (NAMES, "a:8b", False),
    (NAMES, "b/c:8b", True),
    (NAMES, "b/c", False),
]


@pytest.mark.parametrize(("said", "model", "passes"), SAID)
async def test_only_a_model_that_ollama_lacks_is_refused_what_is_strange_is_the_agents_to_judge(
    said: bytes, model: str, passes: bool
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with (
            nullcontext()
            if passes
            else pytest.raises(CannotRunError, match="it has a:latest, b/c:8b")
        ):
            await look(url, "ollama", model)


# -- what adapters are filled with -----------------------------------------------------------------


def values(name: str, preset: Preset) -> Any:
    it = Execution(id=7, pipe_name="p", output_dir="/p/output/7", plan=Plan(name), preset=preset)
    return launch.placeholder_values(BUILTIN.get(name), it, Path("/p"), pipes_config(Path("/")))


@pytest.mark.parametrize("name", sorted(set(BUILTIN.agents) - {"command"}))
@pytest.mark.parametrize(
    "preset", [Preset(), CUSTOM, Preset("x", "ollama", "llama", effort="high")]
)
def test_no_adapter_puts_prompt_or_key_into_its_argv_or_files(name: str, preset: Preset) -> None:
    spec, known = BUILTIN.get(name), values(name, preset)
    words = command_line(spec, known, "what to do", history=False)
    assert "what to do" not in words
    assert not any(launch.HAS_KEY in word or "{" in word for word in words)
    assert launch.HAS_KEY not in json.dumps(launch.file_texts(spec, known))


def test_a_prompt_that_cannot_be_an_argument_is_refused() -> None:
    spec = AgentSpec(name="x", argv=("a",), prompt="arg", prompt_argv=("{prompt}",))
    for prompt in ("-x", "@file", "a\0b", "é" * launch.ARGUMENT_BYTES):
        with pytest.raises(CannotRunError, match="takes its prompt as an argument"):
            command_line(spec, {}, prompt, history=False)
    guarded = msgspec.structs.replace(spec, prompt_argv=("--", "{prompt}"))
    assert command_line(guarded, {}, "-x", history=False) == ("a", "--", "-x")


DAEMON = {
    "PATH": "/bin", "HOME": "/h", "OPENAI_API_KEY": "sk-openai",
    "ANTHROPIC_API_KEY": "sk-anthropic",
    "AZURE_OPENAI_BASE_URL": "https://azure", "PX_API__TOKEN": "ours", "OTHER_TOKEN": "x",
}  # fmt: skip


def environment(name: str, preset: Preset = NO_PRESET) -> tuple[dict[str, str], set[str]]:
    key = "sk-preset" if preset.api_key else None
    env, secrets = launch.build_environment(
        BUILTIN.get(name), values(name, preset), DAEMON, ("PATH", "HOME"), {}, key
    )
    return env, set(secrets)


def test_an_agent_gets_the_keys_of_its_own_provider_alone() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt"))
    assert set(env) & {*DAEMON, "PX_KEY"} == {
        "PATH",
        "HOME",
        "OPENAI_API_KEY",
        "AZURE_OPENAI_BASE_URL",
    }
    assert secrets == {"sk-openai"}
    assert environment("pi", Preset("x", "unheard-of"))[1] == set()
    assert environment("pi")[1] == {"sk-openai", "sk-anthropic"}, (
        "where the agent chooses, all it may choose from"
    )


def test_a_presets_key_replaces_the_daemons() -> None:
    env, secrets = environment("pi", Preset("x", "openai", "gpt", api_key="$K"))
    assert (env["OPENAI_API_KEY"], secrets) == ("sk-preset", {"sk-preset"})
    env, _ = environment("pi", CUSTOM)
    assert (env["PX_KEY"], "OPENAI_API_KEY" in env) == ("sk-preset", False)
    env, secrets = environment("pi", Preset("x", "ollama", "llama"))
    assert (env["PX_KEY"], secrets) == ("none", set())
    assert "CLAUDE_CONFIG_DIR" not in environment("claude")[0], (
        "only with a key it stands apart from the user's login"
    )
    env, _ = environment("claude", CUSTOM)
    agent_dir = "/executions/7/agent"
    assert (env["CLAUDE_CONFIG_DIR"], env["ANTHROPIC_BASE_URL"]) == (
        agent_dir,
        "http://127.0.0.1:1",
    )


# -- the prompt: five facts in five lines, then what people wrote, untouched -----------------------

NOVEMBER = datetime.fromisoformat("2026-11-21T20:41:03.123Z").timestamp()


def api(port: int | None = 7860, **more: Any) -> str:
    return pipes_config(Path("/run"), api_port=port, **more).api


def rendered(
    body: str, words: str | None = None, context: object = None, end: float = NOVEMBER, **more: str
) -> str:
    plan, preset = Plan("pi", context=context), Preset(prompt=words)  # type: ignore[arg-type]
    it = Execution(
        id=7, pipe_name="p", context_start=end - 3600, context_end=end, plan=plan, preset=preset
    )
    return render_prompt(it, body, **{"zone": "Europe/Berlin", "api": api(), **more})


def test_the_five_facts_stand_first_then_the_presets_words() -> None:
    head = (
        "Time range: 2026-11-21T19:41:03.123Z to 2026-11-21T20:41:03.123Z\n"
        "Date: 2026-11-21\n"
        "Timezone: Europe/Berlin (UTC+01:00)\n"
        "Output directory: ./output/7/\n"
        "API: http://127.0.0.1:7860 (bearer token in the file $PX_API_TOKEN_FILE)\n"
    )
    assert rendered("# Do {{it}} $x `y`\n") == f"{head}\n# Do {{{{it}}}} $x `y`\n"
    assert rendered("body", "\nBe brief.\n\n") == f"{head}\nBe brief.\n\nbody"
    assert rendered("body", "\n \n") == f"{head}\nbody"
    told = rendered("x", context={"event": "ü", "data": {"b": "1\n2"}})
    assert told == f'{head}Trigger: {{"data": {{"b": "1\\n2"}}, "event": "ü"}}\n\nx'
    assert api(None) == "unix socket /run/pxd.sock"
    assert api(api_host="::1").startswith("http://[::1]:7860 (")
    # Date and offset are those of the zone at that moment.
    for zone, date, offset in (
        ("Asia/Kolkata", "2026-11-22", "+05:30"),
        ("America/St_Johns", "2026-11-21", "-03:30"),
    ):
        assert rendered("", zone=zone).splitlines()[1:3] == [
            f"Date: {date}",
            f"Timezone: {zone} (UTC{offset})",
        ]


def test_the_machines_zone(tmp_path: Path) -> None:
    missing, named, linked = str(tmp_path / "none"), tmp_path / "timezone", tmp_path / "localtime"
    named.write_text("Asia/Tokyo\n")
    linked.symlink_to("/usr/share/zoneinfo/Europe/Paris")
    assert (
        machine_zone({"TZ": ":Europe/Berlin"}, localtime=str(linked), timezone=str(named))
        == "Europe/Berlin"
    )
    assert (
        machine_zone({"TZ": "CET-1CEST"}, localtime=str(linked), timezone=str(named))
        == "Europe/Paris"
    )
    assert machine_zone({}, localtime=missing, timezone=str(named)) == "Asia/Tokyo"
    assert (
        machine_zone({"TZ": ":/etc/localtime"}, localtime=str(linked), timezone=str(named))
        == "Europe/Paris"
    )
    # A copy counts for what it holds; of several names of the same rules the written one, else the
    # usual one.
    copied = tmp_path / "copied"
    for rules, name in (
        ("America/New_York", "America/New_York"),
        ("Etc/UTC", "UTC"),
        ("Asia/Tokyo", "Asia/Tokyo"),
    ):
        copied.write_bytes(Path("/usr/share/zoneinfo", rules).read_bytes())
        assert machine_zone({}, localtime=str(copied), timezone=missing) == name
    assert machine_zone({}, localtime=str(copied), timezone=str(named)) == "Asia/Tokyo"
    copied.write_text("no rules")
    assert machine_zone({}, localtime=str(copied), timezone=str(named)) == "Asia/Tokyo"
    with capture_logs() as told:
        assert machine_zone({"TZ": "Mars/X"}, localtime=missing, timezone=missing) == "UTC"
    assert [(it["event"], it["wanted"]) for it in told] == [("time_zone_unknown", "Mars/X")]
