"""Front matter to definition: each key read by its type, each mistake told with its place and what
to write. Pure.

Lenient where real files vary (lists or words, yes or true, keys of other programs), strict where a
mistake would run the wrong thing or nothing at all: in the maps that are ours an unknown key is a
mistake.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import structs

from supervisord_py.config import documents
from supervisord_py.config.documents import (
    Document,
    DocumentError,
    Pointer,
    Problem,
    did_you_mean,
    nearest,
)
from supervisord_py.errors import ConfigError
from supervisord_py.ledger.pipes import Plan
from supervisord_py.pipes import foreign_keys, models, shell_syntax
from supervisord_py.pipes.foreign_keys import ForeignKey, Reading, Weight
from supervisord_py.pipes.front_matter import FrontMatter, inline, parse
from supervisord_py.pipes.models import Remark
from supervisord_py.pipes.schedule import (
    Calendar,
    Every,
    Schedule,
    calendar,
    checked_zone,
    parse_schedule,
    shown,
    span_of,
)

DEFAULT_PRESET = "auto"
PIPE_FILE = "pipe.md"
MAX_NAME = 100
_ROUTES = frozenset({"queue", "new"})  # `/api/pipes/queue` and its like are routes
FILE_CHANGED = "file_changed"
EVENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PUBLISHED = ("pipe_completed", "pipe_failed", "tool_failed", FILE_CHANGED)
_CONFIG_HINT = (
    "write for example `schedule_config: {frequency: weeks, days_of_week: [1, 5], at_hour: 9}`"
)


def name_trouble(name: str) -> str | None:
    """Say why a folder's name cannot be a pipe's, as the rest of a sentence; None when it can."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > MAX_NAME:
        return (
            f"is not 1 to {MAX_NAME} letters, digits, dots, hyphens and underscores, a letter or "
            "digit first"
        )
    return "is reserved" if name in _ROUTES else None


def declare(
    raw: bytes, *, folder: Path, default_agent: str = models.DEFAULT_AGENT
) -> models.Declared:
    """Read the bytes of a `pipe.md` that lies, or is to lie, in `folder`, whose name is the
    pipe's; touches no file.
    """
    name, file, digest = folder.name, folder / PIPE_FILE, hashlib.sha256(raw).hexdigest()
    try:
        if trouble := name_trouble(name):
            said = f"the folder's name {shown(name)} {trouble}"
            raise DocumentError(Problem(message=said, file=str(folder), hint="rename the folder"))
        front = parse(documents.decode(raw.removeprefix(b"\xef\xbb\xbf"), str(file)), str(file))
        fields = _fields_of(front.header, name, default_agent)
    except DocumentError as error:
        return models.BrokenPipe(name, folder, error.problem, digest)
    fields["remarks"] += tuple(_unfilled(front))
    lines = _lines_of(front.header)
    return models.PipeDefinition(
        name=name, folder=folder, file=file, digest=digest, body=front.body, lines=lines, **fields
    )


def _lines_of(header: Document) -> dict[str, int]:
    """Return the line of each key, counted from 1."""
    root = header.root
    return (
        {key.value: key.start_mark.line + header.first_line for key, _value in root.value}
        if root
        else {}
    )


def parse_pattern(text: str) -> str:
    """Read an event of the front matter: `pipe_completed:NAME`, `file_changed:inbox/**/*.md`,
    `my_event`.

    Raises ConfigError: the name is no name, or a known event lacks its subject.
    """
    name, colon, subject = (part.strip() for part in text.partition(":"))
    if not EVENT_NAME.fullmatch(name):
        raise ConfigError(
            f"{shown(text.strip())} is no event", hint="write for example `pipe_completed:NAME`"
        )
    if (colon and not subject) or len(subject) > 1024 or (name == FILE_CHANGED and not subject):
        hint = f"write for example `{name}:NAME`, or `{name}:*` for any"
        raise ConfigError(f"{shown(text.strip())} does not say of what", hint=hint)
    near = nearest(name, PUBLISHED, 0.85)
    if near and near != name:
        raise ConfigError(
            f"{shown(name)} is no event that happens here", hint=f"did you mean `{near}`?"
        )
    return f"{name}{colon}{subject}"


# -- one value -------------------------------------------------------------------------------------

_NUMBER = re.compile(r"\$?([0-9]{1,15}(?:\.[0-9]{1,9})?) *([a-z]*)")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_SIZES = {"": 1, "b": 1, **{f"{letter}{rest}": 1024**at
    for at, letter in enumerate("kmg", 1) for rest in ("", "b", "ib")}}  # fmt: skip


_SOME_TEXT = "write some text"
_EXAMPLES = {
    "timeout": "timeout: 10m",
    "preset": "preset: fast, or preset: [fast, other]",
    "command": "command: ./program --flag, or a list of words",
    "agent": "agent: claude",
    "model": "model: NAME, as the provider calls it",
    "timezone": "timezone: Europe/Berlin",
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(
            f"must be text, not a {'list' if isinstance(value, list) else 'map'}", hint=_SOME_TEXT
        )
    return value.strip()


def _texts(value: Any) -> list[str]:
    found = [
        _text(each) for each in (value if isinstance(value, list) else [value]) if each is not None
    ]
    return list(filter(None, found))


def _choice(words: Mapping[str, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if (word := _text(value).lower()) not in words:
            raise ConfigError(f"{shown(word)} is not known", hint=f"write {', '.join(words)}")
        return words[word]

    return read


_flag = _choice({"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False})
_effort = _choice({word: word for word in ("low", "medium", "high")})


def _number(
    least: float, most: float, hint: str, units: Mapping[str, int] = {"": 1}, *, whole: bool = True
) -> Callable[[Any], Any]:
    def read(value: Any) -> float:
        found = _NUMBER.fullmatch(_text(value).lower().replace("_", ""))
        number = float(found[1]) * units.get(found[2], math.nan) if found else math.nan
        if not least <= number <= most or (whole and number % 1):
            said = (
                f"{shown(_text(value))} is no {'whole ' if whole else ''}number from {least:g} to "
                f"{most:g}"
            )
            raise ConfigError(said, hint=f"write for example {hint}")
        return int(number) if whole else number

    return read


_count = _number(1, 2**53, "200000, 200k or 1.5M", _COUNTS)
_dollars = _number(1e-9, 1e9, "0.50, in US dollars", whole=False)


def _seconds(value: Any) -> float:
    text = _text(value).lower()
    seconds = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else span_of(text)
    if seconds is None or not 0 < seconds <= 366 * 86400.0:
        said = f"{shown(text)} is no time above 0 and up to 366 days"
        raise ConfigError(said, hint="write seconds (600), or 90s, 10m, 1h30m")
    return seconds


def _argv(value: Any) -> tuple[str, ...]:
    try:
        is_list = isinstance(value, list) and all(isinstance(each, str | None) for each in value)
        words = [each or "" for each in value] if is_list else shell_syntax.split(_text(value))
    except ValueError as error:
        hint = "close the quote, or write a list: [prog, arg]"
        raise ConfigError(f"cannot be split into words: {error}", hint=hint) from None
    if not words or not words[0]:
        raise ConfigError("names no program", hint="write command: ./program --flag")
    return tuple(words)


def _presets(value: Any) -> tuple[str, ...]:
    words = _texts(value)
    if "*" in words[:-1]:
        raise ConfigError('"*" means all others and comes last', hint='write [first, second, "*"]')
    return tuple(dict.fromkeys(DEFAULT_PRESET if word == "pi-agent" else word for word in words))


def _redact(value: Any) -> tuple[str, ...]:
    for text in (found := _texts(value)):
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            said = f"{shown(text)} is no regular expression: {str(error)[:100]}"
            raise ConfigError(said, hint="escape special characters with a backslash") from None
    return tuple(found)


def _not_auto(value: Any) -> str | None:
    """Read the name of a model or provider; None where the agent is to choose (`inherit` is
    Claude Code's word).
    """
    word = _text(value)
    return None if word.lower() in {DEFAULT_PRESET, "inherit"} else word


def _schedule_text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    hint = "write for example schedule: every 30m, weekday at 9:30, or a cron line in quotes"
    for text in foreign_keys.schedules(value):
        with suppress(ConfigError):
            parse_schedule(text)
            hint = f"write schedule: {inline(text)}"
            break
    raise ConfigError(
        f"must be text, not a {'list' if isinstance(value, list) else 'map'}", hint=hint
    )


# -- the whole -------------------------------------------------------------------------------------

_Table: TypeAlias = "Mapping[str, tuple[str, Callable[[Any], Any] | _Table]]"
"""By key: the field that it becomes, and what reads it; a map of our own has a table."""
_TABLE: _Table = {
    "description": ("description", _text),
    "timezone": ("timezone", lambda value: checked_zone(_text(value))),
    "enabled": ("enabled", _flag),
    "run_on_enable": ("run_on_enable", _flag),
    "agent": ("agent", _text),
    "command": ("command", _argv),
    "model": ("model", _not_auto),
    "provider": ("provider", _not_auto),
    "preset": ("presets", _presets),
    "effort": ("effort", _effort),
    "timeout": ("timeout_seconds", _seconds),
    "history": ("history", _flag),
    "allow_empty": ("allow_empty", _flag),
    "redact": ("redact", _redact),
    "title": ("title", _text),
    "name": ("name", _text),
    "schedule": ("schedule_text", _schedule_text),
    "retries": (
        "retries",
        {
            "max": ("max_retries", _number(0, 20, "3")),
            "on_timeout": ("on_timeout", _flag),
            "delay": ("delay_seconds", _seconds),
        },
    ),
    "budget": (
        "budget",
        {"daily_tokens": ("daily_tokens", _count), "daily_cost": ("daily_cost", _dollars)},
    ),
    "limits": (
        "limits",
        {
            "turns": ("max_turns", _number(1, 100_000, "50")),
            "tokens": ("max_tokens", _count),
            "cost": ("max_cost", _dollars),
            "memory": ("memory_bytes", _number(1, 2**53, "512MB or 2GB", _SIZES)),
            "processes": ("processes", _number(1, 4 * 1024 * 1024, "100")),
            "cpu_percent": ("cpu_percent", _number(1, 100 * 1024, "50")),
        },
    ),
}
USED = (*_TABLE, "schedule_config", "trigger")  # keys that mean something here


def _fields_of(header: Document, own_name: str, default_agent: str) -> dict[str, Any]:
    """Return all fields that the front matter says something about; DocumentError: what is wrong
    with it, and where.
    """
    value: dict[str, Any] = header.value
    fields = _read(header, value, _TABLE)
    agent = fields.setdefault("agent", models.COMMAND if "command" in fields else default_agent)
    lines = _lines_of(header)
    remarks = []
    schedule, text, oddity = _schedule(header, fields)
    if oddity is not None:
        remarks.append(Remark("schedule", oddity, None, lines.get("schedule")))
    if agent == models.COMMAND and "command" not in fields:
        raise _mistake(
            header, ("agent",), "command needs a command to run", "add command: ./agent.sh"
        )
    if agent == models.COMMAND and isinstance(value["command"], str):
        remarks.extend(_without_a_shell(header, value["command"]))
    elif agent == models.COMMAND:
        _refuse_shell_words(header, fields["command"])
    events = tuple(dict.fromkeys(_events(header, lines, remarks)))
    remarks += _idle_keys(value, fields, schedule, lines)
    remarks += _foreign_keys(value, fields, lines)
    name = fields.pop("name", None)
    fields.setdefault("title", name if name != own_name else None)
    own = {
        key: fields.pop(key)
        for key in ("agent", "command", "history", "allow_empty")
        if key in fields
    }
    fields["plan"] = Plan(**own, **fields.pop("limits", {}))
    fields["retries"] = models.RetryRules(**fields.get("retries", {}))
    fields |= fields.pop("budget", {})
    return {
        **fields,
        "schedule": schedule,
        "schedule_text": text,
        "events": events,
        "remarks": tuple(remarks),
    }


# -- what has no effect ----------------------------------------------------------------------------


def _idle_keys(
    value: Mapping[str, Any],
    fields: Mapping[str, Any],
    schedule: Schedule,
    lines: Mapping[str, int],
) -> Iterator[Remark]:
    """Yield the keys of ours that have no effect beside another one."""
    if "command" in fields and fields["agent"] != models.COMMAND:
        yield Remark(
            "command",
            f"command has no effect with agent: {fields['agent']}",
            None,
            lines.get("command"),
        )
    if fields.get("run_on_enable") and not isinstance(schedule, Every):
        said = "run_on_enable has no effect: the schedule is no interval"
        yield Remark("run_on_enable", said, None, lines.get("run_on_enable"), is_minor=True)
    if re.fullmatch(r"[A-Z][A-Za-z]* [A-Za-z0-9. ]+", fields.get("model") or ""):
        said = f"model: {fields['model']} reads like a title; it is passed on as it stands"
        yield Remark(
            "model",
            said,
            "write it as the provider calls it: model: claude-sonnet-4-5",
            lines.get("model"),
        )
    idle: dict[str, str] = {}
    retries = fields.get("retries", {})
    if (
        fields["agent"] == models.COMMAND
        and retries.get("max_retries")
        and not retries.get("on_timeout")
    ):
        said = (
            "retries has no effect with agent: command: a command that has failed is not run again"
        )
        hint = "write retries: {max: 3, on_timeout: yes} for a timeout, or repeat it in the command"
        yield Remark("retries", said, hint, lines.get("retries"))
    if fields["agent"] == models.COMMAND:
        idle = dict.fromkeys(("model", "provider", "effort"), "with agent: command")
    elif fields.get("presets"):
        idle = dict.fromkeys(("model", "provider"), "beside preset: a preset has its own")
    if value.get("schedule_config"):
        idle["schedule"] = "beside schedule_config"
    for key, why in idle.items():
        # Other programs write both, and mean what runs here, too.
        if value.get(key):
            yield Remark(key, f"{key} has no effect {why}", None, lines.get(key), is_minor=True)


def _foreign_keys(
    value: Mapping[str, Any], fields: Mapping[str, Any], lines: Mapping[str, int]
) -> Iterator[Remark]:
    """Yield every key that is none of ours, with what to write instead; those that change no run
    together.

    A key of somebody's own (`x-…`) is left out.
    """
    minor = []
    for key, meant in value.items():
        if key in USED or foreign_keys.is_own(key):
            continue
        row = _row_of(key)
        if isinstance(row, str):
            hint = (
                f"{row} says it already; remove {key}" if row in value else f"did you mean {row!r}?"
            )
            yield Remark(key, f"{key} has no effect here", hint, lines.get(key))
            continue
        if row is None:
            hint = "pipe.md(5) lists the keys"
            yield Remark(key, f"{key} has no effect here", hint, lines.get(key))
            continue
        if (
            row.weight is Weight.MINOR
            or foreign_keys.asks_nothing(key, meant)
            or _is_so_anyway(row, meant, fields)
        ):
            minor.append(key)
            continue
        yield Remark(
            key, f"{key} {row.weight.value}", _instead(row, key, meant, value), lines.get(key)
        )
    if minor:
        said = f"kept, without effect here: {', '.join(minor)}"
        yield Remark(
            minor[0] if len(minor) == 1 else "front_matter",
            said,
            None,
            lines.get(minor[0]),
            is_minor=True,
        )


def cure_of(key: str, meant: Any) -> str:
    """Return what to write in the place of a key that is none of ours; `meant` is its value."""
    row = _row_of(key)
    if isinstance(row, str):
        return f"did you mean {row!r}?"
    by_hand = "pipe.md(5) lists the keys; one of your own is written into the file by hand"
    return (_instead(row, key, meant, {}) if row is not None else "") or by_hand


def _row_of(key: str) -> str | ForeignKey | None:
    """Return what is known of a key: its row, the key of ours that it looks like, or nothing."""
    if foreign_keys.is_own(key):
        return None
    # `Schedule` and `time-zone` are keys of ours in another spelling.
    own = next((each for each in USED if foreign_keys.plain(each) == foreign_keys.plain(key)), None)
    if own is not None:
        reading = Reading.SCHEDULE if own == "schedule" else Reading.WHOLE
        return ForeignKey(key, f"write {own}", own, reading)
    return foreign_keys.find(key) or foreign_keys.find_near(key, USED)


def _is_so_anyway(row: ForeignKey, meant: Any, fields: Mapping[str, Any]) -> bool:
    """Say whether a key only says what is so without it: `paused: false` of a pipe that is
    enabled.
    """
    found = next(foreign_keys.suggestions(row, meant), {})
    return row.key == "enabled" and found.get("enabled") is fields.get("enabled", True)


def _instead(row: ForeignKey, key: str, meant: Any, value: Mapping[str, Any]) -> str:
    """Return what to write in the place of a key of another program."""
    own, _, inner = row.key.partition(".")
    held = value.get(own)
    is_map = inner and isinstance(held, dict) and inner not in held
    if held is not None and not is_map:
        return f"{own} says it already; remove {key}"
    for keys in foreign_keys.suggestions(row, meant):
        if "timezone" in value:
            keys.pop("timezone", None)
        if not _reads_well(keys):
            continue
        if is_map:
            return f"add {inner}: {inline(_unquoted(keys[own][inner]))} to {own}"
        return "write " + ", and ".join(
            f"{name}: {inline(_unquoted(what))}" for name, what in keys.items()
        )
    return row.hint


def _unquoted(value: Any) -> Any:
    """Return a value in which numbers, true and false are written without quotes: our reader
    takes both.
    """
    if isinstance(value, dict):
        return {name: _unquoted(each) for name, each in value.items()}
    if value in ("true", "false"):
        return value == "true"
    if isinstance(value, str) and re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]+)?", value):
        return float(value) if "." in value else int(value)
    return value


def _reads_well(keys: Mapping[str, Any]) -> bool:
    """Say whether front matter of these keys alone is read without an error or a remark."""
    try:
        header = "".join(f"{name}: {inline(what)}\n" for name, what in keys.items())
    except ConfigError:
        return False
    declared = declare(f"---\n{header}---\n".encode(), folder=Path("/pipe"))
    return isinstance(declared, models.PipeDefinition) and not declared.remarks


def _unfilled(front: FrontMatter) -> Iterator[Remark]:
    """Yield the first word of the prompt that other programs fill in, and nothing here does."""
    found = foreign_keys.TEMPLATE_WORDS.search(front.text, front.body_start)
    if found is not None:
        hint = (
            "date, zone and time range stand above the prompt; `pxctl pipe run --context` adds "
            "values to one run"
        )
        line = front.text.count("\n", 0, found.start()) + 1
        yield Remark(
            "prompt", f"{found[0]} reaches the agent as it stands", hint, line, is_minor=True
        )


# -- its parts -------------------------------------------------------------------------------------


def _without_a_shell(header: Document, text: str) -> Iterator[Remark]:
    """Yield what is odd about a command that is run without a shell.

    DocumentError: it is written for one.
    """
    cure = f"write command: {shell_syntax.for_a_shell(text)}"
    found = shell_syntax.shell_syntax(text)
    if found is not None:
        hint = f"{cure}; or quote what is meant as an argument"
        raise _mistake(header, ("command",), f"is run without a shell: {found}", hint)
    word = shell_syntax.unexpanded(text)
    if word is not None:
        said = f"command: {word} is passed on as it stands, as no shell is involved"
        hint = (
            cure
            if word.startswith("$")
            else f"{cure}; or quote it where the program reads it itself"
        )
        yield Remark("command", said, hint, header.place(("command",))[0])


def _refuse_shell_words(header: Document, words: Sequence[str]) -> None:
    """Raise DocumentError where a list of words is a command line for a shell."""
    text = shell_syntax.shell_words(list(words))
    if text is None:
        return
    found = shell_syntax.shell_syntax(text) or "it chains commands"
    hint = f"write command: {shell_syntax.for_a_shell(text)}"
    raise _mistake(header, ("command",), f"is run without a shell: {found}", hint)


def _mistake(header: Document, path: Pointer, said: str, hint: str | None) -> DocumentError:
    return DocumentError(header.problem(path, said, hint=hint))


def _read(header: Document, value: Mapping[str, Any], table: _Table, *path: str) -> dict[str, Any]:
    fields = {}
    for key, (field, read) in table.items():
        if value.get(key) is not None and (value[key] != "" or key == models.COMMAND):
            try:
                fields[field] = (
                    read(value[key]) if callable(read) else _map(header, key, value[key], read)
                )
            except ConfigError as error:
                hint = (
                    f"write {_EXAMPLES[key]}"
                    if error.hint == _SOME_TEXT and key in _EXAMPLES
                    else error.hint
                )
                raise _mistake(header, (*path, key), error.detail, hint) from None
    return fields


def _map(header: Document, key: str, value: Any, table: _Table) -> dict[str, Any]:
    """Read a map of our own, in which an unknown key is a mistake; `retries: 3` is `retries:
    {max: 3}`.
    """
    hint = f"keys are {', '.join(table)}"
    if key == "retries" and isinstance(value, str):
        value = {"max": value}
    if not isinstance(value, dict):
        raise ConfigError("must be a map", hint=hint)
    for each in value:
        if each not in table:
            elsewhere = _place_of(key, each, value[each])
            near = "" if elsewhere else did_you_mean(each, table)
            raise _mistake(
                header, (key, each), f"{shown(each)} is not known{near}", elsewhere or hint
            )
    return _read(header, value, table, key)


def _place_of(outer: str, key: str, meant: Any) -> str | None:
    """Return where a key belongs that stands in a map of ours and is none of it; None where that
    is not known.
    """
    row = _row_of(key)
    if not isinstance(row, ForeignKey) or not row.key:
        return None
    # A `cost` in `budget` is one of a day, badly spelled.
    belongs = row.key.partition(".")[0]
    if belongs == outer or (outer, belongs) == ("budget", "limits"):
        return None
    return f"{_instead(row, key, meant, {})}, beside {outer} and not in it"


def _schedule(header: Document, fields: Mapping[str, Any]) -> tuple[Schedule, str, str | None]:
    """Return what `schedule_config`, else `schedule`, means, its text, and a sentence for
    whoever wrote it.
    """
    config, zone, path = (
        header.value.get("schedule_config"),
        fields.get("timezone"),
        "schedule_config",
    )
    if isinstance(config, dict):  # what other programs leave open
        config = {key: value for key, value in config.items() if value not in (None, "", [])}
    try:
        if not config:
            path, text = "schedule", fields.get("schedule_text") or "manual"
            schedule, said = parse_schedule(text, zone)
            return schedule, text, said
        plan, problems = documents.convert(header, Calendar, (path,), value=config, strict=False)
        if plan is None:
            inner = problems[0].pointer.rpartition("/")[2]
            elsewhere = (
                _calendar_cure(inner, config.get(inner)) if isinstance(config, dict) else None
            )
            raise DocumentError(structs.replace(problems[0], hint=elsewhere or _CONFIG_HINT))
        return (
            calendar(plan, zone),
            ", ".join(f"{key}: {value}" for key, value in config.items()),
            None,
        )
    except ConfigError as error:
        raise _mistake(header, (path,), error.detail, error.hint) from None


def _trigger_cure(key: str, meant: Any) -> str | None:
    """Return what to write instead of a key of `trigger` that is none; None where that is not
    known.
    """
    row = _row_of(key)
    if isinstance(row, ForeignKey) and row.key == "schedule" and key != "on":
        return _instead(row, key, meant, {})
    if foreign_keys.plain(key) in {"paths", "path", "files", "glob", "globs", "watch"}:
        return foreign_keys.FOREIGN_EVENTS["file"]
    return foreign_keys.FOREIGN_EVENTS.get(key.lower())


def _calendar_cure(key: str, meant: Any) -> str | None:
    """Return what to write instead of a key of `schedule_config` that is none; None where that
    is not known.
    """
    row = foreign_keys.find(key)
    if row is not None and row.key == "timezone":
        return f"write timezone: {inline(meant)}"
    if row is not None and row.key == "schedule" and key != "frequency":
        return f"{_instead(row, key, meant, {})}, in the place of schedule_config"
    return None


def _events(header: Document, lines: Mapping[str, int], remarks: list[Remark]) -> Iterator[str]:
    line = lines.get("trigger")
    path: Pointer = ("trigger",)
    value, hint = header.value.get("trigger"), "write trigger: {events: [pipe_completed:other]}"
    if isinstance(value, dict):
        for key, meant in value.items():
            if key == "events":
                continue
            if key not in {"custom", "sources"}:
                raise _mistake(
                    header, ("trigger", key), "is not known", _trigger_cure(key, meant) or hint
                )
            if not foreign_keys.asks_nothing(key, meant):
                remarks.append(
                    Remark(
                        "trigger",
                        f"trigger.{key} has no effect here",
                        "events start this pipe",
                        line,
                    )
                )
        value, path = value.get("events"), ("trigger", "events")
    for word in value if isinstance(value, list) else [value]:
        if isinstance(word, str) and re.fullmatch(r"[A-Za-z_]+\(.*\)", word, re.DOTALL):
            said = f"trigger: {shown(word)} never happens here"
            remarks.append(
                Remark("trigger", said, foreign_keys.FOREIGN_EVENTS["workflow_event"], line)
            )
        elif word is not None and word != "":
            try:
                pattern = parse_pattern(_text(word))
            except ConfigError as error:
                raise _mistake(header, path, error.detail, error.hint) from None
            cure = foreign_keys.FOREIGN_EVENTS.get(pattern.partition(":")[0].lower())
            if cure is not None:
                said = f"trigger: nothing here tells of {shown(pattern)} by itself"
                remarks.append(Remark("trigger", said, cure, line))
            yield pattern
