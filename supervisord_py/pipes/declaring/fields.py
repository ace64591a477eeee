"""Front matter to definition: every key by its type, every mistake with line and cure. Pure.

Lenient where real files vary (lists or words, yes or true, keys of other programs), strict where a mistake would run
the wrong thing or nothing at all: in the maps that are ours an unknown key is a mistake.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.config.documents import nearest
from supervisord_py.pipes.declaring.field_reader import Fields, Findings, count_of, money_of, size_of, whole_of
from supervisord_py.pipes.declaring.front_matter import Items, Node, Scalar, Table, kind_of, simple
from supervisord_py.pipes.events import PUBLISHED, parse_pattern
from supervisord_py.pipes.grammar import parse_schedule
from supervisord_py.pipes.models import BrokenPipe, BudgetRules, PipeDefinition, RetryRules, RunLimits
from supervisord_py.pipes.schedule import Manual, ScheduleError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from supervisord_py.pipes.declaring.front_matter import Entry, FrontMatter
    from supervisord_py.pipes.grammar import ParsedSchedule
    from supervisord_py.pipes.models import ConfigProblem, Declared, EventPattern, Fingerprint
    from supervisord_py.pipes.schedule import Schedule

USED = (
    "name", "title", "description", "schedule", "schedule_config", "timezone", "enabled", "run_on_enable", "agent",
    "command", "model", "provider", "preset", "effort", "timeout", "history", "allow_empty", "trigger", "retries",
    "budget", "limits", "redact",
)  # fmt: skip
"""Keys that mean something here."""

_RIGHTS = "is not enforced here: the agent may do what you may do"
_MISLEADING = {
    "permissions": _RIGHTS,
    "allow-apps": _RIGHTS,
    "deny-apps": _RIGHTS,
    "time-range": _RIGHTS,
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
_HARMLESS = frozenset({"false", "no", "off", "admin", "none"})
"""Values of misleading keys that ask for nothing which is not done. (`permissions: none` is checked apart.)"""
_CLOSE = 0.8


def warnings_of(entry: Entry) -> Iterator[str]:
    """Say what is doubtful about a key that is not in USED."""
    sentence = _MISLEADING.get(entry.key)
    if sentence is not None:
        if _asks_for_something(entry):
            yield f"{entry.key} {sentence}"
        return
    if entry.key in _SILENT:
        return
    near = nearest(entry.key, USED, _CLOSE)
    if near is not None:
        yield f"line {entry.place.line}: {shown(entry.key)} has no effect; did you mean {near!r}?"


def _asks_for_something(entry: Entry) -> bool:
    value: Node = entry.value
    if isinstance(value, Scalar):
        word = value.text.strip().lower()
        restricts = entry.key == "permissions" and word == "none"
        return restricts or not (value.is_null or word in _HARMLESS)
    return bool(value.items if isinstance(value, Items) else value.entries)


MOST_RETRIES = 20
MOST_TURNS = 100_000
LEAST_MEMORY = 1024**2
"""Bytes; with less no program comes to its first line, and a size without its unit was meant."""

_NEVER = frozenset({"no", "off", "false", "none", "never"})


def read_retries(fields: Fields) -> RetryRules:
    """Read `retries: 3` or `retries: {max, on_timeout, delay}`."""
    node = fields.node("retries")
    if isinstance(node, Scalar):
        return RetryRules(max_retries=fields.read("retries", None, _retries_of))
    inner = fields.table("retries", ("max", "on_timeout", "delay"))
    if inner is None:
        return RetryRules()
    return RetryRules(inner.read("max", None, _retries_of), inner.flag("on_timeout"), inner.seconds("delay"))


def _retries_of(text: str) -> int:
    return 0 if text.strip().lower() in _NEVER else whole_of(text, 0, MOST_RETRIES)


def read_budget(fields: Fields) -> BudgetRules:
    """Read `budget: {daily_tokens, daily_cost}`."""
    inner = fields.table("budget", ("daily_tokens", "daily_cost"))
    if inner is None:
        return BudgetRules()
    return BudgetRules(inner.read("daily_tokens", None, count_of), inner.read("daily_cost", None, money_of))


def read_limits(fields: Fields) -> RunLimits:
    """Read `limits: {turns, tokens, cost, memory}`."""
    inner = fields.table("limits", ("turns", "tokens", "cost", "memory"))
    if inner is None:
        return RunLimits()
    memory = inner.read("memory", None, size_of)
    if memory is not None and memory < LEAST_MEMORY:
        fields.warn(f"limits.memory: {memory} bytes are too few for any program; write a size such as 512MB")
    return RunLimits(
        inner.whole("turns", 1, MOST_TURNS),
        inner.read("tokens", None, count_of),
        inner.read("cost", None, money_of),
        memory,
    )


def read_redact(fields: Fields) -> tuple[str, ...]:
    """Read regular expressions; each must compile, and none may match nothing at all."""
    found = []
    for text, node in fields.texts("redact"):
        try:
            matches_nothing = re.compile(text).match("") is not None
        except (re.error, OverflowError, RecursionError) as error:
            hint = "mend the expression, or escape its special characters with a backslash"
            fields.complain("redact", f"{shown(text)} is no regular expression: {str(error)[:100]}", hint, node)
            continue
        if matches_nothing:
            fields.complain("redact", f"{shown(text)} matches the empty text", "write what must be there", node)
            continue
        found.append(text)
    return tuple(found)


_EVENTS = "events"
_FOREIGN = ("custom", "sources")
_CALL = re.compile(r"[A-Za-z_]+\(.*\)", re.DOTALL)
"""Such an event is another program's; nothing here makes it happen."""
_HINT = "write trigger: {events: [pipe_completed:other]}"


def read_events(fields: Fields, own_name: str) -> tuple[EventPattern, ...]:
    """Read the patterns in the order of the file, each once."""
    found: dict[EventPattern, None] = {}
    for text, node in _words(fields):
        if _CALL.fullmatch(text):
            fields.warn(f"line {node.place.line}: trigger: {shown(text)} never happens here")
            continue
        pattern = _pattern(fields, text, node)
        if pattern is not None:
            found[pattern] = None
            _doubt(fields, pattern, own_name)
    return tuple(found)


def _words(fields: Fields) -> list[tuple[str, Node]]:
    node = fields.node("trigger")
    if not isinstance(node, Table):
        return _listed(fields, node)
    listed: list[tuple[str, Node]] = []
    for each in node.entries:
        if each.key == _EVENTS:
            listed = _listed(fields, each.value)
        elif each.key in _FOREIGN:
            fields.warn(f"line {each.place.line}: trigger.{each.key} has no effect here; events start this pipe")
        else:
            fields.complain("trigger", f"{each.key!r} is not known", _HINT, each.value)
    return listed


def _listed(fields: Fields, node: Node | None) -> list[tuple[str, Node]]:
    if node is None:
        return []
    found: list[tuple[str, Node]] = []
    for each in node.items if isinstance(node, Items) else (node,):
        word = _word(each)
        if word is None:
            fields.complain("trigger", f"an event is a word, not {kind_of(each)}", _HINT, each)
        elif word:
            found.append((word, each))
    return found


def _word(node: Node) -> str | None:
    match node:
        case Scalar():
            return "" if node.is_null else node.text.strip()
        case Table(entries=(pair,)) if isinstance(pair.value, Scalar):
            return f"{pair.key}:{pair.value.text.strip()}"
        case _:
            return None


def _pattern(fields: Fields, text: str, node: Node) -> EventPattern | None:
    try:
        return parse_pattern(text)
    except ScheduleError as error:
        fields.complain("trigger", error.detail, error.hint or _HINT, node)
        return None


def _doubt(fields: Fields, pattern: EventPattern, own_name: str) -> None:
    if pattern.event not in PUBLISHED:
        near = nearest(pattern.event, PUBLISHED, _CLOSE)
        if near is not None:
            fields.warn(f"trigger: nobody publishes {pattern.event!r} by itself; did you mean {near!r}?")
    elif pattern.event.startswith("pipe_") and pattern.subject == own_name:
        fields.warn(f"trigger: {pattern.text!r} is this pipe itself, which never starts itself")


COMMAND_AGENT = "command"
DEFAULT_AGENT = "pi"
DEFAULT_PRESET = "auto"
ALL_OTHERS = "*"

_EFFORTS = ("low", "medium", "high")
_OLD_DEFAULT = "pi-agent"
_MANUAL = "manual"
_LOCAL = "local"
_FORMS = "pipe.md(5) lists the forms"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a pipe is called and where it lies; `agent` is the one of pipes that name none."""

    name: str
    folder: Path
    file: Path
    fingerprint: Fingerprint
    agent: str = DEFAULT_AGENT


def define(front: FrontMatter, identity: Identity) -> Declared:
    """Read a definition out of front matter; a file with any mistake is a broken pipe."""
    fields = Fields(front.header, Findings(str(identity.file)))
    definition = _definition(front, identity, fields)
    problems = sorted(fields.findings.problems, key=_by_place)
    if problems:
        return BrokenPipe(identity.name, identity.folder, problems[0], identity.fingerprint, tuple(problems[1:]))
    return definition


def _by_place(problem: ConfigProblem) -> tuple[int, int]:
    return (problem.line or 0, problem.column or 0)


def _definition(front: FrontMatter, identity: Identity, fields: Fields) -> PipeDefinition:
    zone = _timezone(fields)
    schedule, schedule_text = _schedule(fields, zone)
    agent, command = _agent(fields, identity.agent)
    return PipeDefinition(
        name=identity.name,
        folder=identity.folder,
        file=identity.file,
        fingerprint=identity.fingerprint,
        schedule=schedule,
        schedule_text=schedule_text,
        body=front.body,
        title=_title(fields, identity.name),
        description=fields.text("description"),
        enabled=fields.flag("enabled", default=True),
        agent=agent,
        command=command,
        model=_not_auto(fields.text("model")),
        provider=_not_auto(fields.text("provider")),
        presets=_presets(fields),
        effort=fields.one_of("effort", _EFFORTS),
        timeout_seconds=fields.seconds("timeout"),
        run_on_enable=fields.flag("run_on_enable", default=True),
        history=fields.flag("history"),
        allow_empty=fields.flag("allow_empty"),
        events=read_events(fields, identity.name),
        retries=read_retries(fields),
        budget=read_budget(fields),
        limits=read_limits(fields),
        redact=read_redact(fields),
        timezone=zone,
        unknown=_unknown(front, fields),
        lines={each.key: each.value.place.line for each in front.header.entries},
        # The last one: arguments are evaluated in their order, and each of them may have warned.
        warnings=tuple(fields.findings.warnings),
    )


def _title(fields: Fields, folder_name: str) -> str | None:
    title, name = fields.text("title"), fields.text("name")
    return title or (name if name != folder_name else None)


def _not_auto(text: str | None) -> str | None:
    return None if text is not None and text.lower() == DEFAULT_PRESET else text


def _timezone(fields: Fields) -> str | None:
    name = fields.text("timezone")
    if name is None or name.lower() == _LOCAL:
        return None
    try:
        parse_schedule(_MANUAL, timezone=name)
    except ScheduleError as error:
        fields.complain("timezone", error.detail, error.hint or "leave it out for the zone of this machine")
        return None
    return name


def _schedule(fields: Fields, zone: str | None) -> tuple[Schedule, str]:
    text = fields.text("schedule") or _MANUAL
    node = fields.node("schedule_config")
    if isinstance(node, Table) and node.entries:
        return _configured(fields, node, zone)
    if node is not None and not isinstance(node, Table):
        hint = "write frequency:, interval: and at_hour: under it, or write schedule: instead"
        fields.complain("schedule_config", f"must be a map, not {kind_of(node)}", hint)
    try:
        parsed = parse_schedule(text, timezone=zone)
    except ScheduleError as error:
        fields.complain("schedule", error.detail, error.hint or _FORMS)
        return Manual(), text
    return _heeded(fields, parsed), text


def _configured(fields: Fields, table: Table, zone: str | None) -> tuple[Schedule, str]:
    config = {each.key: simple(each.value) for each in table.entries}
    text = ", ".join(f"{key}: {value}" for key, value in config.items())
    try:
        parsed = parse_schedule(_MANUAL, config, timezone=zone)
    except ScheduleError as error:
        # The detail names the key that is wrong; its place is of more use than that of the whole map.
        wrong = next((each.value for each in table.entries if each.key in error.detail), None)
        detail = error.detail.removeprefix("schedule_config: ")
        fields.complain("schedule_config", detail, error.hint or _FORMS, wrong)
        return Manual(), text
    return _heeded(fields, parsed), f"{{{text}}}"


def _heeded(fields: Fields, parsed: ParsedSchedule) -> Schedule:
    for sentence in parsed.warnings:
        fields.warn(sentence)
    return parsed.schedule


def _agent(fields: Fields, default: str) -> tuple[str, tuple[str, ...]]:
    named, command = fields.text("agent"), fields.argv("command")
    agent = named or default
    if agent == COMMAND_AGENT:
        if fields.node("command") is None:
            fields.complain("agent", "command needs a command to run", "add command: ./agent.sh")
    elif fields.node("command") is not None:
        if named is None:
            fields.complain("command", f"is run by agent: command only, and the agent is {agent}", "add agent: command")
        else:
            fields.warn(f"command has no effect with agent: {agent}")
    return agent, command


def _presets(fields: Fields) -> tuple[str, ...]:
    words = fields.texts("preset")
    for word, node in words[:-1]:
        if word == ALL_OTHERS:
            fields.complain("preset", '"*" means all others and comes last', 'write [first, second, "*"]', node)
    return tuple(dict.fromkeys(DEFAULT_PRESET if word == _OLD_DEFAULT else word for word, _node in words))


def _unknown(front: FrontMatter, fields: Fields) -> Mapping[str, str]:
    kept = {}
    for entry in front.header.entries:
        if entry.key not in USED:
            kept[entry.key] = front.text[entry.value.span.start : entry.value.span.end]
            for sentence in warnings_of(entry):
                fields.warn(sentence)
    return kept
