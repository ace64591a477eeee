"""`pxctl pipe …`: pipes, and their executions: found, run, followed, listed; how one ended, in words and exit code."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pxctl import executions, follow, output
from pxctl.app import Invocation, declare, declare_group, no_autostart_option, timeout_option
from pxctl.client import Client, Document, Exit, Failure, bare_name, bare_names, is_glob, query, quote, route, usage
from pxctl.coerce import CannotRead, read_json
from pxctl.commands.units import listed, one_by_one, print_outcomes, request
from pxctl.completion import EXAMPLE_PIPES, examples, execution_ids, execution_names, pipe_keys, pipe_names
from pxctl.output import BY_STATE, Column, ago, clean, duration, state_column
from pxctl.shaper import shaped

pipe = declare_group("pipe", "Pipes: agents that run on a schedule, on events or by hand; and their executions.")
_pipe = click.argument("name", metavar="NAME", shell_complete=pipe_names)
_pipes = click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
_execution = click.argument("execution", metavar="ID|PIPE", shell_complete=execution_names)
_no_wait = click.option("--no-wait", is_flag=True, help="Return once it is queued.")


# -- list, show -------------------------------------------------------------------------------------------------------


def _state_of(pipe: Document) -> str:
    """Return the word for a pipe of px.pipes/1."""
    if pipe.get("running") is not None:
        return "running"
    if pipe.get("queued"):
        return "queued"
    if pipe.get("config_error"):
        return "broken"
    return "idle" if pipe.get("enabled") else "disabled"


def _remark(pipe: Document) -> tuple[str, str | None]:
    if pipe.get("config_error"):
        # The row says which pipe it is; a narrow terminal has no room to say it again.
        folder = f"{pipe.get('folder')}/"
        return f"broken: {str(pipe['config_error']).removeprefix(folder)}", "red"
    if pipe.get("running") is not None:
        return f"execution {pipe['running']}", None
    if pipe.get("slower_than_schedule"):
        return "takes longer than the time between two runs", "yellow"
    return (str(pipe["warnings"][0]), "yellow") if pipe.get("warnings") else ("", None)


_COLUMNS = [
    Column("PIPE", "name", minimum=12),
    Column("STATE", _state_of, 1, style=lambda pipe: BY_STATE.get(_state_of(pipe))),
    Column("SCHEDULE", "schedule", 4, minimum=10),
    Column("NEXT RUN", lambda pipe: ago(pipe.get("next_run")), 2),
    Column("LAST RUN", lambda pipe: ago(pipe.get("last_run")), 5),
    state_column("last_status", "LAST STATUS", 3),
    Column("QUEUED", lambda pipe: pipe.get("queued") or "", 8, right=True),
    Column("FAILURES", lambda pipe: pipe.get("consecutive_failures") or "", 7, right=True, style=lambda _: "red"),
    Column("REMARK", lambda pipe: _remark(pipe)[0], 6, minimum=12, style=lambda pipe: _remark(pipe)[1]),
]


@declare(pipe, "list", "list the pipes")
def list_pipes(invocation: Invocation) -> None:
    """List the pipes with schedule, next and last run; one that cannot run with its error.

    $ pxctl pipe list
    """
    answer = invocation.client().get("/api/pipes")
    none = "no pipes yet; add one: pxctl pipe add example:disk-digest"
    invocation.print_rows(answer, answer.document.get("pipes", []), "name", _COLUMNS, none)


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


@declare(pipe, "show")
@click.argument("name", metavar="NAME|ID", shell_complete=execution_names)
@click.option("--rendered", is_flag=True, help="Only the prompt, with its five facts.")
def show_pipe(invocation: Invocation, name: str, rendered: bool) -> None:
    """Show a pipe, its prompt, or one execution; with --json everything that is known of it.

    $ pxctl pipe show disk-digest
    $ pxctl pipe show disk-digest --rendered    # the prompt as the agent would get it now
    $ pxctl pipe show 12                        # an execution
    $ pxctl pipe show 12 --rendered             # the prompt that it got
    """
    is_execution = executions.is_execution_id(name)
    invocation.action = f"show {'execution ' if is_execution else ''}{name}"
    if is_execution:
        answer = invocation.client().get(f"/api/executions/{int(name)}")
    else:
        answer = invocation.client().get(query(route("pipe", name), [("rendered", rendered or None)]))
    document = answer.document
    if document.get("schema") == "px.queue/1":  # `queue` is a route: no pipe has that name
        raise Failure(
            "there is no pipe 'queue'", kind="unknown_unit", hint="pxctl pipe queue", exit_code=Exit.UNKNOWN_UNIT
        )
    if rendered and not invocation.json:
        prompt = document.get("rendered_prompt" if is_execution else "rendered")
        if not isinstance(prompt, str):
            raise Failure("it has no prompt", kind="failed", hint=f"pxctl pipe show {name}", exit_code=Exit.USAGE)
        output.write(shaped(prompt, colour=False) if invocation.out_is_terminal else prompt)
    elif not invocation.print_result(answer, [document.get("id" if is_execution else "name")]):
        names = _EXECUTION_FACTS if is_execution else _PIPE_FACTS
        known = document if is_execution else {**document, "state": _state_of(document)}
        facts = [_fact(invocation, key, known[key]) for key in names if known.get(key)]
        if decision := document.get("last_decision"):
            facts.append(("last decision", f"{invocation.moment(decision.get('at'))}: {decision.get('text')}"))
        facts += [("warning", str(warning)) for warning in document.get("warnings") or []]
        invocation.print_facts([*facts, ("broken", document.get("config_error"))])


def _fact(invocation: Invocation, name: str, value: Any) -> tuple[str, object]:
    label = name.removesuffix("_seconds").removesuffix("_ms")
    if name.endswith("_at") or name in {"next_run", "last_run", "last_success", "not_before"} or "context_" in name:
        return label, invocation.moment(value)
    if name == "cost":
        return label, executions.money(value)
    if label != name:
        return label, duration(value / 1000 if name.endswith("_ms") else value)
    return label, ", ".join(map(str, value)) if isinstance(value, list) else value


# -- validate, new, add, remove, config, enable, disable, next --------------------------------------------------------


@declare(pipe, "validate")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=pipe_names)
@click.option("--all", "everything", is_flag=True, help="Every pipe.")
@click.option("--summary", is_flag=True, help="Only what did not pass.")
def validate_pipes(invocation: Invocation, names: tuple[str, ...], everything: bool, summary: bool) -> int:
    """Check pipes: front matter, schedule, agent, presets and more; exits 0 on pass and warn, 1 on fail.

    Each finding has its line in pipe.md and its cure. Nothing is run.

    $ pxctl pipe validate disk-digest
    $ pxctl pipe validate --all --summary
    """
    invocation.action = f"validate {', '.join(names) or 'the pipes'}"
    if everything == bool(names):
        raise usage("name pipes, or --all", "pxctl pipe validate --all")
    client, found = invocation.client(), []
    listed = client.get("/api/pipes").document.get("pipes", []) if everything else []
    for name in bare_names(client, "pipe", names) or [str(one.get("name")) for one in listed]:
        checks: Document = client.ask("POST", route("pipe", name, "validate"), timeout=None).document
        found.append({**checks, "file": client.get(route("pipe", name)).document.get("file")})
    is_ok = all(one.get("ok") for one in found)
    if invocation.json:
        whole = {"schema": "px.pipe-validations/1", "ok": is_ok, "pipes": found}
        invocation.print_json(whole if everything or len(found) != 1 else found[0])
    elif invocation.quiet:
        invocation.print(*(one.get("pipe") for one in found))
    else:
        for one in found:
            _print_checks(invocation, one, summary)
    return Exit.OK if is_ok else Exit.FAILED


def _print_checks(invocation: Invocation, found: Document, summary: bool) -> None:
    checks = found.get("checks") or []
    has_warning = any(check.get("verdict") == "warn" for check in checks)
    overall = "fail" if not found.get("ok") else "warn" if has_warning else "pass"
    invocation.print(f"pipe:{found.get('pipe')}: " + invocation.paint(overall, BY_STATE.get(overall)))
    for check in checks:
        word = str(check.get("verdict"))
        is_fine = word in {"pass", "skip"}
        if summary and is_fine:
            continue
        where = f"{found.get('file') or 'pipe.md'}:{check['line']}: " if check.get("line") else ""
        line = clean(f"{check.get('name')}: {where}{check.get('detail')}")
        invocation.print(f"  {invocation.paint(f'{word:4}', BY_STATE.get(word))}  {line}")
        if check.get("hint") and not is_fine:
            invocation.print(f"        {invocation.paint('cure:', 'bold')} {clean(str(check['hint']))}")


@declare(pipe, "new")
@click.argument("name", metavar="NAME")
def new_pipe(invocation: Invocation, name: str) -> None:
    """Write a small pipe to start from; it runs by hand only, until its schedule says otherwise.

    Effect: modifying: writes a folder into the pipes directory
    $ pxctl pipe new my-pipe
    """
    name = bare_name("pipe", name)
    invocation.action = f"make pipe:{name}"
    answer = invocation.client().ask("POST", "/api/pipes/new", content={"name": name}, timeout=120.0)
    made = answer.document.get("name") or name
    if not invocation.print_result(answer, [made]):
        invocation.print(f"pipe:{made} written to {answer.document.get('folder')}")
        invocation.notice(f"edit {answer.document.get('file')}, then: pxctl pipe run {made}")


@declare(pipe, "add", "add {source}")
@click.argument("source", metavar="PATH|URL|example:NAME", shell_complete=examples(EXAMPLE_PIPES))
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_pipe(invocation: Invocation, source: str, name: str | None) -> None:
    """Install a pipe: checked first, whole or not at all, and disabled until `pxctl pipe enable` says otherwise.

    Effect: modifying: copies a pipe into the pipes directory; it is disabled there
    $ pxctl pipe add example:disk-digest
    $ pxctl pipe add ./my-pipe --name other-name
    $ pxctl pipe add https://example.org/pipes/triage/pipe.md --name triage
    """
    # What is no path is an example or an address; the daemon says which of them it takes.
    is_path = not re.match(r"example:|[A-Za-z][A-Za-z0-9+.-]*://", source)
    content = {"source": str(Path(source).expanduser().absolute()) if is_path else source}
    content |= {"name": name} if name else {}
    with invocation.spinner(source, "adding…"):
        answer = invocation.client().ask("POST", "/api/pipes", content=content, timeout=None)
    found, folder = answer.document.get("name"), answer.document.get("folder")
    if not invocation.print_result(answer, [found]):
        invocation.print(f"pipe:{found} added" + (f" in {folder}" if folder else "") + ", disabled")
        invocation.print_warnings(answer.document)
        invocation.notice(
            f"look at it: pxctl pipe show {found}; try it: pxctl pipe run {found}",
            f"let its schedule start it: pxctl pipe enable {found}",
        )


def _exact_name(client: Client, text: str) -> str:
    """Return the bare name of the one pipe that a name or a glob means, for those who say it before they act on it."""
    name = bare_name("pipe", text)
    return str(client.get(route("pipe", name)).document.get("name")) if is_glob(name) else name


@declare(pipe, "remove")
@_pipe
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_pipe(invocation: Invocation, name: str, yes: bool) -> None:
    """Remove a pipe with its folder; its executions stay in the ledger. Asks on a terminal; elsewhere give --yes.

    Effect: modifying: cancels what runs of the pipe and deletes its folder, its output included
    $ pxctl pipe remove my-pipe
    $ pxctl pipe remove my-pipe --yes
    """
    invocation.action = f"remove pipe:{bare_name('pipe', name)}"
    client = invocation.client()
    name = _exact_name(client, name)
    invocation.action = f"remove pipe:{name}"
    if not yes:
        invocation.confirm_removal(f"pipe:{name}", f"pxctl pipe remove {name} --yes")
    answer = client.ask("DELETE", route("pipe", name), timeout=None)
    if not invocation.print_result(answer, [name]):
        invocation.print(f"pipe:{name} removed")


@declare(pipe, "config")
@_pipe
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=pipe_keys)
def config_pipe(invocation: Invocation, name: str, values: tuple[str, ...]) -> None:
    """Change keys of a pipe's front matter. VALUE is JSON where it reads as such, else text; empty removes the key.

    A change that would break the pipe is refused, and the file is left as it is.

    Effect: modifying: rewrites the named keys in pipe.md; the prompt and all other keys stay as they are
    $ pxctl pipe config disk-digest schedule='every 2h'
    $ pxctl pipe config disk-digest timeout=600 retries=0
    $ pxctl pipe config triage preset='["fast", "*"]' timezone=     # an empty value removes the key
    """
    invocation.action = f"change pipe:{bare_name('pipe', name)}"
    changes: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise usage(f"{text!r} is not KEY=VALUE", f"pxctl pipe config {name} timeout=600")
        try:
            found = read_json(value, key) if value else None
        except CannotRead:
            found = value
        # 1e999 reads as a number that JSON has no word for.
        changes[key] = value if isinstance(found, float) and abs(found) == float("inf") else found
    client = invocation.client()
    name = _exact_name(client, name)
    answer = client.ask("POST", route("pipe", name, "config"), content={"config": changes}, timeout=60.0)
    if not invocation.print_result(answer, [name]):
        words = (f"{key} {'removed' if value is None else 'set'}" for key, value in changes.items())
        invocation.print(f"pipe:{name}: {', '.join(words)}")
        invocation.print_warnings(answer.document)


def _change(invocation: Invocation, names: tuple[str, ...], verb: str) -> int:
    """Enable or disable every pipe that the names mean, print the outcome, return the exit code."""
    client = invocation.client()
    units = [f"pipe:{name}" for name in bare_names(client, "pipe", names)]

    def change(unit: str) -> Document:
        changed: Document = client.ask("POST", route("pipe", unit, verb), timeout=None).document
        return changed

    def show(_: str, pipe: Document) -> None:
        when = ago(pipe["next_run"]) if verb == "enable" and pipe.get("next_run") else ""
        when = "; it runs now" if when.endswith("ago") else when and f"; next run {when}"
        invocation.print(pipe.get("name") if invocation.quiet else f"pipe:{pipe.get('name')} {verb}d{when}")
        invocation.print_warnings(pipe if verb == "enable" else {})

    outcomes = one_by_one(invocation, verb, units, change)
    return print_outcomes(invocation, outcomes, show, listed("px.pipes/1", "pipes", outcomes))


@declare(pipe, "enable", "enable {names}")
@_pipes
def enable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Let schedule and events start pipes, on this machine; the file keeps what it says.

    Effect: modifying: schedule and events start the pipe from now on, on this machine
    $ pxctl pipe enable disk-digest
    $ pxctl pipe enable 'daily-*'
    """
    return _change(invocation, names, "enable")


@declare(pipe, "disable", "disable {names}")
@_pipes
def disable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Keep schedule and events from starting pipes, on this machine; what runs goes on.

    Effect: modifying: cancels what the pipe's schedule has in line, and starts nothing more
    $ pxctl pipe disable disk-digest
    $ pxctl pipe disable 'daily-*'
    """
    return _change(invocation, names, "disable")


@declare(pipe, "next")
@_pipe
@click.option(
    "-n", "--count", type=click.IntRange(1, 50), default=5, show_default=True, metavar="N", help="Coming times."
)
def next_of_pipe(invocation: Invocation, name: str, count: int) -> None:
    """Say when a pipe is due next and why, or why it is not; and what was last decided about it.

    That it waits is no decision: a start, a skip, a run that was missed is one, and stays to be seen.

    $ pxctl pipe next disk-digest
    $ pxctl pipe next disk-digest -n 20
    """
    invocation.action = f"look ahead for pipe:{bare_name('pipe', name)}"
    answer = invocation.client().get(query(route("pipe", name, "next"), [("count", count)]))
    report = answer.document
    if invocation.print_result(answer, report.get("upcoming") or []):
        return
    schedule = f" ({report['schedule']})" if report.get("schedule") else ""
    invocation.print(invocation.paint(clean(f"pipe:{report.get('name')}{schedule}"), "bold"))
    invocation.print(*(clean(str(one)) for one in report.get("sentences") or []))
    if decision := report.get("last_decision"):
        invocation.print(f"last decision, {ago(decision.get('at'))}: {clean(str(decision.get('text')))}")
    elif report.get("upcoming"):
        invocation.print("last decision: none yet")


# -- run, retry, cancel -----------------------------------------------------------------------------------------------


def _queue(client: Client, target: str, content: Document) -> Document:
    """Have an execution queued and return it. A lost connection is taken up again, with the same Idempotency-Key."""
    fields, patience = {"Idempotency-Key": os.urandom(16).hex()}, follow.Patience()
    while True:
        try:
            queued: Document = client.ask("POST", target, content=content, fields=fields, timeout=None).document
            return queued
        except Failure as failure:
            patience.bear(failure)


def _finish(invocation: Invocation, client: Client, execution: Document, no_wait: bool) -> int:
    """Follow an execution to its end and return 0 when it completed; `no_wait`: only say where it is.

    A next try that begins at once (the next preset of the pipe's list) is followed, too, and its outcome counts; one
    that comes later is only named. Under `--json` the last row is one document; under `-q` its id is all.
    """
    successor, hint = None, output.paint("hint:", "bold", on=invocation.err_has_colour)
    while not no_wait:
        number = execution.get("id")
        advice = f"{hint} pxctl pipe tail -f {number}; to end it: pxctl pipe cancel {number}"
        with invocation.detaching(f"detached; {executions.title_of(execution)} goes on\n{advice}"):
            if invocation.json or invocation.quiet:
                execution = executions.await_execution(client, execution)
            else:
                execution = executions.follow_execution(invocation, execution)
        successor = executions.successor_of(client, execution)
        if successor is None or successor.get("not_before") is not None:
            break
        follows = f"execution {successor.get('id')} follows with the next preset"
        invocation.notice(f"pxctl: {executions.sentence(execution)}; {follows}")
        execution = successor
    is_over, title = not no_wait or bool(execution.get("finished_at")), executions.title_of(execution)
    failure = executions.failure_of(execution, successor) if is_over else None
    if invocation.json:
        invocation.print_json(execution)
        return Exit.OK if failure is None else failure.exit_code
    if invocation.quiet and (failure is None or not no_wait):
        invocation.print(execution.get("id"))
    if failure is not None:
        raise failure
    if no_wait and not invocation.quiet:
        invocation.print(f"{title}: {executions.where_it_is(execution) or execution.get('status')}")
    elif not no_wait:
        words = ", ".join(filter(None, ["completed", executions.particulars(execution)]))
        invocation.notice(f"pxctl: {title}: {words}")
    return Exit.OK


@declare(pipe, "run")
@_pipe
@_no_wait
@click.option("--queue", is_flag=True, help="Wait in line where it runs already, instead of being refused.")
@timeout_option("Of this execution; else the pipe's own (exit 7).")
@click.option("--context", metavar="JSON|@FILE|-", help="An object that the prompt shows to the agent.")
@no_autostart_option
def run_pipe(
    invocation: Invocation, name: str, no_wait: bool, context: str | None, no_autostart: bool, **asked: Any
) -> int:
    """Run a pipe by hand and follow its output; exits 0 completed, 1 failed or cancelled, 7 timed out.

    The agent's text goes to stdout, its complaints and all notices to stderr; on a pipe byte for byte. With --json
    the final execution is one document. Ctrl-C ends the following only: the execution goes on.

    Effect: modifying: runs the pipe's agent as you, and starts the daemon when it is not there
    $ pxctl pipe run disk-digest
    $ pxctl pipe run disk-digest --no-wait -q      # prints the execution's id
    $ pxctl pipe run disk-digest --queue           # wait in line where it runs already
    $ pxctl pipe run triage --context '{"issue": 12}' --timeout 600
    $ pxctl pipe run triage --json > execution.json
    """
    name = bare_name("pipe", name)
    invocation.action = f"run pipe:{name}"
    asked |= {"context": _context(context), "queue": asked["queue"] or None}
    content = {key: value for key, value in asked.items() if value is not None}
    client = invocation.waking_client(no_autostart)
    with invocation.detaching(f"detached before the daemon answered; pipe:{name} may run: pxctl pipe queue"):
        execution = _queue(client, route("pipe", name, "run"), content)
    invocation.print_warnings(execution)
    return _finish(invocation, client, execution, no_wait)


def _context(given: str | None) -> Document | None:
    if given is None:
        return None
    try:
        found = read_json(output.read_argument(given), "--context")
    except CannotRead as error:
        raise usage(str(error), "pxctl pipe run --help") from error
    except OSError as error:
        raise usage(f"cannot read {given.removeprefix('@')}: {error.strerror}", "pxctl pipe run --help") from error
    if not isinstance(found, dict):
        raise usage("--context must be a JSON object", "pxctl pipe run --help")
    return found


@declare(pipe, "retry")
@click.argument("execution", metavar="ID", shell_complete=execution_ids)
@_no_wait
def retry_execution(invocation: Invocation, execution: str, no_wait: bool) -> int:
    """Queue an execution again, as a new one, and follow it to its end; exits as `pipe run` does.

    Effect: modifying: queues a new execution with what its pipe says now
    $ pxctl pipe retry 12
    $ pxctl pipe retry 12 --no-wait
    """
    if not executions.is_execution_id(execution):
        raise usage(f"{execution!r} is no id of an execution", "pxctl pipe runs shows the ids")
    invocation.action = f"retry execution {execution}"
    client = invocation.client()
    again = _queue(client, f"{executions.execution_route(executions.find_execution(client, execution))}/retry", {})
    invocation.action = f"run pipe:{again.get('pipe_name')}"
    return _finish(invocation, client, again, no_wait)


@declare(pipe, "cancel")
@click.argument("targets", nargs=-1, metavar="[ID|PIPE]...", shell_complete=execution_names)
@click.option("--all", "everything", is_flag=True, help="All that run and wait.")
def cancel_executions(invocation: Invocation, targets: tuple[str, ...], everything: bool) -> int:
    """Cancel executions, waiting or running; returns when nothing of them is left (TERM, its grace, KILL).

    Effect: modifying: takes executions out of line, and ends the process trees of those that run
    $ pxctl pipe cancel 12
    $ pxctl pipe cancel disk-digest    # what runs and waits of it
    $ pxctl pipe cancel --all
    """
    invocation.action = f"cancel {', '.join(targets) or 'all executions'}"
    if everything == bool(targets):
        raise usage("name executions or pipes, or --all", "pxctl pipe queue")
    client = invocation.client()
    numbers = [f"execution {target}" for target in targets if executions.is_execution_id(target)]
    names = bare_names(client, "pipe", [target for target in targets if not executions.is_execution_id(target)])
    if everything:
        # What waits goes first: it would take the place of what was running.
        queue = _in_queue(client.get("/api/pipes/queue").document)
        ordered = sorted(queue, key=lambda one: one.get("status") == "running")
        names = list(dict.fromkeys(str(one.get("pipe_name")) for one in ordered))

    def cancel(unit: str) -> Document:
        found = executions.find_execution(client, unit.removeprefix("execution "))
        target = f"{executions.execution_route(found)}/cancel"
        return {"executions": [client.ask("POST", target, timeout=None).document]}

    outcomes = one_by_one(invocation, "cancel", numbers, cancel)
    if names:
        outcomes += request(invocation, client, "stop", [f"pipe:{name}" for name in names])
    cancelled = [one for outcome in outcomes for one in (outcome.document or {}).get("executions", [])]

    def show(_: str, document: Document) -> None:
        for one in document.get("executions", []):
            invocation.print(one.get("id") if invocation.quiet else f"{executions.title_of(one)} {one.get('status')}")

    whole = {"schema": "px.executions/1", "executions": cancelled, "next_cursor": None}
    code = print_outcomes(invocation, outcomes, show, lambda _: whole)
    if not cancelled and code == Exit.OK and not invocation.json:
        invocation.notice("nothing runs and nothing waits")
    return code


# -- queue, runs, output, tail ----------------------------------------------------------------------------------------


def _in_queue(document: Document) -> Iterator[Document]:
    """Yield what runs and what waits of a px.queue/1 document, each with the slots of its group in words."""
    for group in document.get("groups", []):
        running, waiting = group.get("running") or [], group.get("waiting") or []
        for execution in [*running, *waiting]:
            yield {**execution, "slots": f"{len(running)}/{group.get('slots')}"}


def _not_before(execution: Document) -> str:
    words = ago(execution.get("not_before"))
    return words if words.startswith("in ") else ""


_QUEUE_COLUMNS = [
    Column("ID", "id"),
    Column("PIPE", "pipe_name", minimum=10),
    state_column("status", "STATUS"),
    Column("POSITION", lambda one: one.get("position") or "", 2, right=True),
    Column("GROUP", "group", 4),
    Column("SLOTS", "slots", 6, right=True),
    Column("TRIGGER", "trigger", 5),
    Column("SINCE", lambda one: ago(one.get("started_at") or one.get("queued_at")), 3),
    Column("NOT BEFORE", _not_before, 7),
]


@declare(pipe, "queue", "read the queue")
def show_queue(invocation: Invocation) -> None:
    """Show what runs and what waits in line, by group: its slots, and each one's position.

    $ pxctl pipe queue
    """
    answer = invocation.client().get("/api/pipes/queue")
    invocation.print_rows(
        answer, list(_in_queue(answer.document)), "id", _QUEUE_COLUMNS, "nothing runs and nothing waits"
    )


_PAGE, _DEFAULT = 500, 50


def _error(execution: Document) -> str:
    return ": ".join(filter(None, (executions.error_word(execution), str(execution.get("error_message") or ""))))


_RUN_COLUMNS = [
    Column("ID", "id"),
    Column("PIPE", "pipe_name", minimum=10),
    state_column("status", "STATUS"),
    Column("TRIGGER", "trigger", 6),
    Column("QUEUED", lambda one: ago(one.get("queued_at")), 2),
    Column("TOOK", executions.took, 4, right=True),
    Column("TOKENS", lambda one: f"{one['tokens']:,}" if one.get("tokens") else "", 7, right=True),
    Column("COST", lambda one: executions.money(one["cost"]) if one.get("cost") else "", 8, right=True),
    Column("AGENT", lambda one: " ".join(str(one[key]) for key in ("agent", "model") if one.get(key)), 9, minimum=10),
    Column("RETRY OF", lambda one: one.get("retry_of") or "", 10, right=True),
    Column("ERROR", _error, 3, minimum=14, style=lambda one: BY_STATE.get(str(one.get("status")))),
]


@declare(pipe, "runs", "list the executions")
@click.argument("names", nargs=-1, metavar="[PIPE]...", shell_complete=pipe_names)
@click.option(
    "--pipe", "pipes", multiple=True, metavar="P", shell_complete=pipe_names, help="Only of this pipe; again."
)
@click.option("--status", "statuses", multiple=True, type=click.Choice(executions.STATUSES), help="Only these; again.")
@click.option("--since", metavar="T", help="Queued since a time (RFC 3339, 16:00, today) or an age (90s, 10m, 2h, 1d).")
@click.option("--until", metavar="T", help="Queued before it.")
@click.option("-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help=f"The newest N; else {_DEFAULT}.")
@click.option("--cursor", type=click.IntRange(min=0), metavar="C", help="Go on behind a page: its next_cursor.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
def list_runs(
    invocation: Invocation,
    names: tuple[str, ...],
    pipes: tuple[str, ...],
    statuses: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int | None,
    cursor: int | None,
    everything: bool,
) -> None:
    """List executions, newest first, without their output.

    $ pxctl pipe runs
    $ pxctl pipe runs disk-digest --status failed --status timed_out --since 7d
    $ pxctl pipe runs --pipe disk-digest -n 1 -q    # the newest one's id
    $ pxctl pipe runs --all --json > executions.json
    """
    client = invocation.client()
    routes = [f"/api/pipes/{quote(name)}/executions" for name in bare_names(client, "pipe", (*names, *pipes))]
    most = limit or (None if everything else _DEFAULT)
    filters: list[tuple[str, object]] = [("status", status) for status in statuses]
    filters += [("since", follow.since_when(since)), ("until", follow.since_when(until))]
    # The newest of several pipes, by their ids, which grow with time.
    sources = [_rows(client, one, filters, most, cursor) for one in routes or ["/api/executions"]]
    merged = merge(*sources, key=lambda row: int(row["id"]), reverse=True)
    rows = list(islice(merged, most))
    following = int(rows[-1]["id"]) if rows and next(merged, None) is not None else None
    result = {"schema": "px.executions/1", "executions": rows, "next_cursor": following}
    invocation.print_rows(result, rows, "id", _RUN_COLUMNS, "no such executions")
    if following is not None and not (invocation.json or invocation.quiet):
        invocation.notice(f"… more: --cursor {following}, or --all")


def _rows(
    client: Client, target: str, filters: Sequence[tuple[str, object]], most: int | None, cursor: int | None
) -> Iterator[Document]:
    """Yield the executions of one source; a page is asked for when its first row is wanted."""
    size = _PAGE if most is None else min(most + 1, _PAGE)
    while True:
        page = client.get(query(target, [*filters, ("limit", size), ("cursor", cursor)])).document
        yield from page.get("executions", [])
        cursor = page.get("next_cursor")
        if cursor is None:
            return


@declare(pipe, "output", "read the output of {execution}")
@_execution
@click.option("--stderr", is_flag=True, help="What came on stderr.")
@click.option("--events", is_flag=True, help="The agent's own event lines, where it writes any.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
def print_output(
    invocation: Invocation, execution: str, stderr: bool, events: bool, offset: int, limit: int | None
) -> None:
    """Print an execution's stdout, or its stderr, complete; byte for byte on a pipe.

    $ pxctl pipe output 12
    $ pxctl pipe output disk-digest > report.txt    # of its newest execution
    $ pxctl pipe output 12 --stderr --offset 0 --limit 10000
    $ pxctl pipe output 12 --events                 # the agent's own event lines
    """
    if stderr and events:
        raise usage("--stderr and --events exclude each other", f"pxctl pipe output {execution} --stderr")
    stream = "stderr" if stderr else "events" if events else "stdout"
    client = invocation.client()
    found = executions.find_execution(client, execution)
    place = {"execution": found.get("id"), "pipe_name": found.get("pipe_name"), "stream": stream}
    found_pages = follow.pages(client, f"{executions.execution_route(found)}/output", stream, offset, limit)
    follow.print_pages(invocation, found_pages, offset, {"schema": "px.execution-output/1", **place})


@declare(pipe, "tail", "read the output of {execution}")
@_execution
@click.option("-f", "--follow", "goes_on", is_flag=True, help="Go on to its end; survives a restart of the daemon.")
def tail_execution(invocation: Invocation, execution: str, goes_on: bool) -> None:
    """Show an execution's streams from the beginning, live with -f; of a pipe, its newest one.

    Ctrl-C ends the looking only. With --json -f, events as they come, one a line; without -f the row with its text.

    $ pxctl pipe tail -f disk-digest    # its newest execution, to the end
    $ pxctl pipe tail 12                # what there is now
    $ pxctl pipe tail -f 12 --json
    """
    client = invocation.client()
    found = executions.find_execution(client, execution)
    with contextlib.suppress(KeyboardInterrupt):
        if not goes_on:
            _show_now(invocation, client, found)
        elif invocation.json:
            for event in executions.execution_events(client, found):
                follow.print_event(invocation, event)
        else:
            invocation.notice(f"pxctl: {executions.sentence(executions.follow_execution(invocation, found))}")


def _show_now(invocation: Invocation, client: Client, found: Document) -> None:
    if invocation.json:
        invocation.print_json(client.get(executions.execution_route(found)))
        return
    is_cut = False
    with executions.ExecutionView(invocation, f"pipe:{found.get('pipe_name')}") as view:
        for stream in ("stdout", "stderr"):
            for page in follow.pages(client, f"{executions.execution_route(found)}/output", stream):
                view.show({"event": "output", "stream": stream, "bytes": page.content})
                is_cut = is_cut or page.truncated
    if is_cut:
        invocation.warn(executions.NOT_KEPT)
    if found.get("status") not in executions.FINAL:
        invocation.notice(f"pxctl: {executions.sentence(found)}; go on: pxctl pipe tail -f {found.get('id')}")
