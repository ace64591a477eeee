"""`pxctl pipe …`: pipes, listed, shown, checked, made, changed; and their executions, run,
followed, read.
"""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from typing import Any

import click

from pxctl import app, executions, output
from pxctl.app import Invocation, declare
from pxctl.client import Client, Document, Exit, Failure, bare_name, query, route, units_of, usage
from pxctl.coerce import read_argument, read_json
from pxctl.commands.units import change_each
from pxctl.output import Cell, Column, ago, clean, state_column, with_broken
from pxctl.reasons import ERROR_TYPES
from pxctl.streams import STREAMS, Outlet, Screen, harmless, pages, since_when, waking_client

pipe = app.PxGroup(
    "pipe",
    "Pipes: agents that run on a schedule, on events or by hand.",
    "disk-digest",
    examples=(
        "pxctl pipe add example:disk-digest",
        "pxctl pipe run disk-digest",
        "pxctl pipe enable disk-digest",
    ),
)
_pipe = click.argument("name", metavar="NAME", shell_complete=app.pipe_names)
_pipes = click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=app.pipe_names
)


def _remark(pipe: Document) -> Cell:
    if pipe.get("config_error"):
        # The row says which pipe it is; a narrow terminal has no room to say it again.
        return "broken: " + str(pipe["config_error"]).removeprefix(f"{pipe.get('folder')}/"), "red"
    remarks = list(pipe.get("warnings") or [])
    if pipe.get("waits_for"):
        remarks.insert(0, str(pipe["waits_for"]))
    if pipe.get("running") is not None:
        remarks.insert(0, f"execution {pipe['running']}")
        return "; ".join(remarks), "yellow" if len(remarks) > 1 else None
    return "; ".join(remarks), "yellow"


_COLUMNS = [
    Column("PIPE", "name"),
    state_column(),
    Column("SCHEDULE", "schedule", 4, minimum=10),
    Column("NEXT RUN", lambda pipe: ago(pipe.get("next_run")), 2),
    Column("LAST RUN", lambda pipe: ago(pipe.get("last_run")), 5),
    state_column("last_status", "LAST STATUS", 3),
    Column("QUEUED", "queued", 8, right=True, is_count=True),
    Column(
        "FAILURES",
        lambda pipe: (pipe.get("consecutive_failures"), "red"),
        7,
        right=True,
        is_count=True,
    ),
    Column("REMARK", _remark, 6, minimum=12),
]


@declare(pipe, "list", "list the pipes")
def list_pipes(invocation: Invocation) -> None:
    """List the pipes with schedule, next and last run; one that cannot run with its error."""
    answer = invocation.client().get("/api/pipes")
    none = "no pipes yet; add one: pxctl pipe add example:disk-digest"
    invocation.print_rows(answer, with_broken(answer.get("pipes", [])), "name", _COLUMNS, none)


@declare(pipe, "show", "show {name}")
@click.argument("name", metavar="NAME|ID", shell_complete=app.execution_names)
@click.option("--rendered", is_flag=True, help="Only the prompt, with its five facts.")
def show_pipe(invocation: Invocation, name: str, rendered: bool) -> None:
    """Show a pipe, its prompt, or one execution; with --json everything that is known of it.

    $ pxctl pipe show disk-digest --rendered    # the prompt as the agent would get it now
    """
    is_execution = name.isdecimal()
    target = (
        f"/api/executions/{name}"
        if is_execution
        else query(route("pipe", name), [("rendered", rendered or None)])
    )
    document = invocation.client().get(target)
    if rendered and not invocation.json:
        prompt = str(document.get("rendered_prompt" if is_execution else "rendered") or "")
        output.write(harmless(prompt) if invocation.out_is_terminal else prompt)
    elif not invocation.print_result(document, [document.get("id" if is_execution else "name")]):
        invocation.print_members(*with_broken([document]), cost=executions.cost_of(document))


@declare(pipe, "validate", "validate {names}")
@_pipes
def validate_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Check pipes: front matter, schedule, agent, presets and more; exits 0 on pass and warn, 1 on
    fail.

    Each finding has its line in pipe.md and its cure. Nothing is run.

    $ pxctl pipe validate '*'
    """
    client = invocation.client()
    units = units_of(client, "pipe", names)
    found = [client.ask("POST", route("pipe", unit, "validate"), timeout=None) for unit in units]
    is_ok = all(one.get("ok") for one in found)
    result = (
        found[0]
        if len(found) == 1
        else {"schema": "px.pipe-validations/1", "ok": is_ok, "pipes": found}
    )
    is_told = invocation.print_result(result, (one.get("pipe") for one in found))
    for one in [] if is_told else found:
        invocation.print(f"pipe:{one['pipe']}: {'pass' if one['ok'] else 'fail'}")
        for check in one["checks"]:
            where = f"pipe.md:{check['line']}: " if check.get("line") else ""
            cure = (
                check["verdict"] in {"warn", "fail"}
                and check.get("hint")
                and f"cure: {check['hint']}"
            )
            invocation.print_check(
                check["verdict"], f"{check['name']}: {where}{check['detail']}", cure
            )
    return Exit.OK if is_ok else Exit.FAILED


@declare(pipe, "new", "make pipe:{name}")
@click.argument("name", metavar="NAME")
@click.option(
    "--command", metavar="CMD", help="A program instead of an agent; gets the prompt on stdin."
)
def new_pipe(invocation: Invocation, name: str, command: str | None) -> None:
    """Write a small pipe to start from; it runs by hand only, until its schedule says otherwise.

    $ pxctl pipe new my-pipe
    $ pxctl pipe new nightly --command 'rsync -a src/ backup/'
    """
    name = bare_name("pipe", name)
    content = {"name": name, "command": command}
    if made := invocation.add("pipe", "/api/pipes/new", content, "written to {folder}"):
        invocation.notice(f"edit {made.get('file')}, then: pxctl pipe run {name}")


@declare(pipe, "add", "add {source}")
@click.argument("source", metavar="PATH|URL|example:NAME", shell_complete=app.example_pipes)
@click.option("--name", metavar="N", help="Another name than the source's own.")
def add_pipe(invocation: Invocation, source: str, name: str | None) -> None:
    """Install a pipe: checked first, whole or not at all, and disabled until `pxctl pipe enable`
    says otherwise.

    $ pxctl pipe add example:disk-digest
    $ pxctl pipe add https://example.org/pipes/triage/pipe.md --name triage
    """
    content = {"source": source, "name": name}
    if found := invocation.add("pipe", "/api/pipes", content, "added in {folder}, disabled"):
        steps = ("look at it", "show"), ("try it", "run"), ("let it start by itself", "enable")
        invocation.notice(*(f"{words}: pxctl pipe {verb} {found['name']}" for words, verb in steps))


@declare(pipe, "remove", "remove {name}")
@_pipe
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_pipe(invocation: Invocation, name: str, yes: bool) -> None:
    """Remove a pipe with its folder, its output included; what runs of it is cancelled.

    Its executions stay in the ledger. Asks on a terminal; elsewhere give --yes.
    """
    # of a glob, too: it is said before it is done
    name = str(invocation.client().get(route("pipe", name)).get("name"))
    invocation.remove(f"pipe:{name}", f"pxctl pipe remove {name} --yes", route("pipe", name), yes)


@declare(pipe, "config", "change pipe:{name}")
@_pipe
@click.argument(
    "values", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=app.pipe_keys
)
def config_pipe(invocation: Invocation, name: str, values: tuple[str, ...]) -> None:
    """Change keys of a pipe's front matter. VALUE is JSON where it reads as such, else text; empty
    removes the key.

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
    answer = invocation.client().ask(
        "POST", route("pipe", name, "config"), content=changes, timeout=60.0
    )
    words = ", ".join(
        f"{key} {'removed' if value is None else 'set'}" for key, value in changes.items()
    )
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
        if trouble := pipe.get("config_error"):
            return f"{unit} enabled; it cannot run until this is mended: {trouble}"
        return f"{unit} enabled" + (
            f"; next run {ago(pipe['next_run'])}" if pipe.get("next_run") else ""
        )

    return change_each(invocation, verb, units_of(client, "pipe", names), change, words)


@declare(pipe, "enable", "enable {names}")
@_pipes
def enable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Let schedule and events start pipes, on this machine; the file keeps what it says."""
    return _change(invocation, names, "enable")


@declare(pipe, "disable", "disable {names}")
@_pipes
def disable_pipes(invocation: Invocation, names: tuple[str, ...]) -> int:
    """Keep schedule and events from starting pipes; what runs goes on, what waits is cancelled.

    It holds on this machine; the file keeps what it says.
    """
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
        invocation.print(
            f"last decision, {ago(decision.get('at'))}: {clean(str(decision.get('text')))}"
        )


# -- executions ------------------------------------------------------------------------------------

_execution = click.argument("execution", metavar="ID|PIPE", shell_complete=app.execution_names)


def _error(execution: Document) -> Cell:
    """Say why an execution failed, or what went wrong in one that did not."""
    message = execution.get("error_message") or execution.get("error_type")
    if message:
        return str(message), None
    return "; ".join(execution.get("warnings") or []), "yellow"


_RUN_COLUMNS = [
    Column("ID", "id"),
    Column("PIPE", "pipe_name", minimum=10),
    state_column("status", "STATUS"),
    Column("TRIGGER", "trigger", 6),
    Column("QUEUED", lambda one: ago(one.get("queued_at")), 2),
    Column("TOOK", executions.took, 4, right=True),
    Column(
        "TOKENS",
        lambda one: f"{one['tokens']:,}" if one.get("tokens") is not None else "",
        7,
        right=True,
    ),
    Column("COST", executions.cost_of, 8, right=True),
    Column(
        "AGENT",
        lambda one: " ".join(str(one[key]) for key in ("agent", "model") if one.get(key)),
        9,
        minimum=10,
    ),
    Column("RETRY OF", "retry_of", 10, right=True),
    Column("ERROR", _error, 3, minimum=14),
]


def _finish(invocation: Invocation, client: Client, execution: Document, no_wait: bool) -> int:
    """Follow an execution to its end and return 0 when it completed; `no_wait`: only say where it
    is.

    A next try that begins at once (the next preset of the pipe's list) is followed, too, and its
    outcome counts; one that comes later is only named. Under `--json` the last row is one document;
    under `-q` its id is all.
    """
    successor = None
    while not no_wait:
        number, title = execution["id"], executions.title_of(execution)
        advice = f"hint: pxctl pipe tail -f {number}; to end it: pxctl pipe cancel {number}"
        with invocation.detaching(f"detached; {title} goes on\n{advice}"):
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
    code = executions.exit_code_of(execution) if executions.is_final(execution) else Exit.OK
    if not invocation.json:
        invocation.print_warnings(execution)
    if invocation.json:
        invocation.print_json(execution)
        return code
    if invocation.quiet and (code == Exit.OK or not no_wait):
        invocation.print(execution["id"])
    if code != Exit.OK:
        raise executions.failure_of(execution, successor)
    if not no_wait:
        invocation.notice(
            f"pxctl: {executions.title_of(execution)}: completed, {executions.took(execution)}"
        )
    elif not invocation.quiet:
        where = executions.where_it_is(execution) or execution["status"]
        invocation.print(f"{executions.title_of(execution)}: {where}")
    return Exit.OK


@declare(pipe, "run")
@click.argument("name", metavar="NAME", shell_complete=app.pipe_names)
@app.no_wait_option
@click.option(
    "--queue", is_flag=True, help="Wait in line where it runs already, instead of being refused."
)
@app.timeout_option("Limit of this execution (exit 7; default: the pipe's own).")
@click.option(
    "--context",
    metavar="JSON|@FILE|-",
    shell_complete=app.file_after_at,
    help="An object for the prompt; of an array one execution for each.",
)
@click.option("--advance", is_flag=True, help="Move the time range on, as a scheduled run does.")
@app.no_autostart_option
def run_pipe(
    invocation: Invocation, name: str, no_wait: bool, context: str | None, **asked: Any
) -> int:
    """Run a pipe by hand and follow its output; exits 0 completed, 1 failed or cancelled, 7 timed
    out.

    The agent's text goes to stdout, its complaints and all notices to stderr; on a pipe byte for
    byte. With --json the final execution is one document. Ctrl-C ends the following only: the
    execution goes on.

    $ pxctl pipe run disk-digest --no-wait -q    # prints the execution's id
    """
    name = bare_name("pipe", name)
    invocation.action = f"run pipe:{name}"
    if asked["timeout"] == 0:
        raise usage(
            "--timeout must be a number of seconds above 0", f"pxctl pipe run {name} --timeout 600"
        )
    asked["context"] = None if context is None else read_json(read_argument(context), "--context")
    client = waking_client(invocation)
    with invocation.detaching(
        f"detached before the daemon answered; pipe:{name} may run: pxctl pipe queue"
    ):
        execution = client.ask("POST", route("pipe", name, "run"), content=asked, timeout=None)
    if "executions" in execution:
        invocation.print_rows(
            execution, execution["executions"], "id", _RUN_COLUMNS, "nothing was queued"
        )
        return max(
            map(executions.exit_code_of, filter(executions.is_final, execution["executions"])),
            default=Exit.OK,
        )
    return _finish(invocation, client, execution, no_wait)


@declare(pipe, "retry", "retry execution {execution}")
@_execution
@app.no_wait_option
@click.option("--queue", is_flag=True, help="Wait in line where its pipe runs already.")
def retry_execution(invocation: Invocation, execution: str, no_wait: bool, queue: bool) -> int:
    """Queue an execution again; with what its pipe says now, as a new one.

    It is followed to its end, and the exit code is that of `pipe run`.

    $ pxctl pipe retry 12
    $ pxctl pipe runs triage --status failed -q | xargs -n1 pxctl pipe retry --queue --no-wait
    """
    client = invocation.client()
    target = executions.route_of(executions.find_execution(client, execution), "retry")
    again = client.ask("POST", target, content={"queue": True} if queue else {}, timeout=None)
    invocation.action = f"run pipe:{again.get('pipe_name')}"
    return _finish(invocation, client, again, no_wait)


@declare(pipe, "cancel", "cancel {targets}")
@click.argument(
    "targets", nargs=-1, required=True, metavar="ID|PIPE...", shell_complete=app.execution_names
)
def cancel_executions(invocation: Invocation, targets: tuple[str, ...]) -> int:
    """Cancel executions, waiting or running; returns when nothing of them is left (TERM, its grace,
    KILL).

    $ pxctl pipe cancel 12 disk-digest    # of a pipe what runs and waits
    """
    client = invocation.client()
    numbers = [f"execution:{target}" for target in targets if target.isdecimal()]
    names = [target for target in targets if not target.isdecimal()]

    def cancel(unit: str) -> Document:
        if unit.startswith("pipe:"):
            return client.ask("POST", route("pipe", unit, "cancel"), content={}, timeout=None)
        found = executions.find_execution(client, unit.removeprefix("execution:"))
        return {
            "executions": [client.ask("POST", executions.route_of(found, "cancel"), timeout=None)]
        }

    def words(unit: str, document: Document) -> str:
        lines = [
            f"{executions.title_of(one)} {one.get('status')}" for one in document["executions"]
        ]
        return "\n".join(lines) or f"{unit}: nothing runs and nothing waits"

    units = numbers + (units_of(client, "pipe", names) if names else [])
    return change_each(invocation, "cancel", units, cancel, words)


_QUEUE_COLUMNS = [
    *_RUN_COLUMNS[:3],
    Column("POSITION", "position", 2, right=True),
    Column("GROUP", "group", 4),
    Column("SLOTS", "slots", 6, right=True),
    Column("TRIGGER", "trigger", 5),
    Column("SINCE", lambda one: ago(one.get("started_at") or one.get("queued_at")), 3),
    Column("NOT BEFORE", lambda one: ago(one.get("not_before")), 7),
    Column("WAITS FOR", "waits_for", 1, minimum=14),
]


@declare(pipe, "queue", "read the queue")
def show_queue(invocation: Invocation) -> None:
    """Show what runs and what waits in line, by group: its slots, and each one's position."""
    answer = invocation.client().get("/api/pipes/queue")
    rows = [
        {**one, "slots": f"{len(group['running'])}/{group.get('slots')}"}
        for group in answer.get("groups", [])
        for one in [*group["running"], *group["waiting"]]
    ]
    invocation.print_rows(answer, rows, "id", _QUEUE_COLUMNS, "nothing runs and nothing waits")


def _checked_error_type(word: str) -> str:
    """Return the word where it is an error type; Failure: the nearest one, and all that there
    are.
    """
    known = [meaning.word for meaning in ERROR_TYPES]
    if word in known:
        return word
    near = get_close_matches(word.lower(), known, 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise usage(f"--error-type: {word!r} is no error type{guess}", f"one of {', '.join(known)}")


@declare(pipe, "runs", "list the executions")
@click.argument("name", metavar="[PIPE]", required=False, shell_complete=app.pipe_names)
@click.option("--pipe", metavar="P", shell_complete=app.pipe_names, help="The same as PIPE.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(executions.STATUSES),
    help="Repeatable.",
)
@click.option(
    "--error-type",
    "error_types",
    multiple=True,
    metavar="E",
    help="Such as rate_limited. Repeatable.",
)
@click.option("--agent", metavar="A", help="Of an agent.")
@click.option("--preset", metavar="P", help="With a preset.")
@click.option(
    "--since",
    metavar="T",
    help="Queued since a time (RFC 3339, 16:00, today) or an age (90s, 10m, 2h, 1d).",
)
@click.option("--until", metavar="T", help="Queued before a time or an age.")
@click.option(
    "-n", "--lines", "limit", type=click.IntRange(min=1), metavar="N", help="The newest N."
)
@click.option(
    "--cursor",
    type=click.IntRange(min=0),
    metavar="C",
    help="Go on behind a page: its next_cursor.",
)
def list_runs(
    invocation: Invocation,
    name: str | None,
    statuses: tuple[str, ...],
    error_types: tuple[str, ...],
    since: str | None,
    until: str | None,
    **asked: Any,
) -> None:
    """List executions, newest first, without their output.

    A glob lists those of several pipes, also of pipes that are gone.

    $ pxctl pipe runs disk-digest --status failed --status timed_out --since 7d
    """
    named = asked.pop("pipe")
    if name and named and name != named:
        raise usage(f"two pipes are named, {name!r} and {named!r}", f"pxctl pipe runs {name}")
    named = name or named
    target = route("pipe", named, "executions") if named else "/api/executions"
    filters: list[tuple[str, str | None]] = [("status", status) for status in statuses]
    filters += [("error_type", _checked_error_type(error)) for error in error_types]
    if named and any(each in named for each in "*?["):
        target = "/api/executions"
        filters.append(("pipe", named))
    filters += [("since", since_when(since)), ("until", since_when(until, "--until"))]
    answer = invocation.client().get(query(target, [*filters, *asked.items()]))
    rows, following = answer.get("executions", []), answer.get("next_cursor")
    invocation.print_rows(answer, rows, "id", _RUN_COLUMNS, "no such executions")
    if following is not None and not invocation.json:
        invocation.notice(f"… more: --cursor {following}")


def _last_lines(text: bytes, count: int) -> bytes:
    """Return the last lines of a text; one that is not ended counts."""
    return b"".join(text.splitlines(keepends=True)[-count:]) if count else b""


@declare(pipe, "output", "read the output of {execution}")
@_execution
@click.option("--stderr", is_flag=True, help="What came on stderr.")
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most N bytes (default: all there are).",
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines."
)
def print_output(
    invocation: Invocation,
    execution: str,
    stderr: bool,
    offset: int,
    limit: int | None,
    lines: int | None,
) -> None:
    """Print an execution's stdout, or its stderr, complete; byte for byte on a pipe.

    $ pxctl pipe output disk-digest > report.txt    # of its newest execution
    $ pxctl pipe output 12 --stderr -n 20
    """
    stream, client = "stderr" if stderr else "stdout", invocation.client()
    found = executions.find_execution(client, execution)
    outlet, text = Outlet(invocation, "stdout"), b""
    for page in pages(client, executions.route_of(found, "output"), stream, offset, limit):
        if lines is not None:
            text = _last_lines(text + page[0], lines)
        elif invocation.json:
            text += page[0]
        else:
            outlet.put(page[0])
    content, end, known = page
    if lines is not None and not invocation.json:
        outlet.put(text)
    if invocation.json:
        of = {
            "execution": found["id"],
            "pipe_name": found["pipe_name"],
            "stream": stream,
            "offset": offset,
        }
        head = {"schema": "px.execution-output/1", **of, **known}
        invocation.print_json({**head, "text": text.decode("utf-8", "replace")})
        return
    outlet.close_line()
    if known["truncated"] and not content:
        invocation.warn(f"{executions.NOT_KEPT}; these are {end} bytes")
    elif not known["complete"]:
        invocation.notice(
            f"pxctl: {end} of {known['total_bytes']} bytes so far; go on with --offset {end}"
        )


@declare(pipe, "tail", "read the output of {execution}")
@_execution
@click.option(
    "-f",
    "--follow",
    "goes_on",
    is_flag=True,
    help="Go on to its end; survives a restart of the daemon.",
)
def tail_execution(invocation: Invocation, execution: str, goes_on: bool) -> None:
    """Show an execution's streams from the beginning, live with -f; of a pipe, its newest one.

    Ctrl-C ends the looking only. With --json, events as they come, one a line, to the end.

    $ pxctl pipe tail -f disk-digest    # its newest execution, to the end
    """
    client = invocation.client()
    found = executions.find_execution(client, execution)
    with contextlib.suppress(KeyboardInterrupt):
        if invocation.json:
            for line, _ in executions.execution_events(client, found):
                output.write(line + b"\n")
        elif goes_on:
            invocation.notice(
                f"pxctl: {executions.sentence(executions.follow_execution(invocation, found))}"
            )
        else:
            with Screen(invocation, f"pipe:{found['pipe_name']}") as screen:
                for stream in STREAMS:
                    for content, _, _ in pages(
                        client, executions.route_of(found, "output"), stream
                    ):
                        screen.put(stream, content)
            if found.get("truncated"):
                invocation.warn(executions.NOT_KEPT)
            if not executions.is_final(found):
                invocation.notice(
                    f"pxctl: {executions.sentence(found)}; go on: pxctl pipe tail -f {found['id']}"
                )
