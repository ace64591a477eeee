"""From an execution to what its spawn needs: key, environment, program, version, files; in this
order.

What is to run is decided by its row alone, which was frozen when it was queued; nothing is shared
between executions. Who is refused is told why. Doing it again gives the same files.

A key comes by reference (`$ENV`, `file:PATH`, `cmd:ARGV`), and is itself in no log, no argv and no
message. A key file must be its owner's alone (0600 or stricter). A command is split as a shell
splits words, and run without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from supervisord_py.config.documents import did_you_mean, read_bounded
from supervisord_py.errors import PxError
from supervisord_py.ledger.pipes import ErrorType, Execution
from supervisord_py.pipes import adapters
from supervisord_py.pipes.adapters import AgentSpec, CannotRunError, Values, fill
from supervisord_py.pipes.models import TOKEN_FILE_VARIABLE, PipesConfig
from supervisord_py.pipes.outcome import ErrorPattern, SuccessRule
from supervisord_py.pipes.output import open_for_child
from supervisord_py.pipes.preflight import AgentShelf
from supervisord_py.pipes.presets import CUSTOM
from supervisord_py.pipes.secret_names import is_secret_name
from supervisord_py.pipes.shell_syntax import shell_syntax
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment, passed, read_dotenv

HAS_KEY = "[hidden]"  # stands for the key, so that conditions can ask whether there is one
DOTENV = ".env"
AGENT_DIR = "agent"
PROMPT_FILE = "prompt.md"
ARGUMENT_BYTES = 64 * 1024  # Linux takes 128 KiB; what is so long is better on stdin long before
KEY_SECONDS = 30.0  # a password store may ask its owner first
RECALL_SECONDS = 5.0  # of a key's command where nothing but old output waits for the key
_MAX_KEY_BYTES = 64 * 1024
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


class RunTerms(msgspec.Struct, frozen=True):
    """How an agent that was started is to be read, judged and stopped: fixed at its start, kept in
    its row.

    An edit of agents.toml changes what starts from now on, never how a run under way is judged.
    Keys are not in here: who goes on with a run looks them up again.
    """

    parser: str = "text"  # name of its output format
    success: SuccessRule = SuccessRule()  # when it has succeeded
    errors: tuple[ErrorPattern, ...] = ()  # what its errors look like
    settle_seconds: float = 2.0  # grace after it said that it is done
    stop_seconds: float = 5.0  # from TERM to KILL
    patterns: tuple[str, ...] = ()  # regular expressions whose matches are never stored
    copied: bool = False  # it writes `raw.*`, of which the files that are kept are made


class LaunchSpec(msgspec.Struct, frozen=True):
    """Everything for the spawn and the judging. Its `repr` shows no secret."""

    adapter: AgentSpec
    argv: tuple[str, ...]  # the program is an absolute path
    env: Environment
    values: Values
    terms: RunTerms
    # what must never be stored: values, and the variable that each is of
    secrets: Mapping[str, str] = {}
    version: str | None = None  # of its program, as far as it is known
    session_path: str | None = None  # where the agent keeps its session; None where it keeps none
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"LaunchSpec({self.argv!r})"


async def check(
    shelf: AgentShelf, it: Execution, folder: Path, redact: Sequence[str] = ()
) -> LaunchSpec:
    """Look whether an execution could start, without writing anything: agent, key, argv, program,
    version.

    `redact`: the pipe's own patterns. Raises CannotRunError: it could not.
    """
    plan, config = it.plan, shelf.config
    spec = shelf.adapters_now().get(plan.agent)
    dotenv, doubts = read_dotenv(folder / DOTENV)  # a few looks at files: cheaper than a thread
    reference = it.preset.api_key
    key = None if reference is None else await resolve_key(shelf, reference, dotenv)
    values = placeholder_values(spec, it, folder, config)
    argv = (
        command_line(spec, values, it.rendered_prompt or "", history=plan.history)
        if spec.argv
        else plan.command
    )
    plain, secrets = build_environment(spec, values, shelf.environ, config.env_allow, dotenv, key)
    if key and reference is not None:
        secrets[key] = _name_of_key(reference)
    # How an agent and its tools know where they are; a sweep finds them by it as well.
    plain |= {"PX_EXECUTION_ID": str(it.id), "PX_PIPE": it.pipe_name, "PX_SOCKET": config.socket}
    plain["PX_OUTPUT_DIR"] = str(values["output_dir"])
    if config.api_token_file is not None:
        plain[TOKEN_FILE_VARIABLE] = config.api_token_file
    path, home = plain["PATH"], plain.get("HOME", "/")
    program = find_executable(argv[0], spec, folder, path=path, home=home)
    # A program finds its own runtime: `#!/usr/bin/env node` beside it, or in a usual place.
    places = (*path.split(os.pathsep), os.path.dirname(program), *_search_path("", home))
    env = Environment({**plain, "PATH": os.pathsep.join(dict.fromkeys(places))})
    version, warnings = (
        await shelf.version(spec, program, folder, env) if spec.version.argv else (None, ())
    )
    keeps_session = plan.history and bool(spec.session_argv)
    if plan.history and not keeps_session:
        doubts += (f"the agent {spec.name!r} keeps no sessions here; history is left out",)
    doubts += provider_doubts(spec, it.preset.provider)
    stop, patterns = spec.stop, (*config.redact, *redact)
    terms = RunTerms(
        parser=spec.parser,
        success=spec.success,
        errors=spec.errors,
        settle_seconds=config.settle_seconds
        if stop.settle_seconds is None
        else stop.settle_seconds,
        stop_seconds=config.stop_seconds if stop.grace_seconds is None else stop.grace_seconds,
        patterns=patterns,
        copied=spec.parser != "text" or bool(secrets or patterns),
    )
    return LaunchSpec(
        adapter=spec,
        argv=(program, *argv[1:]),
        env=env,
        values={**values, "key_reference": spec.reference(version)},
        terms=terms,
        secrets=secrets,
        version=None if version is None else ".".join(map(str, version)),
        session_path=str(values["session_dir"]) if keeps_session else None,
        warnings=(*warnings, *doubts),
    )


def provider_doubts(spec: AgentSpec, provider: str | None) -> tuple[str, ...]:
    """Say that a provider is not known to be one of the agent's, where that knows some. Pure."""
    known = {CUSTOM, *spec.provider_keys, *spec.provider_urls}
    if provider is None or provider in known or len(known) == 1:
        return ()
    said = (
        f"the provider {provider!r} is not known to be one of {spec.name}'s; it is passed on as it "
        "stands"
    )
    return (f"{said}{did_you_mean(provider, known)}",)


# -- keys ------------------------------------------------------------------------------------------


async def resolve_key(
    shelf: AgentShelf, reference: str, dotenv: Mapping[str, str], seconds: float = KEY_SECONDS
) -> str:
    """Return the key that a reference of presets.toml leads to, within so many seconds.

    Names are looked up in `.env`, then in the daemon's environment; paths and commands start in the
    folder of presets.toml. The reference is never quoted in a message: it may be a key.

    Raises CannotRunError: `config_error` for what is no reference, `auth_failed` for a key that
    cannot be had.
    """
    environ, cwd = {**shelf.environ, **dotenv}, shelf.config.presets_file.parent
    if variable := _VARIABLE.fullmatch(reference):
        name = variable[1] or variable[2]
        if key := environ.get(name, "").strip():
            return key
        raise _no_key(
            f"the variable {name} is not set",
            f"set {name} in the .env beside pipe.md, or for the daemon",
        )
    kind, _, rest = reference.partition(":")
    words: list[str] = []
    with contextlib.suppress(ValueError):
        words = shlex.split(rest)
    if kind == "file" and rest.strip():
        return await asyncio.to_thread(_key_of_file, rest.strip(), environ, cwd)
    if kind == "cmd" and shell_syntax(rest) is not None:
        # The reference is not quoted: it may be a key.
        hint = "write api_key = \"cmd:sh -c 'COMMAND | COMMAND'\""
        raise CannotRunError(
            ErrorType.CONFIG_ERROR, "the command of an api_key is run without a shell", hint=hint
        )
    if kind != "cmd" or not words:
        hint = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'
        raise CannotRunError(
            ErrorType.CONFIG_ERROR, "an api_key is no reference to a key", hint=hint
        )
    try:
        done = await shelf.run(words, name="key", timeout=seconds, cwd=str(cwd), env=environ)
        key, why = (
            done.stdout.strip(),
            done.words if done.code != 0 else "must print one line, and nothing else",
        )
        if done.code == 0 and key and "\n" not in key:
            return key
    except TimeoutError:
        why = f"did not end within {seconds:g} s"
    except PxError as error:
        why = f"cannot be started: {error.detail}"
    # What it printed is not quoted: stderr of a password store may hold anything.
    raise _no_key(
        f"the command of the key ({words[0]}) {why}", "run the command by hand to see what it says"
    )


def _key_of_file(text: str, environ: Mapping[str, str], cwd: Path) -> str:
    path = (
        Path(environ.get("HOME") or Path.home(), text[2:]) if text.startswith("~/") else cwd / text
    )
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise _no_key(
                f"others may read the key file {path} (mode {mode:o})", f"chmod 600 {path}"
            )
        key = read_bounded(path, _MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise _no_key(f"the key file {path} cannot be read: {why}", "mend api_key") from error
    if not key:
        raise _no_key(f"the key file {path} is empty", "write the key alone into it")
    return key


def _no_key(detail: str, hint: str) -> CannotRunError:
    return CannotRunError(ErrorType.AUTH_FAILED, detail, hint=hint)


def _name_of_key(reference: str) -> str:
    """Return what a preset's key is called where it is struck out: its variable, else the
    setting.
    """
    variable = _VARIABLE.fullmatch(reference)
    return "api_key" if variable is None else variable[1] or variable[2]


async def recall_secrets(shelf: AgentShelf, it: Execution, home: Path) -> dict[str, str]:
    """Return the values that may be in what an adopted execution printed, as far as they are to
    be had again.
    """
    dotenv, _doubts = read_dotenv(home / DOTENV)
    if (spec := shelf.adapters_now().agents.get(it.plan.agent)) is None:
        return {}
    found = build_environment(spec, {}, shelf.environ, (), dotenv, None)[1]  # of every provider
    with contextlib.suppress(CannotRunError):
        if it.preset.api_key is not None:
            key = await resolve_key(shelf, it.preset.api_key, dotenv, RECALL_SECONDS)
            found[key] = _name_of_key(it.preset.api_key)
    return found


# -- what adapters are filled with -----------------------------------------------------------------


def placeholder_values(spec: AgentSpec, it: Execution, folder: Path, config: PipesConfig) -> Values:
    """Return the value of every placeholder, as far as no version is known; None for one that
    has none. Pure.
    """
    preset, run_dir = it.preset, f"{config.executions_dir}/{it.id}"
    url = preset.url or spec.provider_urls.get(preset.provider or "")
    same = ("model", "effort", "api", "context_window", "max_tokens", "input_cost", "output_cost")
    return {
        **{name: getattr(preset, name) for name in same},
        "provider": preset.provider or (CUSTOM if url else None),
        "url": url,
        "url_root": None if url is None else url.rstrip("/").removesuffix("/v1"),
        "key": HAS_KEY if preset.api_key else None,
        "key_reference": spec.reference(None),
        "run_dir": run_dir,
        "agent_dir": f"{run_dir}/{AGENT_DIR}",
        "prompt_file": f"{run_dir}/{PROMPT_FILE}",
        "session_dir": f"{config.executions_dir}/sessions/{it.pipe_name}",
        "output_dir": it.output_dir or f"{folder}/output/{it.id}",
        "pipe_dir": str(folder),
        "pipe": it.pipe_name,
        "execution_id": it.id,
        "socket": config.socket,
    }


def command_line(spec: AgentSpec, values: Values, prompt: str, *, history: bool) -> tuple[str, ...]:
    """Return the argv, its program as the adapter names it. Pure.

    Raises CannotRunError: `config_error`: a placeholder has no value, or the prompt does not fit
    into an argument.
    """
    if spec.prompt == "arg":
        guarded = any(
            "--" in ([each] if isinstance(each, str) else each) for each in spec.prompt_argv
        )
        is_long = len(prompt.encode("utf-8", "surrogatepass")) > ARGUMENT_BYTES
        if is_long or "\0" in prompt or (not guarded and prompt.startswith(("-", "@"))):
            what = (
                f"over {ARGUMENT_BYTES} bytes, with a NUL, or one that begins with - or @ (an "
                "option, a file)"
            )
            detail = (
                f"the agent {spec.name!r} takes its prompt as an argument, which cannot be {what}"
            )
            hint = 'write prompt = "stdin" or prompt = "file" for the agent in agents.toml'
            raise CannotRunError(ErrorType.CONFIG_ERROR, detail, hint=hint)
        values = {**values, "prompt": prompt}
    session = spec.session_argv if history and spec.session_argv else spec.fresh_argv
    return adapters.fill_arguments(
        spec, (*spec.argv, *session, *spec.extra_argv, *spec.prompt_argv), values
    )


def build_environment(
    spec: AgentSpec,
    values: Values,
    daemon: Mapping[str, str],
    allow: Sequence[str],
    dotenv: Mapping[str, str],
    key: str | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of an agent without the execution's marks, and of every value in it
    that is a secret the variable that it is of. Pure.

    Later layers win: the allow-list, variables that the adapter passes, keys of the provider at
    hand, `.env`, the adapter's own variables, the preset's key. That replaces every key of the
    daemon's environment: an agent gets the keys of its own provider, and no others (its tools
    inherit them).
    """
    provider, has_url = values.get("provider"), values.get("url") is not None
    own = {} if key else passed(daemon, spec.keys_of(None if provider is None else str(provider)))
    handed = passed(daemon, spec.pass_env) | own | dict(dotenv)
    secrets = {
        value: name
        for name, value in sorted(handed.items())
        if value and (name in own or is_secret_name(name))
    }
    env = {"PATH": DEFAULT_PATH} | passed(daemon, allow) | handed
    known = {**values, "key": key or None}
    for name, variable in spec.variables().items():
        value = fill(variable.value, known)
        if value is not None and all(known.get(each) is not None for each in variable.when):
            env[name] = value
    # It looks for the key in its provider's own variable, but not at a url of one's own.
    only = next(iter(spec.provider_keys)) if len(spec.provider_keys) == 1 else None
    named = str(provider) if provider in spec.provider_keys else only or provider
    names = spec.keys_of(str(named)) if named is not None else ()
    key_name = spec.key_variable if has_url or not names else names[0]
    if key:
        secrets[key] = key_name or "api_key"
    if key_name and key:
        env[key_name] = key
    elif key_name and has_url and spec.no_key:
        env[key_name] = spec.no_key
    return env, secrets


# -- programs --------------------------------------------------------------------------------------

USUAL_PLACES = (
    "~/.local/bin", "~/.npm-global/bin", "~/.bun/bin", "~/.volta/bin", "~/.local/share/pnpm",
    "~/.yarn/bin",
    "~/.cargo/bin", "~/.opencode/bin", "~/.claude/local", "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/usr/local/bin", "/usr/bin", "/bin",
)  # fmt: skip
"""A daemon that a service manager started has a short PATH; npm, bun, pip --user and Homebrew
install elsewhere.
"""


def find_executable(name: str, spec: AgentSpec, folder: Path, *, path: str, home: str) -> str:
    """Return the absolute path of a program: on the PATH that it would run with, then where
    installers put it.

    `name` is a name, or a path: absolute, `~/…`, or relative to the pipe's `folder`. Raises
    CannotRunError: `agent_not_found`; what was tried is named, and how the agent is installed.
    """
    is_path = os.sep in name
    if is_path:
        place = home if name.startswith("~/") else str(folder)
        tried = [os.path.normpath(os.path.join(place, name.removeprefix("~/")))]
    else:
        tried = [f"{place}/{name}" for place in _search_path(path, home)]
    for each in tried:
        if os.access(each, os.X_OK) and os.path.isfile(each):
            return each
    where = f"; tried {tried[0]}" if is_path else " on its PATH, nor where installers put programs"
    install = f"install it: {spec.install}" if spec.install else f"install {name}"
    hint = f"{install}; or write its full path into `command` in pipe.md, or `argv` in agents.toml"
    if present := next(filter(os.path.isfile, tried), None):
        hint = f"make it executable: chmod +x {present}"
    detail = f"the program {name!r} of the agent {spec.name!r} was not found{where}"
    raise CannotRunError(ErrorType.AGENT_NOT_FOUND, detail, hint=hint, tried=tried)


@lru_cache
def _search_path(path: str, home: str) -> tuple[str, ...]:
    usual = (
        place.replace("~", home, 1) if place.startswith("~") else place for place in USUAL_PLACES
    )
    places = [*(path or DEFAULT_PATH).split(os.pathsep), *usual]
    return tuple(dict.fromkeys(place for place in places if os.path.isabs(place)))


# -- files -----------------------------------------------------------------------------------------


def file_texts(spec: AgentSpec, values: Values) -> dict[str, str]:
    """Return what the adapter's files hold for this execution, by path below its folder. Pure.

    Raises CannotRunError: `config_error`: a file needs a value that nobody gave.
    """
    texts = {}
    for path, file in spec.files.items():
        if any(values.get(name) is None for name in file.when):
            continue
        if lacking := [name for name in file.needs if values.get(name) is None]:
            raise adapters.needs(spec, lacking[0])
        if file.text is None:
            texts[path] = json.dumps(adapters.fill_json(file.json, values), indent=2) + "\n"
        else:
            texts[path] = fill(file.text, values) or ""
    return texts


def write_files(found: LaunchSpec, run_dir: Path, prompt: str, fds: list[int]) -> None:
    """Write everything that the agent is to find: its output folder, its sessions, the prompt, its
    files. Blocking.

    Below the execution's folder: `prompt.md` where the agent is told of it, and `agent/` with what
    the program reads as its own configuration. Nothing of a user's own configuration is ever
    opened. `fds` get its stdout, its stderr, and its stdin where it reads the prompt there, one by
    one: who calls closes them, also of what raises.
    """
    spec = found.adapter
    texts, folders = (
        file_texts(spec, found.values),
        [(Path(str(found.values["output_dir"])), 0o777)],
    )
    if found.session_path:
        folders.append((Path(found.session_path), 0o700))
    for where, mode in folders:
        where.mkdir(mode=mode, parents=True, exist_ok=True)
        if not os.access(where, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(where))
    fds.extend(open_for_child(run_dir, copied=found.terms.copied))
    prompt_file = str(found.values["prompt_file"])
    if any(prompt_file in text for text in (*found.argv, *found.env.values(), *texts.values())):
        _write_private(run_dir / PROMPT_FILE, prompt)
    if spec.files or spec.argv or spec.env:  # else nobody is told of the folder
        (run_dir / AGENT_DIR).mkdir(mode=0o700)
    for path, text in texts.items():
        target = run_dir / AGENT_DIR / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(target, text)
    if spec.prompt == "stdin":
        fds.append(stdin_of(prompt))


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))


def stdin_of(prompt: str) -> int:
    """Return a file without a name that holds the prompt, to be an agent's stdin: it ends by
    itself, unlike a pipe.
    """
    raw = prompt.encode("utf-8", "surrogatepass")
    if sys.platform == "linux":
        fd = os.memfd_create("prompt")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(raw)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def cleanup(run_dir: Path) -> None:
    """Remove the private files of an execution; what is not there is no error. Blocking."""
    shutil.rmtree(run_dir / AGENT_DIR, ignore_errors=True)
    with contextlib.suppress(OSError):
        (run_dir / PROMPT_FILE).unlink()
