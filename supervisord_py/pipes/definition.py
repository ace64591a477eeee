"""Front matter to definition: each key read by its type, each mistake told with its place and what to write. Pure.

Lenient where real files vary (lists or words, yes or true, keys of other programs), strict where a mistake would run
the wrong thing or nothing at all: in the maps that are ours an unknown key is a mistake.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from typing import TYPE_CHECKING, Any, TypeAlias

from supervisord_py.config.documents import DocumentError, Problem, decode, did_you_mean, nearest
from supervisord_py.pipes.front_matter import parse
from supervisord_py.pipes.grammar import FORMS, parse_schedule
from supervisord_py.pipes.models import (
    COMMAND,
    BrokenPipe,
    BudgetRules,
    Declared,
    EventPattern,
    PipeDefinition,
    RetryRules,
    RunLimits,
)
from supervisord_py.pipes.schedule import Manual, Schedule, ScheduleError, checked_zone, shown, span_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from supervisord_py.config.documents import Document

DEFAULT_AGENT = "pi"
DEFAULT_PRESET = "auto"
PIPE_FILE = "pipe.md"
MAX_NAME = 100
_ROUTES = frozenset({"queue", "new", "schedule"})  # `/api/pipes/queue` and its like are routes
_RIGHTS = "is not enforced here: the agent may do what you may do"
_MISLEADING = {
    **dict.fromkeys(("permissions", "allow-apps", "deny-apps", "time-range"), _RIGHTS),
    "privacy_filter": "is not applied here: the agent sees what it finds",
    "connections": "are not made here: give the agent what it needs in .env",
    "run_in": "has no effect here: each execution is one of its own",
    "subagent": "has no effect here: the agent has the tools of its own settings",
    "lookback": "has no effect here: the time range of a run begins where the last successful one ended",
    "on_failure": "tells nobody: a pipe with `trigger: pipe_failed:NAME` does (pxctl pipe add example:tell-failure)",
    "config": "is not filled in here: {{...}} in the prompt is passed on as it is",
}
_SILENT = (
    "artifacts", "source_slug", "installed_version", "source_hash", "template", "icon", "featured", "category",
    "tags", "author", "version", "license", "mute", "enterprise_managed", "event_read_only",
)  # fmt: skip
_HARMLESS: tuple[Any, ...] = (None, "", "false", "no", "off", "admin", "none", [], {})
"""Values of misleading keys that ask for nothing which is not done. (`permissions: none` is checked apart.)"""
PIPE_EVENTS = ("pipe_completed", "pipe_failed")
FILE_CHANGED = "file_changed"
PUBLISHED = (*PIPE_EVENTS, "tool_failed", FILE_CHANGED)


def name_trouble(name: str) -> str | None:
    """Say why a folder's name cannot be a pipe's, as the rest of a sentence; None when it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        wrong = re.search(r"[^A-Za-z0-9._-]", name)
        what = f"holds {shown(wrong[0])}" if wrong else f"begins with {shown(name[0])}"
        return f"{what}; a name is made of letters, digits, dots, hyphens and underscores, a letter or digit first"
    return "is reserved" if name in _ROUTES else None


def declare(raw: bytes, *, folder: Path, default_agent: str = DEFAULT_AGENT) -> Declared:
    """Read the bytes of a `pipe.md` that lies, or is to lie, in `folder`, whose name is the pipe's; touches no file."""
    file, digest = folder / PIPE_FILE, hashlib.sha256(raw).hexdigest()
    if trouble := name_trouble(folder.name):
        said = f"the folder's name {shown(folder.name)} {trouble}"
        problem = Problem(message=said, file=str(folder), hint="rename the folder")
        return BrokenPipe(folder.name, folder, problem, digest=digest)
    try:
        text = "\ufeff" + decode(raw[3:], str(file)) if raw.startswith(b"\xef\xbb\xbf") else decode(raw, str(file))
        front = parse(text, str(file))
    except DocumentError as error:
        return BrokenPipe(folder.name, folder, error.problem, digest=digest)
    reading = _Reading(front.header)
    fields = reading.everything(folder.name, default_agent)
    if reading.problems:
        first, *more = sorted(reading.problems, key=lambda each: (each.line or 0, each.column or 0))
        return BrokenPipe(folder.name, folder, first, tuple(more), digest)
    return PipeDefinition(
        name=folder.name,
        folder=folder,
        file=file,
        digest=digest,
        body=front.body,
        lines=_lines(front.header),
        warnings=tuple(reading.warnings),
        **fields,
    )


def _lines(header: Document) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(re.split(r"\r\n|\n|\r", header.text), header.first_line):
        if (key := re.match(r" *[\"']?([\w-]+)[\"']?[ \t]*:", line)) and key[1] in header.value:
            found.setdefault(key[1], number)
    return found


# -- one value -------------------------------------------------------------------------------------------------------

_COUNTS = {"": 1, "k": 1000, "m": 1_000_000, "b": 1_000_000_000}
_SIZES = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1024),
    **dict.fromkeys(("m", "mb", "mib"), 1024**2),
    **dict.fromkeys(("g", "gb", "gib"), 1024**3),
}
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?")


class WrongValueError(ValueError):
    """What is wrong with a value, and what to write."""

    def __init__(self, detail: str, hint: str, index: int | None = None) -> None:
        super().__init__(detail)
        self.detail, self.hint, self.index = detail, hint, index


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValueError(
            f"must be text, not {'a list' if isinstance(value, list) else 'a map'}", "write some text"
        )
    return value.strip()


def _flag(value: Any) -> bool:
    word = _text(value).lower()
    if word not in {"true", "yes", "on", "false", "no", "off"}:
        raise WrongValueError(f"{shown(_text(value))} is neither true nor false", "write true or false")
    return word in {"true", "yes", "on"}


def _whole(least: int, most: int, *, zero: tuple[str, ...] = ()) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        text = _text(value)
        if text.lower() in zero:
            return 0
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", text):
            raise WrongValueError(f"{shown(text)} is no whole number", f"write a number from {least} to {most}")
        if not least <= int(text) <= most:
            raise WrongValueError(f"{text} is out of range", f"write a number from {least} to {most}")
        return int(text)

    return read


def _dollars(value: Any) -> float:
    found = _text(value).removeprefix("$")
    if not _NUMBER.fullmatch(found) or float(found) <= 0:
        raise WrongValueError(f"{shown(_text(value))} is no amount of dollars", "write an amount above 0, such as 0.50")
    return float(found)


def count_of(value: Any) -> int:
    """Read a number above 0, which may end in k (thousand), M (million) or B."""
    return _scaled(value, _COUNTS, "write a number above 0, such as 200000, 200k or 1.5M")


def size_of(value: Any) -> int:
    """Read bytes: `512MB`, `2GiB`; a unit is a power of 1024."""
    return _scaled(value, _SIZES, "write a size such as 512MB or 2GB")


def _scaled(value: Any, units: dict[str, int], hint: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)", _text(value).lower().replace("_", ""))
    number = float(found[1]) * units.get(found[2], 0) if found else 0
    if not 1 <= number < 2**53:
        raise WrongValueError(f"{shown(_text(value))} is not understood", hint)
    return int(number)


def seconds_of(value: Any) -> float:
    """Read a time span: seconds, or `90s`, `10m`, `1h30m`, `2 hours`; more than 0, at most a year."""
    found = _text(value).lower()
    seconds = float(found) if _NUMBER.fullmatch(found) else span_of(found)
    if seconds is None:
        raise WrongValueError(f"{shown(_text(value))} is no time span", "write seconds (600), or 90s, 10m, 1h30m")
    if not 0 < seconds <= 366 * 86400.0:
        raise WrongValueError(f"{shown(_text(value))} is out of range", "write a time above 0 and up to 366 days")
    return seconds


def _texts(value: Any) -> list[tuple[int, str]]:
    """Read a text or a list of texts, each with its place in the list; empty ones are left out."""
    found = []
    for index, each in enumerate(value if isinstance(value, list) else [value]):
        if isinstance(each, (list, dict)):
            what = "a list" if isinstance(each, list) else "a map"
            raise WrongValueError(f"must be text or a list of texts, but holds {what}", "write texts", index)
        if (each or "").strip():
            found.append((index, each.strip()))
    return found


def _argv(value: Any) -> tuple[str, ...]:
    """Read a program with its arguments: a line split as a shell splits words, or a list as it is."""
    if isinstance(value, list):
        if any(isinstance(each, (list, dict)) for each in value):
            raise WrongValueError("must be a list of words, but holds a list or a map", "write texts: [prog, arg]")
        words = tuple(each or "" for each in value)
    else:
        try:
            words = tuple(shlex.split(_text(value)))
        except ValueError as error:
            if isinstance(error, WrongValueError):
                raise
            hint = "close the quote, or write a list: [prog, arg]"
            raise WrongValueError(f"cannot be split into words: {error}", hint) from None
    if not words or not words[0]:
        raise WrongValueError("names no program", "write command: ./program --flag")
    return words


def _presets(value: Any) -> tuple[str, ...]:
    words = _texts(value)
    for index, word in words[:-1]:
        if word == "*":
            raise WrongValueError('"*" means all others and comes last', 'write [first, second, "*"]', index)
    return tuple(dict.fromkeys(DEFAULT_PRESET if word == "pi-agent" else word for _index, word in words))


def _redact(value: Any) -> tuple[str, ...]:
    found = []
    for index, text in _texts(value):
        try:
            if re.compile(text).match("") is not None:
                raise WrongValueError(f"{shown(text)} matches the empty text", "write what must be there", index)
        except (re.error, OverflowError, RecursionError) as error:
            hint = "mend the expression, or escape its special characters with a backslash"
            said = f"{shown(text)} is no regular expression: {str(error)[:100]}"
            raise WrongValueError(said, hint, index) from None
        found.append(text)
    return tuple(found)


def _effort(value: Any) -> str:
    words, word = ("low", "medium", "high"), _text(value).lower()
    if word not in words:
        raise WrongValueError(f"{shown(word)} is not known{did_you_mean(word, words)}", f"write {', '.join(words)}")
    return word


def _zone(value: Any) -> str | None:
    name = _text(value)
    return None if name.lower() == "local" else checked_zone(name)


def _not_auto(value: Any) -> str | None:
    return None if _text(value).lower() == DEFAULT_PRESET else _text(value)


def parse_pattern(text: str) -> EventPattern:
    """Read an event of the front matter: `pipe_completed:NAME`, `file_changed:inbox/**/*.md`, `my_event`.

    Raises ScheduleError: the name is no name, or a known event lacks its subject.
    """
    plain = text.strip()
    name, colon, subject = plain.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        hint = "write for example `pipe_completed:NAME` or `file_changed:inbox/*.md`"
        raise ScheduleError(f"{shown(plain)} is no event", hint=hint)
    subject = subject.strip()
    if (colon and not subject) or len(subject) > 1024 or (name == FILE_CHANGED and not subject):
        hint = f"write for example `{name}:NAME`, or `{name}:*` for any"
        raise ScheduleError(f"{shown(plain)} does not say of what", hint=hint)
    near = nearest(name, PUBLISHED, 0.85)
    if colon and near and near != name:
        raise ScheduleError(f"{shown(name)} is no event that happens here", hint=f"did you mean `{near}:{subject}`?")
    return EventPattern(name, subject if colon else None)


# -- the whole -------------------------------------------------------------------------------------------------------

_Table: TypeAlias = "Mapping[str, tuple[str, Callable[[Any], Any]]]"
"""By key: the field that it becomes, and what reads it."""
_TABLE: _Table = {
    "description": ("description", _text),
    "timezone": ("timezone", _zone),
    "enabled": ("enabled", _flag),
    "run_on_enable": ("run_on_enable", _flag),
    "agent": ("agent", _text),
    "command": ("command", _argv),
    "model": ("model", _not_auto),
    "provider": ("provider", _not_auto),
    "preset": ("presets", _presets),
    "effort": ("effort", _effort),
    "timeout": ("timeout_seconds", seconds_of),
    "history": ("history", _flag),
    "allow_empty": ("allow_empty", _flag),
    "redact": ("redact", _redact),
    "title": ("title", _text),
    "name": ("name", _text),
    "schedule": ("schedule_text", _text),
}
_MAPS: Mapping[str, tuple[Callable[..., Any], _Table]] = {
    "retries": (RetryRules, {
        "max": ("max_retries", _whole(0, 20, zero=("no", "off", "false", "none", "never"))),
        "on_timeout": ("on_timeout", _flag),
        "delay": ("delay_seconds", seconds_of),
    }),
    "budget": (BudgetRules, {"daily_tokens": ("daily_tokens", count_of), "daily_cost": ("daily_cost", _dollars)}),
    "limits": (RunLimits, {
        "turns": ("turns", _whole(1, 100_000)),
        "tokens": ("tokens", count_of),
        "cost": ("cost", _dollars),
        "memory": ("memory_bytes", size_of),
    }),
}  # fmt: skip
USED = (*_TABLE, *_MAPS, "schedule_config", "trigger")  # keys that mean something here
KNOWN = frozenset((*USED, *_MISLEADING, *_SILENT))  # those, and the ones of other programs


class _Reading:
    """Reads one header. Nothing is raised, so that a person learns of all mistakes at once."""

    def __init__(self, header: Document) -> None:
        self._header = header
        self._value: dict[str, Any] = header.value
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def everything(self, own_name: str, default_agent: str) -> dict[str, Any]:
        """Return all fields that the front matter says something about."""
        fields = self._table(self._value, _TABLE, ())
        for key, (kind, table) in _MAPS.items():
            if (value := self._value.get(key)) is not None:
                fields[key] = kind(**self._map(key, value, table))
        name = fields.pop("name", None)
        fields.setdefault("title", name if name != own_name else None)
        fields["schedule"], fields["schedule_text"] = self._schedule(fields)
        self._agent(fields, default_agent)
        fields["events"] = tuple(dict.fromkeys(self._events(own_name)))
        memory = fields["limits"].memory_bytes if "limits" in fields else None
        if memory is not None and memory < 1024**2:
            said = f"limits.memory: {memory} bytes are too few for any program; write a size such as 512MB"
            self.warnings.append(said)
        fields["unknown"] = tuple(key for key in self._value if key not in USED)
        for key in fields["unknown"]:
            self.warnings += self._doubts(key, self._value[key])
        return fields

    def _table(self, value: Mapping[str, Any], table: _Table, path: tuple[str, ...]) -> dict[str, Any]:
        fields = {}
        for key, (field, read) in table.items():
            if value.get(key) is None or (value[key] == "" and key != COMMAND):
                continue
            try:
                fields[field] = read(value[key])
            except WrongValueError as error:
                self._complain((*path, key), error.detail, error.hint, error.index)
            except ScheduleError as error:
                self._complain((*path, key), error.detail, error.hint or FORMS)
        return fields

    def _map(self, key: str, value: Any, table: _Table) -> dict[str, Any]:
        """Read a map of our own, in which an unknown key is a mistake; `retries: 3` is `retries: {max: 3}`."""
        if key == "retries" and isinstance(value, str):
            value = {"max": value}
        if not isinstance(value, dict):
            self._complain((key,), "must be a map", f"write keys of {', '.join(table)} under {key}:")
            return {}
        for each in value:
            if each not in table:
                said = f"is not known{did_you_mean(each, table)}"
                self._complain((key, each), said, f"keys are {', '.join(table)}", at_key=True)
        return self._table(value, table, (key,))

    def _complain(
        self, path: tuple[str, ...], detail: str, hint: str, index: int | str | None = None, *, at_key: bool = False
    ) -> None:
        place: tuple[str | int, ...] = path if index is None else (*path, index)
        message = f"{'.'.join(path)}: {detail.removeprefix(f'{path[0]}: ')}"
        self.problems.append(self._header.problem(place, message, hint=hint, key=at_key))

    def _schedule(self, fields: Mapping[str, Any]) -> tuple[Schedule, str]:
        text, config = fields.get("schedule_text") or "manual", self._value.get("schedule_config")
        path: tuple[str, ...] = ("schedule",)
        if config is not None and not isinstance(config, dict):
            hint = "write frequency:, interval: and at_hour: under it, or write schedule: instead"
            self._complain(("schedule_config",), "must be a map, not text", hint)
        elif config:
            text = f"{{{', '.join(f'{key}: {_flat(value)}' for key, value in config.items())}}}"
            path = ("schedule_config",)
        try:
            parsed = parse_schedule(text, config if path[0] != "schedule" else None, timezone=fields.get("timezone"))
        except ScheduleError as error:
            # The detail names the key that is wrong; its place is of more use than that of the whole map.
            wrong = next((key for key in config or () if re.search(rf"\b{re.escape(key)}\b", error.detail)), None)
            detail = error.detail.removeprefix("schedule_config: ")
            self._complain(path, detail, error.hint or FORMS, wrong)
            return Manual(), text
        self.warnings += parsed.warnings
        return parsed.schedule, text

    def _agent(self, fields: dict[str, Any], default: str) -> None:
        named, has_command = fields.get("agent"), self._value.get("command") is not None
        agent = fields["agent"] = named or default
        if agent == COMMAND and not has_command:
            self._complain(("agent",), "command needs a command to run", "add command: ./agent.sh")
        elif has_command and agent != COMMAND:
            if named is None:
                said = f"is run by agent: command only, and the agent is {agent}"
                self._complain(("command",), said, "add agent: command")
            else:
                self.warnings.append(f"command has no effect with agent: {agent}")

    def _events(self, own_name: str) -> Iterator[EventPattern]:
        value, hint = self._value.get("trigger"), "write trigger: {events: [pipe_completed:other]}"
        path: tuple[str | int, ...] = ("trigger",)
        if isinstance(value, dict):
            for key in value:
                if key in {"custom", "sources"}:
                    self.warnings.append(f"trigger.{key} has no effect here; events start this pipe")
                elif key != "events":
                    self._complain(("trigger",), f"{key!r} is not known", hint, key)
            value, path = value.get("events"), ("trigger", "events")
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            word = each
            if isinstance(each, dict) and len(each) == 1 and isinstance(next(iter(each.values())), str):
                word = ":".join(*each.items()).strip()
            where = (*path, index) if isinstance(value, list) else path
            if word is None or word == "":
                continue
            if not isinstance(word, str):
                what = "a list" if isinstance(word, list) else "a map"
                self.problems.append(self._header.problem(where, f"trigger: an event is a word, not {what}", hint=hint))
            elif re.fullmatch(r"[A-Za-z_]+\(.*\)", word, re.DOTALL):
                self.warnings.append(f"trigger: {shown(word)} never happens here")
            else:
                try:
                    pattern = parse_pattern(word)
                except ScheduleError as error:
                    said = f"trigger: {error.detail}"
                    self.problems.append(self._header.problem(where, said, hint=error.hint or hint))
                    continue
                near = nearest(pattern.event, PUBLISHED, 0.8)
                if pattern.event in PIPE_EVENTS and pattern.subject == own_name:
                    self.warnings.append(f"trigger: {pattern.text!r} is this pipe itself, which never starts itself")
                elif near is not None and pattern.event not in PUBLISHED:
                    said = f"trigger: nobody publishes {pattern.event!r} by itself; did you mean {near!r}?"
                    self.warnings.append(said)
                yield pattern

    def _doubts(self, key: str, value: Any) -> Iterator[str]:
        """Say what is doubtful about a key that is not in USED."""
        word = value.strip().lower() if isinstance(value, str) else value
        if key in _MISLEADING:
            if word not in _HARMLESS or (key == "permissions" and word == "none"):
                yield f"{key} {_MISLEADING[key]}"
        elif key not in _SILENT and (near := nearest(key, USED, 0.8)) is not None:
            line, _ = self._header.place((key,))
            yield f"line {line}: {shown(key)} has no effect; did you mean {near!r}?"


def _flat(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
