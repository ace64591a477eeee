"""`pxctl pipe …`: pipes and their executions."""

from __future__ import annotations

import json
import os
import re
import time

import click

from pxctl import output
from pxctl.app import READS, declare
from pxctl.batch import one_by_one, tell
from pxctl.client import bare_name, bare_names, is_glob, query, route
from pxctl.completion import execution_names, pipe_names
from pxctl.executions import PREFIX, is_execution_id, money
from pxctl.failure import FAILED, OK, UNKNOWN_UNIT, USAGE, Failure, usage
from pxctl.output import BY_STATE, Cell, Column, clean, print_facts, print_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.batch import Outcome
    from pxctl.client import Client


_COLUMNS = [
    Column("PIPE", minimum=12),
    Column("STATE", rank=1),
    Column("SCHEDULE", rank=4, minimum=10),
    Column("NEXT RUN", rank=2),
    Column("LAST RUN", rank=5),
    Column("LAST STATUS", rank=3),
    Column("QUEUED", rank=8, right=True),
    Column("FAILURES", rank=7, right=True),
    Column("REMARK", rank=6, minimum=12),
]


@declare("list", effect=READS, examples=["pxctl pipe list", "pxctl pipe list --json", "pxctl pipe list -q"])
def list_pipes(invocation: Invocation) -> None:
    """List the pipes with schedule, next and last run; one that cannot run with its error."""
    invocation.action = "list the pipes"
    answer = invocation.client().get("/api/pipes")
    pipes = answer.document.get("pipes", [])
    if invocation.told(answer, (pipe.get("name") for pipe in pipes)):
        return
    if pipes:
        print_table(invocation, _COLUMNS, [_row(pipe, invocation.now()) for pipe in pipes])
    else:
        invocation.notice("no pipes yet; add one: pxctl pipe add example:disk-digest")


def _row(pipe: dict[str, Any], now: float) -> list[Cell]:
    state, last = _state_of(pipe), str(pipe.get("last_status") or "")
    failures = pipe.get("consecutive_failures")
    return [
        Cell(str(pipe.get("name"))),
        Cell(state, BY_STATE.get(state)),
        Cell(str(pipe.get("schedule") or "")),
        Cell("" if pipe.get("next_run") is None else output.ago(pipe["next_run"], now)),
        Cell("" if pipe.get("last_run") is None else output.ago(pipe["last_run"], now)),
        Cell(last, BY_STATE.get(last)),
        Cell(str(pipe["queued"]) if pipe.get("queued") else ""),
        Cell(str(failures) if failures else "", "red"),
        Cell(*_remark(pipe)),
    ]


def _remark(pipe: dict[str, Any]) -> tuple[str, str | None]:
    if pipe.get("config_error"):
        folder = (
            f"{pipe.get('folder')}/"  # the row says which pipe it is; a narrow terminal has no room to say it again
        )
        return f"broken: {str(pipe['config_error']).removeprefix(folder)}", "red"
    if pipe.get("running") is not None:
        return f"execution {pipe['running']}", None
    if pipe.get("slower_than_schedule"):
        return "takes longer than the time between two runs", "yellow"
    if pipe.get("warnings"):
        return str(pipe["warnings"][0]), "yellow"
    return "", None


_PIPE_FACTS = (
    "name", "title", "description", "state", "schedule", "events", "next_run", "running", "queued", "last_run",
    "last_status", "last_success", "consecutive_failures", "agent", "presets", "average_duration_seconds",
    "file",
)  # fmt: skip
_EXECUTION_FACTS = (
    "id", "pipe_name", "status", "position", "error_type", "error_message", "trigger", "trigger_event", "retry_of",
    "retry_count", "queued_at", "not_before", "started_at", "finished_at", "duration_ms", "pid", "exit_code", "signal",
    "agent", "agent_version", "preset_id", "provider", "model", "tokens", "cost", "timeout_seconds", "context_start",
    "context_end", "output_dir", "session_path", "stdout_bytes", "stderr_bytes", "truncated",
)  # fmt: skip
_MOMENTS = frozenset({
    "next_run", "last_run", "last_success", "queued_at", "not_before", "started_at", "finished_at", "context_start",
    "context_end",
})  # fmt: skip


@declare(
    "show",
    effect=READS,
    examples=[
        "pxctl pipe show disk-digest",
        "pxctl pipe show disk-digest --rendered    # the prompt as the agent would get it now",
        "pxctl pipe show 12                        # an execution",
        "pxctl pipe show 12 --rendered             # the prompt that it got",
    ],
)
@click.argument("pipe", metavar="NAME|ID", shell_complete=execution_names)
@click.option("--rendered", is_flag=True, help="Only the prompt, with its five facts.")
def show_pipe(invocation: Invocation, pipe: str, rendered: bool) -> None:
    """Show a pipe or an execution; with --json everything that is known of it."""
    number = is_execution_id(pipe)
    invocation.action = f"show {'execution ' if number else ''}{pipe}"
    asks_for_prompt = rendered and not number
    target = (
        f"/api/executions/{int(pipe)}"
        if number
        else query(route("pipe", bare_name("pipe", pipe)), [("rendered", True if asks_for_prompt else None)])
    )
    answer = invocation.client().get(target)
    document = answer.document
    if document.get("schema") == "px.queue/1":  # `queue` is a route: no pipe has that name
        raise Failure("there is no pipe 'queue'", kind="unknown_unit", hint="pxctl pipe queue", exit_code=UNKNOWN_UNIT)
    if rendered and not invocation.json:
        _print_prompt(invocation, document.get("rendered_prompt" if number else "rendered"), pipe)
    elif invocation.told(answer, [document.get("id" if number else "name")]):
        return
    elif number:
        print_facts(invocation, _facts(invocation, document, _EXECUTION_FACTS))
    else:
        _print_pipe(invocation, document)


def _print_prompt(invocation: Invocation, prompt: object, name: str) -> None:
    """Write the prompt, on a pipe byte for byte; a terminal gets nothing that could steer it."""
    from pxctl.shown_text import shaped

    if not isinstance(prompt, str):
        raise Failure("it has no prompt", kind="failed", hint=f"pxctl pipe show {name}", exit_code=USAGE)
    invocation.write(shaped(prompt, colour=False) if invocation.out_is_terminal else prompt)


def _print_pipe(invocation: Invocation, pipe: dict[str, Any]) -> None:
    facts = _facts(invocation, {**pipe, "state": _state_of(pipe)}, _PIPE_FACTS)
    if decision := pipe.get("last_decision"):
        at = _local(decision.get("at"), terminal=invocation.out_is_terminal)
        facts.append(("last decision", f"{at}: {decision.get('text')}"))
    facts += [("warning", str(warning)) for warning in pipe.get("warnings") or []]
    if pipe.get("config_error"):
        facts.append(("broken", str(pipe["config_error"])))
    print_facts(invocation, facts)


def _facts(invocation: Invocation, document: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        value = document.get(name)
        if value is None or value in ("", [], 0, False):
            continue
        label = name.removesuffix("_seconds").removesuffix("_ms")
        found.append((label, _words(invocation, name, value)))
    return found


def _words(invocation: Invocation, name: str, value: Any) -> str:
    if name in _MOMENTS:
        return _local(value, terminal=invocation.out_is_terminal)
    if name == "cost":
        return money(value)
    if name == "duration_ms":
        return output.duration(value / 1000)
    if name.endswith("_seconds"):
        return output.duration(value)
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@declare(
    "validate",
    effect=READS,
    examples=["pxctl pipe validate disk-digest", "pxctl pipe validate --all --summary"],
)
@click.argument("pipes", nargs=-1, metavar="[NAME]...", shell_complete=pipe_names)
@click.option("--all", "everything", is_flag=True, help="Every pipe.")
@click.option("--summary", is_flag=True, help="Only what did not pass.")
def validate_pipes(invocation: Invocation, pipes: tuple[str, ...], everything: bool, summary: bool) -> int:
    """Check pipes: front matter, schedule, agent, presets and more; exits 0 on pass and warn, 1 on fail.

    Each finding has its line in pipe.md and its cure. Nothing is run.
    """
    invocation.action = f"validate {', '.join(pipes) or 'the pipes'}"
    if everything == bool(pipes):
        raise usage("name pipes, or --all", "pxctl pipe validate --all")
    client = invocation.client()
    found = [_checked(client, name) for name in _names(client, pipes)]
    if invocation.json:
        whole = {"schema": "px.pipe-validations/1", "ok": all(one.get("ok") for one in found), "pipes": found}
        invocation.document(whole if everything or len(found) != 1 else found[0])
    else:
        for one in found:
            _tell(invocation, one, summary=summary)
    return OK if all(one.get("ok") for one in found) else FAILED


def _names(client: Client, pipes: tuple[str, ...]) -> list[str]:
    if pipes:
        return bare_names(client, "pipe", pipes)
    return [str(pipe.get("name")) for pipe in client.get("/api/pipes").document.get("pipes", [])]


def _checked(client: Client, name: str) -> dict[str, Any]:
    """Return the checks of a pipe, with the file that their lines are of."""
    checks: dict[str, Any] = client.ask("POST", route("pipe", name, "validate"), timeout=None).document
    return {**checks, "file": client.get(route("pipe", name)).document.get("file")}


def _tell(invocation: Invocation, found: dict[str, Any], *, summary: bool) -> None:
    paint = invocation.paint
    verdict = _overall(found)
    if invocation.quiet:
        invocation.say(str(found.get("pipe")))
        return
    invocation.say(f"pipe:{found.get('pipe')}: " + paint(verdict, BY_STATE.get(verdict)))
    for check in found.get("checks") or []:
        word = str(check.get("verdict"))
        if summary and word in {"pass", "skip"}:
            continue
        where = f"{found.get('file') or 'pipe.md'}:{check['line']}: " if check.get("line") else ""
        name = f"{check.get('name')}: "
        invocation.say(f"  {paint(f'{word:4}', BY_STATE.get(word))}  {clean(name + where + str(check.get('detail')))}")
        if check.get("hint") and word not in {"pass", "skip"}:
            invocation.say(f"        {paint('cure:', 'bold')} {clean(str(check['hint']))}")


def _overall(found: dict[str, Any]) -> str:
    if not found.get("ok"):
        return "fail"
    return "warn" if any(check.get("verdict") == "warn" for check in found.get("checks") or []) else "pass"


@declare("new", effect="modifying: writes a folder into the pipes directory", examples=["pxctl pipe new my-pipe"])
@click.argument("name", metavar="NAME")
def new_pipe(invocation: Invocation, name: str) -> None:
    """Write a small pipe to start from; it runs by hand only, until its schedule says otherwise."""
    name = bare_name("pipe", name)
    invocation.action = f"make pipe:{name}"
    answer = invocation.client().ask("POST", "/api/pipes/new", content={"name": name}, timeout=120.0)
    made = answer.document.get("name") or name
    if invocation.told(answer, [made]):
        return
    invocation.say(f"pipe:{made} written to {answer.document.get('folder')}")
    invocation.notice(f"edit {answer.document.get('file')}, then: pxctl pipe run {made}")


_EXAMPLE = "example:"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""A source that is no path, as no example is one; the daemon says which of them it takes."""


@declare(
    "add",
    effect="modifying: copies a pipe into the pipes directory; it is disabled there",
    examples=[
        "pxctl pipe add example:disk-digest",
        "pxctl pipe add ./my-pipe --name other-name",
        "pxctl pipe add https://example.org/pipes/triage/pipe.md --name triage",
    ],
)
@click.argument("source", metavar="PATH|URL|example:NAME", type=click.Path())
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_pipe(invocation: Invocation, source: str, name: str | None) -> None:
    """Install a pipe: checked first, whole or not at all, and disabled until `pxctl pipe enable` says otherwise."""
    invocation.action = f"add {source}"
    if not (source.startswith(_EXAMPLE) or _ADDRESS.match(source)):
        source = os.path.abspath(os.path.expanduser(source))
    content = {"source": source} | ({"name": name} if name else {})
    with invocation.spinner(source, lambda: "adding…"):
        answer = invocation.client().ask("POST", "/api/pipes", content=content, timeout=None)
    found, folder = answer.document.get("name"), answer.document.get("folder")
    if invocation.told(answer, [found]):
        return
    invocation.say(f"pipe:{found} added" + (f" in {folder}" if folder else "") + ", disabled")
    invocation.notices(answer.document.get("warnings"))
    invocation.notice(f"look at it: pxctl pipe show {found}; try it: pxctl pipe run {found}")
    invocation.notice(f"let its schedule start it: pxctl pipe enable {found}")


@declare(
    "remove",
    effect="modifying: cancels what runs of the pipe and deletes its folder, its output included",
    examples=["pxctl pipe remove my-pipe", "pxctl pipe remove my-pipe --yes"],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_pipe(invocation: Invocation, pipe: str, yes: bool) -> None:
    """Remove a pipe with its folder; its executions stay in the ledger. Asks on a terminal; elsewhere give --yes."""
    invocation.action = f"remove pipe:{bare_name('pipe', pipe)}"
    client = invocation.client()
    name = _exact_name(client, pipe)
    invocation.action = f"remove pipe:{name}"
    if not yes:
        invocation.confirm_removal(f"pipe:{name}", f"pxctl pipe remove {name} --yes")
    answer = client.ask("DELETE", route("pipe", name), timeout=None)
    if not invocation.told(answer, [name]):
        invocation.say(f"pipe:{name} removed")


@declare(
    "config",
    effect="modifying: rewrites the named keys in pipe.md; the prompt and all other keys stay as they are",
    examples=[
        "pxctl pipe config disk-digest schedule='every 2h'",
        "pxctl pipe config disk-digest timeout=600 retries=0",
        'pxctl pipe config triage preset=\'["fast", "*"]\' timezone=     # an empty value removes the key',
    ],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
def config_pipe(invocation: Invocation, pipe: str, values: tuple[str, ...]) -> None:
    """Change keys of a pipe's front matter. VALUE is JSON where it reads as such, else text; empty removes the key.

    A change that would break the pipe is refused, and the file is left as it is.
    """
    invocation.action = f"change pipe:{bare_name('pipe', pipe)}"
    changes = dict(_change(value, pipe) for value in values)
    client = invocation.client()
    name = _exact_name(client, pipe)
    answer = client.ask("POST", route("pipe", name, "config"), content={"config": changes}, timeout=60.0)
    if invocation.told(answer, [name]):
        return
    invocation.say(f"pipe:{name}: {', '.join(_config_words(*change) for change in changes.items())}")
    invocation.notices(answer.document.get("warnings"))


def _change(text: str, name: str) -> tuple[str, Any]:
    from pxctl.coerce import CannotRead, read_json

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise usage(f"{text!r} is not KEY=VALUE", f"pxctl pipe config {name} timeout=600")
    if not value:
        return key, None
    try:
        found = read_json(value, key)
    except CannotRead:
        return key, value
    # 1e999 reads as a number that JSON has no word for.
    return key, value if isinstance(found, float) and abs(found) == float("inf") else found


def _config_words(key: str, value: Any) -> str:
    return f"{key} removed" if value is None else f"{key} set"


@declare(
    "enable",
    effect="modifying: schedule and events start the pipe from now on, on this machine",
    examples=["pxctl pipe enable disk-digest", "pxctl pipe enable 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def enable_pipes(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Let schedule and events start pipes, on this machine; the file keeps what it says."""
    return _change_pipes(invocation, pipes, "enable")


@declare(
    "disable",
    effect="modifying: cancels what the pipe's schedule has in line, and starts nothing more",
    examples=["pxctl pipe disable disk-digest", "pxctl pipe disable 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def disable_pipes(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Keep schedule and events from starting pipes, on this machine; what runs goes on."""
    return _change_pipes(invocation, pipes, "disable")


@declare(
    "next",
    effect=READS,
    examples=["pxctl pipe next disk-digest", "pxctl pipe next disk-digest -n 20", "pxctl pipe next disk-digest --json"],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option(
    "-n", "--count", type=click.IntRange(1, 50), default=5, show_default=True, metavar="N", help="Coming times."
)
def next_of_pipe(invocation: Invocation, pipe: str, count: int) -> None:
    """Say when a pipe is due next and why, or why it is not; and what was last decided about it.

    That it waits is no decision: a start, a skip, a run that was missed is one, and stays to be seen.
    """
    name = bare_name("pipe", pipe)
    invocation.action = f"look ahead for pipe:{name}"
    answer = invocation.client().get(query(route("pipe", name, "next"), [("count", count)]))
    if invocation.told(answer, (moment for moment in answer.document.get("upcoming") or [])):
        return
    invocation.say_all(_lines(invocation, answer.document))


def _lines(invocation: Invocation, report: dict[str, Any]) -> Iterator[str]:
    schedule = f" ({report['schedule']})" if report.get("schedule") else ""
    yield invocation.paint(clean(f"{PREFIX}{report.get('name')}{schedule}"), "bold")
    for sentence in report.get("sentences") or []:
        yield clean(str(sentence))
    if decision := report.get("last_decision"):
        when = output.ago(decision.get("at"), invocation.now())
        yield f"last decision, {when}: {clean(str(decision.get('text')))}"
    elif report.get("upcoming"):
        yield "last decision: none yet"


def _state_of(pipe: dict[str, Any]) -> str:
    """Return the word for a pipe of px.pipes/1, the same that `status` has for the unit."""
    if pipe.get("running") is not None:
        return "running"
    if pipe.get("queued"):
        return "queued"
    if pipe.get("config_error"):
        return "failed"
    return "idle" if pipe.get("enabled") else "disabled"


def _exact_name(client: Client, text: str) -> str:
    """Return the bare name of the one pipe that a name or a glob means, for those who say it before they act on it."""
    name = bare_name("pipe", text)
    return str(client.get(route("pipe", name)).document.get("name")) if is_glob(name) else name


def _local(text: object, *, terminal: bool) -> str:
    """Return "Mon 2026-11-23 08:00:00 CET" of an RFC 3339 time on a terminal; elsewhere the time as it came."""
    moment = output.epoch(text)
    if moment is None or not terminal:
        return output.ABSENT if text is None else str(text)
    return time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(moment))


def _change_pipes(invocation: Invocation, texts: tuple[str, ...], verb: str) -> int:
    """Enable or disable every pipe that the names mean, tell the outcome, return the exit code."""
    invocation.action = f"{verb} {', '.join(texts)}"
    client = invocation.client()
    units = [f"{PREFIX}{name}" for name in bare_names(client, "pipe", texts)]
    outcomes = one_by_one(
        invocation, verb, units, lambda unit: client.ask("POST", route("pipe", unit, verb), timeout=None).document
    )

    def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
        return documents[0] if len(outcomes) == 1 else {"schema": "px.pipes/1", "pipes": documents}

    def say(_: Outcome, pipe: dict[str, Any]) -> None:
        name = str(pipe.get("name"))
        invocation.say(name if invocation.quiet else f"{PREFIX}{name} {verb}d{_when(invocation, verb, pipe)}")
        invocation.notices(pipe.get("warnings") if verb == "enable" else None)

    return tell(invocation, outcomes, merged, say)


def _when(invocation: Invocation, verb: str, pipe: dict[str, Any]) -> str:
    if verb != "enable" or not pipe.get("next_run"):
        return ""
    at = output.epoch(pipe["next_run"])
    if at is not None and at <= invocation.now():
        return "; it runs now"
    return f"; next run {output.ago(pipe['next_run'], invocation.now())}"
