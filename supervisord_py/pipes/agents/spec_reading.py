"""From a table of agents.toml to an adapter. Pure: what is wrong is noted, with the key and what was probably meant."""

from __future__ import annotations

import re
import signal as signals
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.agents.spec import (
    AgentLimits,
    AgentSpec,
    AuthCheck,
    ByVersion,
    Piece,
    PrivateFile,
    PromptBy,
    StopRule,
    Variable,
    VersionRule,
)
from supervisord_py.pipes.agents.templates import GAPS, gaps_of
from supervisord_py.pipes.agents.toml_table import TomlTable, nearest, quoted
from supervisord_py.pipes.agents.versions import VersionRange, parse_range
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.parsers import PARSERS
from supervisord_py.pipes.judging.values import ErrorPattern, Requirement, SuccessRule

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_OR_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
_MARKS = frozenset({"PX_INSTANCE", "PX_UNIT"})
_ANYWHERE = frozenset(GAPS) - {"key", "prompt"}


def read_spec(name: str, table: TomlTable) -> AgentSpec:
    """Return the adapter that a table describes; what is wrong is in `table.problems`, and its default is here."""
    argv = _pieces(table, "argv")
    if not table.raw("argv") and name != "command":
        table.wrong("argv", "is missing", 'write the command line, for example argv = ["my-agent", "--json"]')
    prompt = table.choice("prompt", PromptBy) or PromptBy.STDIN
    spec = AgentSpec(
        name=name,
        argv=argv,
        prompt=prompt,
        parser=_parser(table),
        fresh_argv=_pieces(table, "fresh_argv"),
        session_argv=_pieces(table, "session_argv"),
        extra_argv=_pieces(table, "extra_argv"),
        prompt_argv=_pieces(table, "prompt_argv", also="prompt"),
        env=_env(table),
        pass_env=_variables(table, "pass_env", table.texts("pass_env") or (), _NAME_OR_PREFIX),
        key_variable=_key_variable(table),
        provider_keys=_provider_keys(table),
        no_key=table.words("no_key"),
        provider_urls=_provider_urls(table),
        key_reference=_key_reference(table),
        files=_files(table),
        version=_version(table.table("version")),
        success=_success(table),
        stop=_stop(table.table("stop")),
        limits=_limits(table.table("limits")),
        auth_check=_auth_check(table.table("auth_check")),
    )
    _check_prompt(table, spec)
    table.refuse_unknown()
    return spec


def _parser(table: TomlTable) -> str:
    parser = table.words("parser")
    if parser is not None and parser not in PARSERS:
        table.wrong("parser", f"{quoted(parser)} is no output format", f"write one of {', '.join(PARSERS)}")
    return parser if parser in PARSERS else "text"


def _pieces(table: TomlTable, key: str, also: str | None = None) -> tuple[Piece, ...]:
    """Read a command line: words, and lists of words that stand or fall together."""
    value = table.raw(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(_is_piece(each) for each in value):
        table.wrong(key, f"{quoted(value)} is no command line", 'write ["program", "--flag", ["--model", "{model}"]]')
        return ()
    _check_gaps(table, key, value, _ANYWHERE | {also or ""})
    return tuple(Piece((each,)) if isinstance(each, str) else Piece(tuple(each), optional=True) for each in value)


def _is_piece(value: Any) -> bool:
    words = value if isinstance(value, list) else [value]
    return all(isinstance(word, str) and "\0" not in word for word in words)


def _check_gaps(table: TomlTable, key: str, value: Any, allowed: Iterable[str]) -> None:
    for gap in gaps_of(value):
        if gap not in allowed:
            where = "cannot stand here" if gap in GAPS else "is no gap"
            meant = nearest(gap, GAPS)
            table.wrong(key, f"{{{gap}}} {where}", f"did you mean {{{meant}}}?" if meant and meant != gap else _known())


def _known() -> str:
    return "see agents.toml(5) for what may stand where: " + ", ".join(sorted(GAPS))


def _env(table: TomlTable) -> tuple[Variable, ...]:
    env = table.table("env")
    if env is None:
        return ()
    _variables(env, None, tuple(env.members), _NAME)
    return tuple(found for name in env.members if (found := _variable(env, name)) is not None)


def _variable(env: TomlTable, name: str) -> Variable | None:
    if isinstance(env.raw(name), dict):
        below = env.below(name, env.members[name])
        value, when = below.words("value"), _gap_names(below, "when")
        below.refuse_unknown()
    else:
        value, when = env.raw(name), ()
    if not isinstance(value, str) or "\0" in value:
        env.wrong(name, f"{quoted(env.members[name])} is no text", f'write {name} = "…"')
        return None
    _check_gaps(env, name, value, _ANYWHERE | {"key"})
    return Variable(name, value, when)


def _variables(table: TomlTable, key: str | None, names: tuple[str, ...], shape: re.Pattern[str]) -> tuple[str, ...]:
    """Return the names that are names of variables and not the daemon's own; the others are noted."""
    good = tuple(name for name in names if shape.fullmatch(name) and name not in _MARKS)
    for name in names:
        if name not in good:
            table.wrong(key or name, f"{quoted(name)} cannot be set for an agent", "use a name like ACME_API_KEY")
    return good


def _gap_names(table: TomlTable, key: str) -> tuple[str, ...]:
    names = table.text_or_texts(key) or ()
    for name in names:
        if name not in GAPS:
            table.wrong(key, f"{quoted(name)} is no gap", f"known are {', '.join(sorted(GAPS))}")
    return names


def _key_variable(table: TomlTable) -> str | None:
    name = table.words("key_variable")
    return next(iter(_variables(table, "key_variable", () if name is None else (name,), _NAME)), None)


def _provider_keys(table: TomlTable) -> dict[str, tuple[str, ...]]:
    keys = table.table("provider_keys")
    if keys is None:
        return {}
    return {
        provider: _variables(keys, provider, keys.text_or_texts(provider) or (), _NAME) for provider in keys.members
    }


def _provider_urls(table: TomlTable) -> dict[str, str]:
    urls = table.table("provider_urls")
    return {} if urls is None else {provider: urls.words(provider) or "" for provider in urls.members}


def _key_reference(table: TomlTable) -> tuple[ByVersion, ...]:
    return tuple(_by_version(row) for row in table.tables("key_reference") or ())


def _by_version(row: TomlTable) -> ByVersion:
    found = ByVersion(row.words("text") or "", _range(row, "agent"))
    if "text" not in row.members:
        row.wrong("text", "is missing", 'write text = "$PX_KEY"')
    row.refuse_unknown()
    return found


def _range(table: TomlTable, key: str) -> VersionRange | None:
    text = table.words(key)
    if text is None:
        return None
    try:
        return parse_range(text)
    except ValueError as error:
        table.wrong(key, str(error), 'write bounds joined by commas: ">=0.74,<2"')
        return None


def _files(table: TomlTable) -> tuple[PrivateFile, ...]:
    files = table.table("files")
    if files is None:
        return ()
    below = ((path, files.table(path)) for path in files.members)
    return tuple(_file(files, path, each) for path, each in below if each is not None)


def _file(files: TomlTable, path: str, table: TomlTable) -> PrivateFile:
    parts = path.split("/")
    if path.startswith("/") or not all(part.strip() and part not in {".", ".."} for part in parts) or "\0" in path:
        files.wrong(path, "is no path below the agent's directory", 'write for example "conf/settings.json"')
    content, text = table.raw("json"), table.words("text")
    if (content is None) == (text is None):
        files.wrong(path, "needs either json or text", 'json = {…} or text = "…"')
    _check_gaps(table, "json" if text is None else "text", content if text is None else text, _ANYWHERE)
    found = PrivateFile(path, content, text, _gap_names(table, "when"), _gap_names(table, "needs"))
    table.refuse_unknown()
    return found


def _version(table: TomlTable | None) -> VersionRule:
    if table is None:
        return VersionRule()
    rule = VersionRule(
        argv=table.texts("argv") or (),
        want=_range(table, "want"),
        tested=_range(table, "tested"),
        cure=table.words("cure"),
    )
    for old in ("packages", "runtime"):  # files that were written for earlier versions say more than is asked now
        table.raw(old)
    table.refuse_unknown()
    return rule


def _success(table: TomlTable) -> SuccessRule:
    patterns = tuple(found for row in table.tables("errors") or () if (found := _pattern(row)) is not None)
    below = table.table("success")
    if below is None:
        return SuccessRule(patterns=patterns)
    rule = SuccessRule(
        exit_codes=_exit_codes(below),
        require=below.choice("require", Requirement) or Requirement.FINAL_TEXT,
        patterns=patterns,
        scan_output=below.flag("scan_output") or False,
    )
    below.refuse_unknown()
    return rule


def _exit_codes(table: TomlTable) -> tuple[int, ...]:
    value = table.raw("exit")
    codes = [value] if isinstance(value, int) else value
    if value is None:
        return (0,)
    if not isinstance(codes, list) or not all(type(code) is int and code in range(256) for code in codes):
        table.wrong("exit", f"{quoted(value)} are no exit codes", "write exit = [0]")
        return (0,)
    return tuple(codes)


def _pattern(row: TomlTable) -> ErrorPattern | None:
    kind, pattern = row.choice("type", ErrorType), row.words("pattern")
    row.refuse_unknown()
    if kind is None or pattern is None:
        row.wrong("pattern", "an error needs a type and a pattern", "type = \"rate_limited\", pattern = '…'")
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        row.wrong("pattern", f"{quoted(pattern)} is no regular expression: {error}", "quote it with ' so that \\ stays")
        return None
    return ErrorPattern(kind, pattern)


def _stop(table: TomlTable | None) -> StopRule:
    if table is None:
        return StopRule()
    word = table.words("signal") or "TERM"
    number = getattr(signals, f"SIG{word.upper().removeprefix('SIG')}", None)
    if not isinstance(number, signals.Signals):
        table.wrong("signal", f"{quoted(word)} is no signal", 'write signal = "TERM", "INT" or "HUP"')
        number = signals.SIGTERM
    rule = StopRule(int(number), table.amount("grace_seconds"), table.amount("settle_seconds"))
    table.refuse_unknown()
    return rule


def _limits(table: TomlTable | None) -> AgentLimits:
    if table is None:
        return AgentLimits()
    limits = AgentLimits(table.count("turns"), table.count("tokens"), table.amount("cost"))
    table.refuse_unknown()
    return limits


def _auth_check(table: TomlTable | None) -> AuthCheck | None:
    if table is None:
        return None
    check = AuthCheck(_pieces(table, "argv"), _range(table, "since"))
    table.refuse_unknown()
    return check if check.argv else None


def _check_prompt(table: TomlTable, spec: AgentSpec) -> None:
    """Refuse an adapter that could not hand over a prompt, or would hand it over where it may be read as an option."""
    wanted = {PromptBy.FILE: "prompt_file", PromptBy.ARG: "prompt"}.get(spec.prompt)
    pieces = (*spec.argv, *spec.extra_argv, *spec.prompt_argv)
    if wanted and not any(wanted in gaps_of(list(piece.words)) for piece in pieces):
        table.wrong(
            "prompt", f'"{spec.prompt}" needs {{{wanted}}} in prompt_argv', f'prompt_argv = ["--", "{{{wanted}}}"]'
        )
