"""From an order to everything that a spawn needs: key, environment, program, version, files, preflight; in this order.

Law: what is to run is decided by the order alone, which was frozen when the execution was queued; nothing is shared
between executions. Who is refused is told why, and leaves nothing behind. Doing it again gives the same files.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.agents.command_line import command_line
from supervisord_py.pipes.agents.environment import Layers, build_environment, secret_values
from supervisord_py.pipes.agents.executable import find_executable, path_with
from supervisord_py.pipes.agents.preflight import Asked, NewSession, new_session, preflight
from supervisord_py.pipes.agents.prompt import TOKEN_FILE_VARIABLE
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.run_files import (
    AGENT_DIR,
    PROMPT_FILE,
    cleanup,
    file_texts,
    make_folder,
    write_run_files,
)
from supervisord_py.pipes.agents.secrets import Secret, resolve_key
from supervisord_py.pipes.agents.spec import AgentLimits, AgentSpec, PromptBy, StopRule
from supervisord_py.pipes.agents.toml_table import nearest
from supervisord_py.pipes.agents.versions import AgentVersion, VersionCache
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.process.child_environment import Environment, read_dotenv

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.agents.catalog import AgentCatalog
    from supervisord_py.pipes.agents.programs import Ask
    from supervisord_py.pipes.agents.run_files import FileText
    from supervisord_py.pipes.agents.templates import Values
    from supervisord_py.pipes.agents.versions import Version
    from supervisord_py.pipes.execution import Plan, Preset
    from supervisord_py.pipes.judging.values import SuccessRule


CUSTOM = "custom"
"""Provider of a preset that names only a url."""
HAS_KEY = "[hidden]"
"""Stands for the key, so that conditions can ask whether there is one."""


@dataclass(frozen=True, slots=True)
class Places:
    """Paths and names of an execution."""

    run_dir: str
    agent_dir: str
    prompt_file: str
    session_dir: str
    output_dir: str
    pipe_dir: str
    pipe: str
    execution_id: int
    socket: str


def gap_values(
    spec: AgentSpec, preset: Preset, places: Places, *, version: Version | None = None, has_key: bool = False
) -> Values:
    """Return the value of every gap that has one."""
    url = preset.url or spec.provider_urls.get(preset.provider or "")
    values: dict[str, str | int | float | None] = {
        "provider": preset.provider or (CUSTOM if url else None),
        "model": preset.model,
        "effort": preset.effort,
        "url": url,
        "url_root": None if url is None else url.rstrip("/").removesuffix("/v1"),
        "api": preset.api,
        "key": HAS_KEY if has_key else None,
        "key_reference": spec.reference(version),
        "context_window": preset.context_window,
        "max_tokens": preset.max_tokens,
        "input_cost": preset.input_cost,
        "output_cost": preset.output_cost,
    }
    return {**values, **{each.name: getattr(places, each.name) for each in fields(places)}}


DOTENV = ".env"


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """One execution, as it was frozen.

    Attributes:
        folder: The pipe's: working directory of the agent.
        run_dir: `<executions_dir>/<id>`.
        output_dir: Absolute; made here if it is not there.
        prompt: Rendered.
        socket: Path of the control socket.
        session_dir: Where the pipe's sessions are kept between executions.
        token_file: Path of the token for the API's TCP port; None where there is no port.
    """

    execution_id: int
    pipe_name: str
    folder: Path
    run_dir: Path
    output_dir: Path
    prompt: str
    plan: Plan
    preset: Preset
    socket: str
    session_dir: Path
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class Means:
    """What launches are done with; one for a control plane, or anew when the settings changed.

    Attributes:
        environ, env_allow: The daemon's environment, and the names that pass from it.
        ask: Runs small programs.
        presets_folder: Where relative key references start.
        http: Makes the HTTP session of a preflight, which closes it.
        preflight, preflight_seconds: Whether providers are asked, and the bound of each question.
    """

    catalog: AgentCatalog
    environ: Mapping[str, str]
    env_allow: tuple[str, ...]
    ask: Ask
    presets_folder: Path
    http: NewSession = new_session
    versions: VersionCache = field(default_factory=VersionCache)
    preflight: bool = True
    preflight_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything for the spawn and the judging. Its `repr` shows no secret.

    Attributes:
        argv: The program is an absolute path.
        stdin_file: The prompt, to be opened read-only as stdin; None = /dev/null.
        secrets: What must never be stored.
        session_path: Where the agent keeps its session; None where it keeps none.
    """

    argv: tuple[str, ...]
    env: Environment
    cwd: str
    stdin_file: Path | None
    parser: str
    success: SuccessRule
    stop: StopRule
    limits: AgentLimits
    secrets: tuple[Secret, ...] = ()
    agent_version: str | None = None
    session_path: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is known before anything is written. `argv` begins with the absolute path of the program."""

    spec: AgentSpec
    argv: tuple[str, ...]
    values: Values
    env: Environment
    secrets: tuple[Secret, ...]
    version: AgentVersion
    warnings: tuple[str, ...]


async def launch(order: LaunchOrder, means: Means) -> Prepared:
    """Make everything ready for the spawn.

    Raises:
        CannotRunError: With the error type of the row; nothing of ours is left then.
    """
    ready = await _ready(order, means)
    try:
        await asyncio.to_thread(_write, order, ready)
        if means.preflight:
            await preflight(
                Asked(ready.spec, ready.values, ready.version.version, ready.argv[0], order.folder, ready.env),
                http=means.http,
                ask=means.ask,
                seconds=means.preflight_seconds,
            )
    except BaseException:
        await asyncio.shield(asyncio.to_thread(cleanup, order.run_dir))
        raise
    return _prepared(order, ready)


async def check_agent(order: LaunchOrder, means: Means) -> AgentVersion:
    """Look whether an execution could start, without writing anything: agent, key, argv, program, version.

    Raises:
        CannotRunError: It could not.
    """
    ready = await _ready(order, means)
    return replace(ready.version, warnings=ready.warnings)


async def _ready(order: LaunchOrder, means: Means) -> _Ready:
    spec = _spec(order.plan, means.catalog)
    dotenv, doubts = await asyncio.to_thread(read_dotenv, order.folder / DOTENV)
    key = await _key(order.preset, means, {**means.environ, **dotenv})
    found = await asyncio.to_thread(_found, spec, order, means, dotenv, key)
    version = await means.versions.probe(spec, found.argv[0], order.folder, found.env, means.ask)
    values = gap_values(spec, order.preset, _places(order), version=version.version, has_key=key is not None)
    return replace(found, values=values, version=version, warnings=(*doubts, *version.warnings, *found.warnings))


def _found(spec: AgentSpec, order: LaunchOrder, means: Means, dotenv: Mapping[str, str], key: Secret | None) -> _Ready:
    """Return all that is known without the version. Blocking: looks for the program."""
    values = gap_values(spec, order.preset, _places(order), has_key=key is not None)
    argv = _argv(spec, order, values)
    layers = Layers(means.environ, means.env_allow, dotenv, _marks(order), _texts(values, "provider"), key)
    env, secrets = build_environment(spec, layers, values)
    executable, env = _with_program(spec, argv[0], order.folder, env)
    hidden = tuple(map(Secret, secrets))
    return _Ready(spec, (executable, *argv[1:]), values, env, hidden, AgentVersion(), _doubts(spec, order))


def _spec(plan: Plan, catalog: AgentCatalog) -> AgentSpec:
    try:
        spec = catalog.get(plan.agent)
    except ConfigError as error:
        raise CannotRunError(ErrorType.CONFIG_ERROR, error.detail, hint=error.hint) from error
    if not spec.argv and not plan.command:
        raise CannotRunError(
            ErrorType.CONFIG_ERROR,
            f"the agent {plan.agent!r} runs the pipe's own command, and the pipe has none",
            hint='write command: "./agent.sh" into pipe.md',
        )
    return spec


def _argv(spec: AgentSpec, order: LaunchOrder, values: Values) -> tuple[str, ...]:
    """Return the argv; a pipe's own command is taken as it is, braces and all."""
    if not spec.argv:
        return order.plan.command
    return command_line(spec, values, order.prompt, history=order.plan.history)


async def _key(preset: Preset, means: Means, environ: Mapping[str, str]) -> Secret | None:
    if preset.api_key is None:
        return None
    return await resolve_key(preset.api_key, environ, cwd=means.presets_folder, ask=means.ask)


def _places(order: LaunchOrder) -> Places:
    return Places(
        run_dir=str(order.run_dir),
        agent_dir=str(order.run_dir / AGENT_DIR),
        prompt_file=str(order.run_dir / PROMPT_FILE),
        session_dir=str(order.session_dir),
        output_dir=str(order.output_dir),
        pipe_dir=str(order.folder),
        pipe=order.pipe_name,
        execution_id=order.execution_id,
        socket=order.socket,
    )


def _marks(order: LaunchOrder) -> dict[str, str]:
    """Return how an agent and its tools know where they are; a sweep finds them by it as well."""
    marks = {
        "PX_EXECUTION_ID": str(order.execution_id),
        "PX_PIPE": order.pipe_name,
        "PX_OUTPUT_DIR": str(order.output_dir),
        "PX_SOCKET": order.socket,
    }
    return marks if order.token_file is None else {**marks, TOKEN_FILE_VARIABLE: order.token_file}


def _texts(values: Values, gap: str) -> str | None:
    value = values.get(gap)
    return None if value is None else str(value)


def _with_program(spec: AgentSpec, name: str, folder: Path, env: Environment) -> tuple[str, Environment]:
    """Return the program, and the environment with a PATH on which it finds its own runtime. Blocking."""
    home = env.get("HOME", "/")
    executable = find_executable(name, path=env["PATH"], home=home, folder=folder, agent=spec.name)
    return executable, Environment({**env, "PATH": path_with(env["PATH"], executable, home)})


def _doubts(spec: AgentSpec, order: LaunchOrder) -> tuple[str, ...]:
    found = []
    if order.plan.history and not spec.supports_history:
        found.append(f"the agent {spec.name!r} keeps no sessions here; history is left out")
    trouble = provider_doubt(spec, order.preset.provider)
    return (*found, *((trouble,) if trouble else ()))


def provider_doubt(spec: AgentSpec, provider: str | None) -> str | None:
    """Say that a provider is not known to be one of the agent's; None where it is. Pure."""
    known = {CUSTOM, *spec.provider_keys, *spec.provider_urls}
    if provider is None or provider in known or len(known) == 1:
        return None
    meant = nearest(provider, known)
    also = f" (did you mean {meant!r}?)" if meant else ""
    return f"the provider {provider!r} is not known to be one of {spec.name}'s{also}; it is passed on as it stands"


def _write(order: LaunchOrder, ready: _Ready) -> None:
    """Write and make everything that the agent is to find. Blocking."""
    make_folder(order.output_dir)
    if _keeps_session(order, ready.spec):
        make_folder(order.session_dir, 0o700)
    write_run_files(order.run_dir, order.prompt, _own_files(ready))


def _own_files(ready: _Ready) -> tuple[FileText, ...] | None:
    """Return what the adapter's folder is to hold; None where it writes nothing and can tell nobody of the folder."""
    spec = ready.spec
    return file_texts(spec, ready.values) if spec.files or spec.argv or spec.env else None


def _keeps_session(order: LaunchOrder, spec: AgentSpec) -> bool:
    return order.plan.history and spec.supports_history


def _prepared(order: LaunchOrder, ready: _Ready) -> Prepared:
    spec = ready.spec
    return Prepared(
        argv=ready.argv,
        env=ready.env,
        cwd=str(order.folder),
        stdin_file=order.run_dir / PROMPT_FILE if spec.prompt is PromptBy.STDIN else None,
        parser=spec.parser,
        success=spec.success,
        stop=spec.stop,
        limits=spec.limits,
        secrets=ready.secrets,
        agent_version=ready.version.text,
        session_path=str(order.session_dir) if _keeps_session(order, spec) else None,
        warnings=ready.warnings,
    )


SECONDS = 5.0
"""So long a key's command may take where nothing but a log waits for the key."""


async def recall_secrets(order: LaunchOrder, means: Means) -> tuple[str, ...]:
    """Return the values that may be in what an execution printed, as far as they are to be had again."""
    try:
        spec = means.catalog.get(order.plan.agent)
    except ConfigError:
        return ()
    dotenv, _doubts = await asyncio.to_thread(read_dotenv, order.folder / DOTENV)
    found = secret_values(spec, Layers(means.environ, means.env_allow, dotenv, {}))  # of every provider
    key = await _known_key(order, means, {**means.environ, **dotenv})
    return found if key is None else (*found, key.reveal())


async def _known_key(order: LaunchOrder, means: Means, environ: dict[str, str]) -> Secret | None:
    reference = order.preset.api_key
    if reference is None:
        return None
    with suppress(CannotRunError):
        return await resolve_key(reference, environ, cwd=means.presets_folder, ask=means.ask, seconds=SECONDS)
    return None
