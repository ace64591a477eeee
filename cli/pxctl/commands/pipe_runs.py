"""`pxctl pipe run`, `retry`, `cancel`, `queue`, `runs`, `output`, `tail`: executions of pipes."""

from __future__ import annotations

import binascii
import contextlib
import json
from typing import Any

import click

from pxctl import app, executions, output
from pxctl.client import Client, Document, Exit, bare_name, query, route, units_of
from pxctl.coerce import read_argument, read_json
from pxctl.commands.pipe import pipe
from pxctl.commands.units import change_each
from pxctl.invocation import Invocation
from pxctl.output import Column, ago, state_column
from pxctl.streams import STREAMS, Outlet, Screen, pages, since_when

_execution = click.argument("execution", metavar="ID|PIPE", shell_complete=app.execution_names)
_RUN_COLUMNS = [
    Column("ID", "id"),
    Column("PIPE", "pipe_name", minimum=10),
    state_column("status", "STATUS"),
    Column("TRIGGER", "trigger", 6),
    Column("QUEUED", lambda one: ago(one.get("queued_at")), 2),
    Column("TOOK", executions.took, 4, right=True),
    Column("TOKENS", lambda one: f"{one['tokens']:,}" if one.get("tokens") else "", 7, right=True),
    Column("COST", executions.cost_of, 8, right=True),
    Column("AGENT", lambda one: " ".join(str(one[key]) for key in ("agent", "model") if one.get(key)), 9, minimum=10),
    Column("RETRY OF", "retry_of", 10, right=True),
    Column("ERROR", lambda one: one.get("error_message") or one.get("error_type"), 3, minimum=14),
]


def _finish(invocation: Invocation, client: Client, execution: Document, no_wait: bool) -> int:
    """Follow an execution to its end and return 0 when it completed; `no_wait`: only say where it is.

    A next try that begins at once (the next preset of the pipe's list) is followed, too, and its outcome counts; one
    that comes later is only named. Under `--json` the last row is one document; under `-q` its id is all.
    """
    successor = None
    while not no_wait:
        execution = _follow(invocation, client, execution)
        successor = executions.successor_of(client, execution)
        if successor is None or successor.get("not_before") is not None:
            break
        follows = f"execution {successor.get('id')} follows with the next preset"
        invocation.notice(f"pxctl: {executions.sentence(execution)}; {follows}")
        execution = successor
    failure = executions.failure_of(execution, successor) if executions.is_final(execution) else None
    if invocation.json:
        invocation.print_json(execution)
        return Exit.OK if failure is None else failure.exit_code
    if invocation.quiet and (failure is None or not no_wait):
        invocation.print(execution.get("id"))
    if failure is not None:
        raise failure
    title = executions.title_of(execution)
    if not no_wait:
        invocation.notice(f"pxctl: {title}: completed, {executions.took(execution)}")
    elif not invocation.quiet:
        invocation.print(f"{title}: {executions.where_it_is(execution) or execution.get('status')}")
    return Exit.OK


def _follow(invocation: Invocation, client: Client, execution: Document) -> Document:
    number, hint = execution.get("id"), output.paint("hint:", "bold", on=invocation.err_has_colour)
    advice = f"{hint} pxctl pipe tail -f {number}; to end it: pxctl pipe cancel {number}"
    with invocation.detaching(f"detached; {executions.title_of(execution)} goes on\n{advice}"):
        if invocation.json or invocation.quiet:
            return executions.await_execution(client, execution)
        return executions.follow_execution(invocation, execution)


@app.declare(pipe, "run")
@click.argument("name", metavar="NAME", shell_complete=app.pipe_names)
@app.no_wait_option
@click.option("--queue", is_flag=True, help="Wait in line where it runs already, instead of being refused.")
@app.timeout_option("Of this execution; else the pipe's own (exit 7).")
@click.option("--context", metavar="JSON|@FILE|-", help="An object for the prompt; of an array one execution for each.")
@app.no_autostart_option
def run_pipe(invocation: Invocation, name: str, no_wait: bool, context: str | None, **asked: Any) -> int:
    """Run a pipe by hand and follow its output; exits 0 completed, 1 failed or cancelled, 7 timed out.

    The agent's text goes to stdout, its complaints and all notices to stderr; on a pipe byte for byte. With --json
    the final execution is one document. Ctrl-C ends the following only: the execution goes on.

    $ pxctl pipe run disk-digest --no-wait -q    # prints the execution's id
    """
    name = bare_name("pipe", name)
    invocation.action = f"run pipe:{name}"
    asked["context"] = None if context is None else read_json(read_argument(context), "--context")
    client = app.waking_client(invocation)
    with invocation.detaching(f"detached before the daemon answered; pipe:{name} may run: pxctl pipe queue"):
        execution = client.ask("POST", route("pipe", name, "run"), content=asked, timeout=None)
    if "executions" in execution:
        invocation.print_rows(execution, execution["executions"], "id", _RUN_COLUMNS, "nothing was queued")
        return max(map(executions.exit_code_of, filter(executions.is_final, execution["executions"])), default=Exit.OK)
    return _finish(invocation, client, execution, no_wait)


@app.declare(pipe, "retry", "retry execution {execution}")
@_execution
@app.no_wait_option
def retry_execution(invocation: Invocation, execution: str, no_wait: bool) -> int:
    """Queue an execution again, as a new one with what its pipe says now, and follow it; exits as `pipe run` does.

    $ pxctl pipe retry 12
    """
    client = invocation.client()
    target = executions.route_of(executions.find_execution(client, execution), "retry")
    again = client.ask("POST", target, content={}, timeout=None)
    invocation.action = f"run pipe:{again.get('pipe_name')}"
    return _finish(invocation, client, again, no_wait)


@app.declare(pipe, "cancel", "cancel {targets}")
@click.argument("targets", nargs=-1, required=True, metavar="ID|PIPE...", shell_complete=app.execution_names)
def cancel_executions(invocation: Invocation, targets: tuple[str, ...]) -> int:
    """Cancel executions, waiting or running; returns when nothing of them is left (TERM, its grace, KILL).

    $ pxctl pipe cancel 12 disk-digest    # of a pipe what runs and waits
    """
    client = invocation.client()
    numbers = [f"execution:{target}" for target in targets if target.isdecimal()]
    names = [target for target in targets if not target.isdecimal()]

    def cancel(unit: str) -> Document:
        if unit.startswith("pipe:"):
            return client.ask("POST", route("pipe", unit, "cancel"), content={}, timeout=None)
        found = executions.find_execution(client, unit.removeprefix("execution:"))
        return {"executions": [client.ask("POST", executions.route_of(found, "cancel"), timeout=None)]}

    def words(unit: str, document: Document) -> str:
        lines = [f"{executions.title_of(one)} {one.get('status')}" for one in document["executions"]]
        return "\n".join(lines) or f"{unit}: nothing runs and nothing waits"

    units = numbers + (units_of(client, "pipe", names) if names else [])
    return change_each(invocation, "cancel", units, cancel, words, bare=True)


_QUEUE_COLUMNS = [
    Column("ID", "id"),
    Column("PIPE", "pipe_name", minimum=10),
    state_column("status", "STATUS"),
    Column("POSITION", "position", 2, right=True),
    Column("GROUP", "group", 4),
    Column("SLOTS", "slots", 6, right=True),
    Column("TRIGGER", "trigger", 5),
    Column("SINCE", lambda one: ago(one.get("started_at") or one.get("queued_at")), 3),
    Column("NOT BEFORE", lambda one: ago(one.get("not_before")), 7),
]


@app.declare(pipe, "queue", "read the queue")
def show_queue(invocation: Invocation) -> None:
    """Show what runs and what waits in line, by group: its slots, and each one's position."""
    answer = invocation.client().get("/api/pipes/queue")
    rows = [
        {**one, "slots": f"{len(group['running'])}/{group.get('slots')}"}
        for group in answer.get("groups", [])
        for one in [*group["running"], *group["waiting"]]
    ]
    invocation.print_rows(answer, rows, "id", _QUEUE_COLUMNS, "nothing runs and nothing waits")


@app.declare(pipe, "runs", "list the executions")
@click.argument("name", metavar="[PIPE]", required=False, shell_complete=app.pipe_names)
@click.option("--pipe", metavar="P", shell_complete=app.pipe_names, help="The same as PIPE.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(executions.STATUSES), help="Only these; again.")
@click.option("--since", metavar="T", help="Queued since a time (RFC 3339, 16:00, today) or an age (90s, 10m, 2h, 1d).")
@click.option("-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The newest N.")
@click.option("--cursor", type=click.IntRange(min=0), metavar="C", help="Go on behind a page: its next_cursor.")
def list_runs(
    invocation: Invocation, name: str | None, statuses: tuple[str, ...], since: str | None, **asked: Any
) -> None:
    """List executions, newest first, without their output.

    $ pxctl pipe runs disk-digest --status failed --status timed_out --since 7d
    """
    named = name or asked.pop("pipe")
    target = route("pipe", named, "executions") if named else "/api/executions"
    filters = [("status", status) for status in statuses]
    answer = invocation.client().get(query(target, [*filters, ("since", since_when(since)), *asked.items()]))
    rows, following = answer.get("executions", []), answer.get("next_cursor")
    invocation.print_rows(answer, rows, "id", _RUN_COLUMNS, "no such executions")
    if following is not None and not invocation.json:
        invocation.notice(f"… more: --cursor {following}")


@app.declare(pipe, "output", "read the output of {execution}")
@_execution
@click.option("--stderr", is_flag=True, help="What came on stderr.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
def print_output(invocation: Invocation, execution: str, stderr: bool, offset: int, limit: int | None) -> None:
    """Print an execution's stdout, or its stderr, complete; byte for byte on a pipe.

    $ pxctl pipe output disk-digest > report.txt    # of its newest execution
    """
    stream, client = "stderr" if stderr else "stdout", invocation.client()
    found = executions.find_execution(client, execution)
    outlet, content = Outlet(invocation, "stdout"), b""
    for page in pages(client, executions.route_of(found, "output"), stream, offset, limit):
        if invocation.json:
            content += page.content
        else:
            outlet.put(page.content)
    if invocation.json:
        document = {"schema": "px.execution-output/1", "execution": found.get("id"), "stream": stream, "offset": offset}
        document |= {"pipe_name": found.get("pipe_name"), "total_bytes": page.total}
        document |= {"complete": page.complete, "truncated": page.truncated}
        try:
            invocation.print_json({**document, "text": content.decode()})
        except UnicodeDecodeError:
            invocation.print_json({**document, "base64": binascii.b2a_base64(content, newline=False).decode()})
        return
    outlet.close_line()
    if page.truncated and not page.content:
        invocation.warn(f"pxctl: {page.end} of {page.total} bytes were kept (pipes.output_file_bytes)")
    elif not page.complete:
        invocation.notice(f"pxctl: {page.end} of {page.total} bytes so far; go on with --offset {page.end}")


@app.declare(pipe, "tail", "read the output of {execution}")
@_execution
@click.option("-f", "--follow", "goes_on", is_flag=True, help="Go on to its end; survives a restart of the daemon.")
def tail_execution(invocation: Invocation, execution: str, goes_on: bool) -> None:
    """Show an execution's streams from the beginning, live with -f; of a pipe, its newest one.

    Ctrl-C ends the looking only. With --json -f, events as they come, one a line; without -f the row with its text.

    $ pxctl pipe tail -f disk-digest    # its newest execution, to the end
    """
    client = invocation.client()
    found = executions.find_execution(client, execution)
    if not goes_on and invocation.json:
        invocation.print_json(client.get(f"/api/executions/{found.get('id')}"))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if goes_on and invocation.json:
            for event in executions.execution_events(client, found):
                invocation.print(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        elif goes_on:
            invocation.notice(f"pxctl: {executions.sentence(executions.follow_execution(invocation, found))}")
        else:
            with Screen(invocation, f"pipe:{found.get('pipe_name')}") as screen:
                for stream in STREAMS:
                    for page in pages(client, executions.route_of(found, "output"), stream):
                        screen.put(stream, page.content)
            if found.get("truncated"):
                invocation.warn(executions.NOT_KEPT)
            if not executions.is_final(found):
                invocation.notice(f"pxctl: {executions.sentence(found)}; go on: pxctl pipe tail -f {found.get('id')}")
