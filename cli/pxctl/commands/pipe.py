"""`pxctl pipe …`: pipes, listed, shown, checked, made, changed; what is run of them is in `pipe_runs`."""

from __future__ import annotations

import click

from pxctl import app, executions, output
from pxctl.app import PxGroup, declare, execution_names, pipe_names
from pxctl.client import Document, Exit, Failure, bare_name, query, route, units_of, usage
from pxctl.coerce import read_json
from pxctl.commands.units import change_each
from pxctl.invocation import Invocation
from pxctl.output import Cell, Column, ago, clean, state_column, with_broken
from pxctl.streams import harmless

pipe = PxGroup("pipe", "Pipes: agents that run on a schedule, on events or by hand.", "disk-digest")
_pipe = click.argument("name", metavar="NAME", shell_complete=pipe_names)
_pipes = click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)


def _remark(pipe: Document) -> Cell:
    if pipe.get("config_error"):
        # The row says which pipe it is; a narrow terminal has no room to say it again.
        return "broken: " + str(pipe["config_error"]).removeprefix(f"{pipe.get('folder')}/"), "red"
    if pipe.get("running") is not None:
        return f"execution {pipe['running']}", None
    if pipe.get("slower_than_schedule"):
        return "takes longer than the time between two runs", "yellow"
    return "; ".join(pipe.get("warnings") or []), "yellow"


_COLUMNS = [
    Column("PIPE", "name"),
    state_column(),
    Column("SCHEDULE", "schedule", 4, minimum=10),
    Column("NEXT RUN", lambda pipe: ago(pipe.get("next_run")), 2),
    Column("LAST RUN", lambda pipe: ago(pipe.get("last_run")), 5),
    state_column("last_status", "LAST STATUS", 3),
    Column("QUEUED", "queued", 8, right=True),
    Column("FAILURES", lambda pipe: (pipe.get("consecutive_failures"), "red"), 7, right=True),
    Column("REMARK", _remark, 6, minimum=12),
]


@declare(pipe, "list", "list the pipes")
def list_pipes(invocation: Invocation) -> None:
    """List the pipes with schedule, next and last run; one that cannot run with its error."""
    answer = invocation.client().get("/api/pipes")
    none = "no pipes yet; add one: pxctl pipe add example:disk-digest"
    invocation.print_rows(answer, with_broken(answer.get("pipes", [])), "name", _COLUMNS, none)


@declare(pipe, "show", "show {name}")
@click.argument("name", metavar="NAME|ID", shell_complete=execution_names)
@click.option("--rendered", is_flag=True, help="Only the prompt, with its five facts.")
def show_pipe(invocation: Invocation, name: str, rendered: bool) -> None:
    """Show a pipe, its prompt, or one execution; with --json everything that is known of it.

    $ pxctl pipe show disk-digest --rendered    # the prompt as the agent would get it now
    """
    is_execution = name.isdecimal()
    target = f"/api/executions/{name}" if is_execution else query(route("pipe", name), [("rendered", rendered or None)])
    document = invocation.client().get(target)
    if document.get("schema") == "px.queue/1":  # `queue` is a route: no pipe has that name
        raise Failure("there is no pipe 'queue'", kind="unknown_unit", hint="pxctl pipe queue")
    if rendered and not invocation.json:
        prompt = str(document.get("rendered_prompt" if is_execution else "rendered") or "")
        output.write(harmless(prompt) if invocation.out_is_terminal else prompt)
    elif not invocation.print_result(document, [document.get("id" if is_execution else "name")]):
        decision = document.get("last_decision") or {}
        last = f"{invocation.moment(decision.get('at'))}: {decision.get('text')}" if decision else None
        (shown,) = with_broken([document])
        invocation.print_members(shown, last_decision=last, cost=executions.cost_of(document))


@declare(pipe, "validate", "validate {names}")
@_pipes
def validate_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Check pipes: front matter, schedule, agent, presets and more; exits 0 on pass and warn, 1 on fail.

    Each finding has its line in pipe.md and its cure. Nothing is run.

    $ pxctl pipe validate '*'
    """
    client = invocation.client()
    units = units_of(client, "pipe", names)
    found = [client.ask("POST", route("pipe", unit, "validate"), timeout=None) for unit in units]
    is_ok = all(one.get("ok") for one in found)
    result = found[0] if len(found) == 1 else {"schema": "px.pipe-validations/1", "ok": is_ok, "pipes": found}
    is_told = invocation.print_result(result, (one.get("pipe") for one in found))
    for one in [] if is_told else found:
        invocation.print(f"pipe:{one.get('pipe')}: {'pass' if one.get('ok') else 'fail'}")
        for check in one.get("checks") or []:
            where = f"pipe.md:{check['line']}: " if check.get("line") else ""
            cure = f"cure: {check['hint']}" if check.get("hint") and check["verdict"] not in {"pass", "skip"} else None
            invocation.print_check(check["verdict"], f"{check['name']}: {where}{check['detail']}", cure)
    return Exit.OK if is_ok else Exit.FAILED


@declare(pipe, "new", "make pipe:{name}")
@click.argument("name", metavar="NAME")
def new_pipe(invocation: Invocation, name: str) -> None:
    """Write a small pipe to start from; it runs by hand only, until its schedule says otherwise."""
    name = bare_name("pipe", name)
    if made := invocation.add("pipe", "/api/pipes/new", {"name": name}, "written to {folder}"):
        invocation.notice(f"edit {made.get('file')}, then: pxctl pipe run {name}")


@declare(pipe, "add", "add {source}")
@click.argument("source", metavar="PATH|URL|example:NAME", shell_complete=app.example_pipes)
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_pipe(invocation: Invocation, source: str, name: str | None) -> None:
    """Install a pipe: checked first, whole or not at all, and disabled until `pxctl pipe enable` says otherwise.

    $ pxctl pipe add example:disk-digest
    $ pxctl pipe add https://example.org/pipes/triage/pipe.md --name triage
    """
    content = {"source": source, "name": name}
    if found := invocation.add("pipe", "/api/pipes", content, "added in {folder}, disabled"):
        steps = ("look at it", "show"), ("try it", "run"), ("let its schedule start it", "enable")
        invocation.notice(*(f"{words}: pxctl pipe {verb} {found['name']}" for words, verb in steps))


@declare(pipe, "remove", "remove {name}")
@_pipe
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_pipe(invocation: Invocation, name: str, yes: bool) -> None:
    """Remove a pipe with its folder, its output included; what runs of it is cancelled.

    Its executions stay in the ledger. Asks on a terminal; elsewhere give --yes.
    """
    name = str(invocation.client().get(route("pipe", name)).get("name"))  # of a glob, too: it is said before it is done
    invocation.remove(f"pipe:{name}", f"pxctl pipe remove {name} --yes", route("pipe", name), yes)


@declare(pipe, "config", "change pipe:{name}")
@_pipe
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=app.pipe_keys)
def config_pipe(invocation: Invocation, name: str, values: tuple[str, ...]) -> None:
    """Change keys of a pipe's front matter. VALUE is JSON where it reads as such, else text; empty removes the key.

    A change that would break the pipe is refused; the prompt and all other keys stay as they are.

    $ pxctl pipe config triage preset='["fast", "*"]' schedule='every 2h' timezone=
    """
    changes: dict[str, object] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals:
            raise usage(f"{text!r} is not KEY=VALUE", f"pxctl pipe config {name} timeout=600")
        try:
            changes[key] = read_json(value, key) if value else None
        except Failure:
            changes[key] = value
    answer = invocation.client().ask("POST", route("pipe", name, "config"), content=changes, timeout=60.0)
    words = ", ".join(f"{key} {'removed' if value is None else 'set'}" for key, value in changes.items())
    invocation.show(answer, [answer.get("name")], f"pipe:{answer.get('name')}: {words}")
    invocation.print_warnings({} if invocation.json else answer)


def _change(invocation: Invocation, names: tuple[str, ...], verb: str) -> int:
    client = invocation.client()

    def change(unit: str) -> Document:
        return client.ask("POST", route("pipe", unit, verb), timeout=None)

    def words(unit: str, pipe: Document) -> str:
        if verb == "disable":
            return f"{unit} disabled"
        invocation.print_warnings(pipe)
        when = ago(pipe.get("next_run"))
        return f"{unit} enabled" + ("; it runs now" if when.endswith("ago") else f"; next run {when}" * (when != "-"))

    return change_each(invocation, verb, units_of(client, "pipe", names), change, words, bare=True)


@declare(pipe, "enable", "enable {names}")
@_pipes
def enable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Let schedule and events start pipes, on this machine; the file keeps what it says."""
    return _change(invocation, names, "enable")


@declare(pipe, "disable", "disable {names}")
@_pipes
def disable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Keep schedule and events from starting pipes, on this machine; what runs goes on, what waits is cancelled."""
    return _change(invocation, names, "disable")


@declare(pipe, "next", "look ahead for {name}")
@_pipe
def next_of_pipe(invocation: Invocation, name: str) -> None:
    """Say when a pipe is due next and why, or why it is not; and what was last decided about it."""
    report = invocation.client().get(route("pipe", name, "next"))
    if invocation.print_result(report, report.get("upcoming") or []):
        return
    schedule = f" ({report['schedule']})" if report.get("schedule") else ""
    invocation.print(invocation.paint(clean(f"pipe:{report.get('name')}{schedule}"), "bold"))
    invocation.print(*(clean(str(one)) for one in report.get("sentences") or []))
    if decision := report.get("last_decision"):
        invocation.print(f"last decision, {ago(decision.get('at'))}: {clean(str(decision.get('text')))}")
