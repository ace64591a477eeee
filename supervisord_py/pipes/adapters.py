"""Adapters: how each agent program is started, asked, read, judged and stopped. Data of
builtin.toml and agents.toml.

A broken table of the user's takes only its own agent away, and a broken file only the user's
tables: who names such an agent is told why. A table of a known name overrides single keys of ours,
in tables below it as well.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, structs

from supervisord_py.config import documents
from supervisord_py.config.documents import Document, Pointer, Problem, did_you_mean
from supervisord_py.errors import PxError
from supervisord_py.ledger.pipes import ErrorType
from supervisord_py.pipes.outcome import ErrorPattern, SuccessRule
from supervisord_py.process.child_environment import ENV_NAME, MARKS

Values = Mapping[str, str | int | float | None]  # of placeholders, by name
BUILTIN = Path(__file__).with_name("builtin.toml")
COMMAND = "command"


class CannotRunError(PxError, kind="cannot_run", title="The agent cannot be run", status=503):
    """An agent cannot be run: not found, not compatible, no key, no provider, no model.

    `error_type` is of the row.
    """

    def __init__(
        self, error_type: ErrorType, detail: str, *, hint: str | None = None, **extra: Any
    ) -> None:
        super().__init__(detail, hint=hint, error_type=error_type.value, **extra)
        self.error_type = error_type

    @property
    def message(self) -> str:
        """`error_message` of the row: what is wrong, and the cure."""
        return f"{self.detail}; {self.hint}" if self.hint else self.detail


# -- placeholders ----------------------------------------------------------------------------------

PLACEHOLDERS = frozenset((
    "provider", "model", "effort", "url", "url_root", "api", "key", "key_reference",
    "context_window", "max_tokens", "input_cost", "output_cost", "prompt", "prompt_file", "run_dir",
    "agent_dir", "session_dir", "output_dir", "pipe_dir", "pipe", "execution_id", "socket",
))  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([a-z_]+)(:json)?(?:\|([^{}]*))?\}")


def fill(text: str, values: Values) -> str | None:
    """Fill `{name}`, `{name|default}`, `{name:json}`; None where one has neither value nor default.

    Other braces are ordinary text, so that JSON and `{env:NAME}` need no escaping.
    """
    if missing(text, values):
        return None

    def shown(found: re.Match[str]) -> str:
        value = values.get(found[1])
        value = found[3] if value is None else value
        return json.dumps(value) if found[2] else str(value)

    return _PLACEHOLDER.sub(shown, text)


def missing(text: str, values: Values) -> tuple[str, ...]:
    return tuple(
        found[1]
        for found in _PLACEHOLDER.finditer(text)
        if found[3] is None and values.get(found[1]) is None
    )


def fill_json(value: Any, values: Values) -> Any:
    """Fill a JSON value: a text that is one placeholder keeps the type of its value; a member
    that misses one goes.
    """
    if isinstance(value, dict):
        pairs = (
            (fill(name, values), each, fill_json(each, values)) for name, each in value.items()
        )
        return {
            name: new
            for name, old, new in pairs
            if name is not None and (new is not None or old is None)
        }
    if isinstance(value, list):
        return [new for old in value if (new := fill_json(old, values)) is not None or old is None]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole is None or whole[2]:
        return fill(value, values)
    found = values.get(whole[1])
    return (
        int(whole[3])
        if found is None and (whole[3] or "").isdigit()
        else whole[3]
        if found is None
        else found
    )


def placeholders_of(value: Any) -> list[str]:
    return [found[1] for found in _PLACEHOLDER.finditer(json.dumps(value, default=str))]


# -- versions --------------------------------------------------------------------------------------

Version = tuple[int, ...]
_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
_OPERATORS: dict[str, Any] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
    "<": operator.lt,
}  # fmt: skip


def parse_version(text: str) -> Version | None:
    """Return the first version number in what a program printed, or None: `v20.20.2`, `codex-cli
    0.169.0`.
    """
    found = _VERSION.search(text)
    return tuple(map(int, found[1].split("."))) if found else None


def in_range(version: Version, bounds: str) -> bool:
    """Say whether a version satisfies all bounds of `>=0.74,<2`; what is not said counts as 0."""

    def filled(numbers: Iterable[int]) -> Version:
        return (*numbers, 0, 0, 0, 0)[:4]

    said = (
        (_OPERATORS[sign], map(int, bound.split("."))) for sign, bound in _BOUND.findall(bounds)
    )
    return all(holds(filled(version), filled(bound)) for holds, bound in said)


# -- what an adapter is ----------------------------------------------------------------------------

Text = Annotated[str, Meta(min_length=1)]
VersionRange = Annotated[
    str, Meta(pattern=r"^\s*(>=|<=|==|!=|>|<)\s*[0-9.]+(\s*,\s*(>=|<=|==|!=|>|<)\s*[0-9.]+)*\s*$")
]
# a tuple inside is left out when a placeholder in it has no value
Arguments = tuple[str | tuple[str, ...], ...]
Seconds = Annotated[float, Meta(ge=0)]
ParserName = Literal[
    "text", "pi-jsonl", "claude-json", "codex-jsonl", "gemini-json", "opencode-jsonl"
]


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment variable; set only where every placeholder in `value` and in `when` has a
    value.
    """

    value: str
    when: tuple[str, ...] = ()


class PrivateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file written for one execution, 0600.

    `when`: else it is not written; `needs`: else it is a config_error.
    """

    json: Any = None
    text: str | None = None
    when: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


class TextByVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that depends on the agent's version; the first row that fits counts, None fits
    every version.
    """

    text: str
    agent: VersionRange | None = None


class VersionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a version is found; outside of `want` it is agent_incompatible, outside of `tested`
    there is a warning.
    """

    argv: tuple[str, ...] = ()
    want: VersionRange | None = None
    tested: VersionRange | None = None
    cure: Text | None = None


class StopRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the agent is ended. None takes the daemon's setting."""

    signal: Any = None  # of earlier versions, without effect
    grace_seconds: Seconds | None = None
    settle_seconds: Seconds | None = None


class PermissionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the agent would ask a person for, and is denied here, unless one of `options` stands
    in its argv.
    """

    denied: Text  # as the rest of "NAME may not …"
    options: tuple[str, ...]
    cure: Text


class AgentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter. Its keys are described in agents.toml(5)."""

    argv: Arguments = ()  # empty for `command`, whose argv is the pipe's own
    name: str = ""
    prompt: Literal["stdin", "file", "arg"] = "stdin"
    parser: ParserName = "text"
    fresh_argv: Arguments = ()
    session_argv: Arguments = ()
    extra_argv: Arguments = ()
    prompt_argv: Arguments = ()
    install: Text | None = None
    env: dict[str, str | Variable] = {}
    pass_env: tuple[str, ...] = ()
    key_variable: str | None = None
    provider_keys: dict[str, str | tuple[str, ...]] = {}
    no_key: Text | None = None
    provider_urls: dict[str, Text] = {}
    key_reference: tuple[TextByVersion, ...] = ()
    files: dict[str, PrivateFile] = {}
    version: VersionRule = VersionRule()
    success: SuccessRule = SuccessRule()
    errors: tuple[ErrorPattern, ...] = ()
    tells_cost: bool = True  # where its format has a place for it
    asks: PermissionRule | None = None
    stop: StopRule = StopRule()
    auth_check: Any = None  # of earlier versions, without effect

    def variables(self) -> dict[str, Variable]:
        return {name: Variable(it) if isinstance(it, str) else it for name, it in self.env.items()}

    def keys_of(self, provider: str | None) -> tuple[str, ...]:
        """Return the variables that hold a provider's keys; of every provider where the agent
        chooses by itself.
        """
        rows = (
            self.provider_keys.values()
            if provider is None
            else [self.provider_keys.get(provider, ())]
        )
        return tuple(name for row in rows for name in ((row,) if isinstance(row, str) else row))

    def reference(self, version: Version | None) -> str | None:
        """Return how the agent's files name the key; an unknown version counts as the newest,
        which stands last.
        """
        for row in self.key_reference:
            if row.agent is None or (version is not None and in_range(version, row.agent)):
                return row.text
        return self.key_reference[-1].text if self.key_reference else None


def takes(spec: AgentSpec, placeholder: str) -> bool:
    """Say whether the agent is told a value at all: in its argv, its environment or its files."""
    environment = {name: variable.value for name, variable in spec.variables().items()}
    files = [(path, file.json, file.text) for path, file in spec.files.items()]
    arguments = (spec.argv, spec.fresh_argv, spec.session_argv, spec.extra_argv, spec.prompt_argv)
    return placeholder in placeholders_of([arguments, environment, files])


def is_allowed(spec: AgentSpec, rule: PermissionRule) -> bool:
    """Say whether the agent's argv has an option that allows what it would ask for."""
    for piece in (*spec.argv, *spec.extra_argv):
        words = (piece,) if isinstance(piece, str) else piece
        if any(word.partition("=")[0] in rule.options for word in words):
            return True
    return False


def fill_arguments(spec: AgentSpec, pieces: Arguments, values: Values) -> tuple[str, ...]:
    """Fill a command line; a tuple in it with a missing placeholder is left out.

    Raises CannotRunError: `config_error`: a word that is not in a tuple has a placeholder without a
    value.
    """
    words: list[str] = []
    for piece in pieces:
        texts = (piece,) if isinstance(piece, str) else piece
        filled = [word for text in texts if (word := fill(text, values)) is not None]
        if len(filled) == len(texts):
            words += filled
        elif isinstance(piece, str):
            raise needs(spec, missing(piece, values)[0])
    return tuple(words)


def needs(spec: AgentSpec, name: str) -> CannotRunError:
    detail = (
        f"the agent {spec.name!r} needs a {name}, and neither the preset nor the pipe names one"
    )
    hint = f'write {name} = "…" into the preset, or {name}: … into pipe.md'
    return CannotRunError(ErrorType.CONFIG_ERROR, detail, hint=hint)


# -- reading ---------------------------------------------------------------------------------------

_SEE = "see agents.toml(5)"
# other programs' words
_SHELLS = frozenset(("shell", "bash", "sh", "script", "exec", "none", "python", "node"))


def _faults(spec: AgentSpec) -> Iterator[tuple[Pointer, str, str | None]]:
    if not spec.argv and spec.name != COMMAND:
        yield (
            (),
            "the key 'argv' is missing",
            'write the command line: argv = ["my-agent", "--json"]',
        )
    wanted = {"file": "prompt_file", "arg": "prompt"}.get(spec.prompt)
    if wanted and wanted not in placeholders_of((spec.argv, spec.extra_argv, spec.prompt_argv)):
        hint = f'prompt_argv = ["--", "{{{wanted}}}"]'
        yield ("prompt",), f'"{spec.prompt}" needs {{{wanted}}} in prompt_argv', hint
    parts = ("argv", "fresh_argv", "session_argv", "extra_argv", "prompt_argv")
    texts: dict[Pointer, Any] = {(part,): getattr(spec, part) for part in parts}
    conditions: dict[Pointer, tuple[str, ...]] = {}
    for name, variable in spec.variables().items():
        texts["env", name], conditions["env", name] = variable.value, variable.when
        if not ENV_NAME.fullmatch(name) or name in MARKS:
            yield (
                ("env", name),
                f"the variable {name!r} cannot be set for an agent",
                "use a name like ACME_API_KEY",
            )
    for path, file in spec.files.items():
        texts["files", path], conditions["files", path] = (
            [file.json, file.text],
            (*file.when, *file.needs),
        )
    for where, text in texts.items():
        names = placeholders_of(text)
        if "key" in names and where[0] != "env":
            yield (
                where,
                "{key} cannot stand here",
                "a key is handed over in an environment variable alone",
            )
        for name in {*names, *conditions.get(where, ())} - PLACEHOLDERS:
            yield where, f"{{{name}}} is no placeholder{did_you_mean(name, PLACEHOLDERS)}", _SEE
    for index, each in enumerate(spec.errors):
        try:
            re.compile(each.pattern)
        except re.error as error:
            yield (
                ("errors", index, "pattern"),
                f"{each.pattern!r} is no regular expression: {error}",
                _SEE,
            )


class UserTables(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of a user's came to; a table that is wrong is away alone."""

    broken: dict[str, list[Problem]] = {}  # of tables that cannot be used, every problem
    # why the file as a whole cannot be read; None also where there is none
    file_problem: Problem | None = None

    @property
    def problems(self) -> list[Problem]:
        whole = [] if self.file_problem is None else [self.file_problem]
        return whole + [each for found in self.broken.values() for each in found]


class Adapters(UserTables, frozen=True):
    agents: dict[str, AgentSpec]

    def get(self, name: str) -> AgentSpec:
        """Return an adapter.

        Raises CannotRunError: it is broken (why), or there is none (the nearest is named).
        """
        if name in self.broken:
            first = self.broken[name][0]
            why, hint = f"the agent {name!r} is broken: {finding(first)}", first.hint or _SEE
        elif name in self.agents:
            return self.agents[name]
        else:
            also = f"; and {finding(self.file_problem)}" if self.file_problem else ""
            why = f"there is no agent {name!r}{did_you_mean(name, self.agents)}{also}"
            hint = f"known are {', '.join(sorted(self.agents))}; {_SEE}"
            if name.lower() in _SHELLS:
                hint = "write agent: command, and command: ./program --flag"
        raise CannotRunError(ErrorType.CONFIG_ERROR, why, hint=hint, agent=name)


def load_adapters(user_file: Path | None) -> Adapters:
    """Read all adapters; a user's file that is not there is no problem.

    Never raises for what users wrote. Blocking.
    """
    tables, document, _none = read_tables(BUILTIN, "agents")
    agents = {name: _read_spec(name, table, document)[0] for name, table in tables.items()}
    broken: dict[str, list[Problem]] = {}
    own, document, file_problem = (
        read_tables(user_file, "agents") if user_file else ({}, document, None)
    )
    for name, table in own.items():
        merged = _merged(tables.get(name, {}), table) if isinstance(table, dict) else table
        agents[name], problems = _read_spec(name, merged, document)
        if problems:
            broken[name] = problems
            del agents[name]
    return Adapters(agents, broken=broken, file_problem=file_problem)


def _read_spec(name: str, table: Any, document: Document) -> tuple[AgentSpec, list[Problem]]:
    at = ("agents", name)
    spec, problems = documents.convert(document, AgentSpec, at, value=table)
    if isinstance(table, dict) and "name" in table:
        problems.append(document.problem((*at, "name"), "unknown key 'name'", key=True))
    spec = structs.replace(spec or AgentSpec(), name=name)
    if not problems:
        problems = [
            document.problem((*at, *path), message, hint=hint)
            for path, message, hint in _faults(spec)
        ]
    return spec, problems


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        held = merged.get(key)
        merged[key] = (
            _merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
        )
    return merged


def read_tables(file: Path, top: str) -> tuple[dict[str, Any], Document, Problem | None]:
    """Read the tables `[TOP.NAME]` of a TOML file: none where it is not there. Blocking.

    Returns the tables, the document for their positions, and why the file as a whole cannot be
    used.
    """
    document = Document({}, "", str(file), "toml")
    try:
        document = documents.read_document(file)
    except documents.DocumentError as error:
        wrong = error.problem
        what = "cannot be read" if wrong.line is None else "is no TOML"
        why = (
            structs.replace(wrong, message=f"{what}: {wrong.message}")
            if os.path.lexists(file)
            else None
        )
        return {}, document, why
    for key, value in document.value.items():
        if key != top or not isinstance(value, dict):
            wrong = document.problem(
                (key,), f"{key!r} has no place here", key=True, hint=f"write [{top}.NAME]"
            )
            return {}, document, wrong
    return document.value.get(top, {}), document, None


def finding(problem: Problem) -> str:
    """Return `file:line: key: what is wrong`, without the cure."""
    place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    key = f"{problem.pointer[1:].replace('/', '.')}: " if problem.pointer else ""
    return f"{place}: {key}{problem.message}"


def sentence(problem: Problem) -> str:
    return "; ".join(filter(None, (finding(problem), problem.hint)))
