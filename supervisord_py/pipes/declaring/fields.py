"""Front matter to definition: every key by its type, every mistake with line and cure. Pure.

Lenient where real files vary (lists or words, yes or true, keys of other programs), strict where a mistake would run
the wrong thing or nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.field_reader import Fields, Findings
from supervisord_py.pipes.declaring.kept_keys import USED, warnings_of
from supervisord_py.pipes.declaring.nodes import Table, kind_of, simple
from supervisord_py.pipes.declaring.rule_fields import (
    read_budget,
    read_limits,
    read_redact,
    read_retries,
)
from supervisord_py.pipes.declaring.trigger_fields import read_events
from supervisord_py.pipes.definition import BrokenPipe, PipeDefinition
from supervisord_py.pipes.scheduling.grammar import ScheduleError, parse_schedule
from supervisord_py.pipes.scheduling.schedule import Manual

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.declaring.front_matter import FrontMatter
    from supervisord_py.pipes.definition import ConfigProblem, Declared, Fingerprint
    from supervisord_py.pipes.scheduling.grammar import ParsedSchedule
    from supervisord_py.pipes.scheduling.schedule import Schedule

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
