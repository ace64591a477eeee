"""`pxctl pipe run`, `queue`, `runs` and what else concerns executions."""

from __future__ import annotations

import click

from pxctl import output, terminal
from pxctl.app import READS, SECONDS, declare
from pxctl.batch import one_by_one, request, tell
from pxctl.client import bare_name, bare_names, route
from pxctl.coerce import CannotRead, read_json
from pxctl.completion import execution_ids, execution_names, pipe_names
from pxctl.execution_follow import NOT_KEPT, ExecutionView, Following, follow, let_go, queue_once, watch
from pxctl.executions import (
    FINAL,
    PREFIX,
    STATUSES,
    error_word,
    execution_route,
    find_execution,
    is_execution_id,
    money,
    read_pages,
    required_id,
    sentence,
    took,
)
from pxctl.failure import FAILED, OK, Silent, usage
from pxctl.follow import pages, print_event, print_pages, show
from pxctl.output import BY_STATE, Cell, Column, print_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.batch import Outcome
    from pxctl.client import Client


@declare(
    "run",
    effect="modifying: runs the pipe's agent as you, and starts the daemon when it is not there",
    examples=[
        "pxctl pipe run disk-digest",
        "pxctl pipe run disk-digest --no-wait -q      # prints the execution's id",
        "pxctl pipe run disk-digest --queue           # wait in line where it runs already",
        "pxctl pipe run triage --context '{\"issue\": 12}' --timeout 600",
        "pxctl pipe run triage --json > execution.json",
    ],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option("--no-wait", is_flag=True, help="Return once it is queued.")
@click.option("--queue", is_flag=True, help="Wait in line where it runs already, instead of being refused.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Of this execution; else the pipe's own (exit 7).")
@click.option("--context", metavar="JSON|@FILE|-", help="An object that the prompt shows to the agent.")
@click.option("--no-autostart", is_flag=True, help="Do not start the daemon when it is not there.")
def run_pipe(
    invocation: Invocation,
    pipe: str,
    no_wait: bool,
    queue: bool,
    timeout: float | None,
    context: str | None,
    no_autostart: bool,
) -> int:
    """Run a pipe and follow its output to the end; exits 0 completed, 1 failed or cancelled, 7 timed out.

    The agent's text goes to stdout, its complaints and all notices to stderr; on a pipe byte for byte. With --json
    the final execution is one document. Ctrl-C ends the following only: the execution goes on.
    """
    name = bare_name("pipe", pipe)
    invocation.action = f"run pipe:{name}"
    asked = {"context": _context(context), "queue": queue or None, "timeout": timeout}
    content = {key: value for key, value in asked.items() if value is not None}
    client = invocation.waking_client(autostart=not no_autostart)
    execution = _queued(invocation, client, name, content)
    invocation.notices(execution.get("warnings"))
    return let_go(invocation, execution) if no_wait else watch(invocation, client, execution)


def _queued(invocation: Invocation, client: Client, name: str, content: dict[str, Any]) -> dict[str, Any]:
    try:
        return queue_once(client, route("pipe", name, "run"), content)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached before the daemon answered; pipe:{name} may run: pxctl pipe queue")
        raise Silent(FAILED) from None


def _context(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        found = read_json(_content_of(given), "--context")
    except CannotRead as error:
        raise usage(str(error), "pxctl pipe run --help") from error
    except OSError as error:
        raise usage(f"cannot read {given.removeprefix('@')}: {error.strerror}", "pxctl pipe run --help") from error
    if not isinstance(found, dict):
        raise usage("--context must be a JSON object", "pxctl pipe run --help")
    return found


def _content_of(given: str) -> str | bytes:
    if given == "-":
        return terminal.read_input()
    if not given.startswith("@"):
        return given
    with open(given[1:], "rb") as file:
        return file.read()


_COLUMNS = [
    Column("ID"),
    Column("PIPE", minimum=10),
    Column("STATUS", rank=1),
    Column("POSITION", rank=2, right=True),
    Column("GROUP", rank=4),
    Column("SLOTS", rank=6, right=True),
    Column("TRIGGER", rank=5),
    Column("SINCE", rank=3),
    Column("NOT BEFORE", rank=7),
]


@declare("queue", effect=READS, examples=["pxctl pipe queue", "pxctl pipe queue --json", "pxctl pipe queue -q"])
def show_queue(invocation: Invocation) -> None:
    """Show what runs and what waits in line, by group: its slots, and each one's position."""
    invocation.action = "read the queue"
    answer = invocation.client().get("/api/pipes/queue")
    listed = list(_executions(answer.document))
    if invocation.told(answer, (execution.get("id") for _, execution in listed)):
        return
    if listed:
        print_table(invocation, _COLUMNS, [_row(slots, one, invocation.now()) for slots, one in listed])
    else:
        invocation.notice("nothing runs and nothing waits")


def _executions(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the slots of a group in words, and each of its executions."""
    for group in document.get("groups", []):
        running, waiting = group.get("running") or [], group.get("waiting") or []
        slots = f"{len(running)}/{group.get('slots')}"
        for execution in [*running, *waiting]:
            yield slots, execution


def _row(slots: str, execution: dict[str, Any], now: float) -> list[Cell]:
    status = str(execution.get("status"))
    since = execution.get("started_at") or execution.get("queued_at")
    later = output.epoch(execution.get("not_before"))
    return [
        Cell(str(execution.get("id"))),
        Cell(str(execution.get("pipe_name"))),
        Cell(status, BY_STATE.get(status)),
        Cell(str(execution["position"]) if execution.get("position") else ""),
        Cell(str(execution.get("group") or "")),
        Cell(slots),
        Cell(str(execution.get("trigger") or "")),
        Cell("" if since is None else output.ago(since, now)),
        Cell(output.ago(execution["not_before"], now) if later is not None and later > now else ""),
    ]


_runs_COLUMNS = [
    Column("ID"),
    Column("PIPE", minimum=10),
    Column("STATUS", rank=1),
    Column("TRIGGER", rank=6),
    Column("QUEUED", rank=2),
    Column("TOOK", rank=4, right=True),
    Column("TOKENS", rank=7, right=True),
    Column("COST", rank=8, right=True),
    Column("AGENT", rank=9, minimum=10),
    Column("RETRY OF", rank=10, right=True),
    Column("ERROR", rank=3, minimum=14),
]
_DEFAULT = 50


@declare(
    "runs",
    effect=READS,
    examples=[
        "pxctl pipe runs",
        "pxctl pipe runs disk-digest --status failed --status timed_out --since 7d",
        "pxctl pipe runs --pipe disk-digest -n 1 -q    # the newest one's id",
        "pxctl pipe runs --all --json > executions.json",
    ],
)
@click.argument("names", nargs=-1, metavar="[PIPE]...", shell_complete=pipe_names)
@click.option(
    "--pipe", "pipes", multiple=True, metavar="P", shell_complete=pipe_names, help="Only of this pipe; again."
)
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; again.")
@click.option("--since", metavar="T", help="Queued at or after a time (RFC 3339) or an age (90s, 10m, 2h, 1d).")
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
    """List executions, newest first, without their output."""
    invocation.action = "list the executions"
    client = invocation.client()
    wanted = bare_names(client, "pipe", (*names, *pipes))
    most = limit if limit is not None else None if everything else _DEFAULT
    filters = [*(("status", status) for status in statuses), ("since", since), ("until", until)]
    executions, next_cursor = read_pages(client, filters, wanted, most, cursor)
    told = {"schema": "px.executions/1", "executions": executions, "next_cursor": next_cursor}
    if invocation.told(told, (execution.get("id") for execution in executions)):
        return
    if executions:
        print_table(invocation, _runs_COLUMNS, [_runs_row(execution, invocation.now()) for execution in executions])
    else:
        invocation.notice("no such executions")
    if next_cursor is not None:
        invocation.notice(f"… more: --cursor {next_cursor}, or --all")


def _runs_row(execution: dict[str, Any], now: float) -> list[Cell]:
    status = str(execution.get("status"))
    tokens, cost = execution.get("tokens"), execution.get("cost")
    error = [error_word(execution), str(execution.get("error_message") or "")]
    return [
        Cell(str(execution.get("id"))),
        Cell(str(execution.get("pipe_name"))),
        Cell(status, BY_STATE.get(status)),
        Cell(str(execution.get("trigger") or "")),
        Cell(output.ago(execution.get("queued_at"), now)),
        Cell(took(execution)),
        Cell(f"{tokens:,}" if tokens else ""),
        Cell(money(cost) if cost else ""),
        Cell(" ".join(str(execution[key]) for key in ("agent", "model") if execution.get(key))),
        Cell(str(execution.get("retry_of") or "")),
        Cell(": ".join(word for word in error if word), BY_STATE.get(status)),
    ]


@declare(
    "output",
    effect=READS,
    examples=[
        "pxctl pipe output 12",
        "pxctl pipe output disk-digest > report.txt    # of its newest execution",
        "pxctl pipe output 12 --stderr --offset 0 --limit 10000",
        "pxctl pipe output 12 --events                 # the agent's own event lines",
    ],
)
@click.argument("execution", metavar="ID|PIPE", shell_complete=execution_names)
@click.option("--stderr", is_flag=True, help="What came on stderr.")
@click.option("--events", is_flag=True, help="The agent's own event lines, where it writes any.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
def print_output(
    invocation: Invocation,
    execution: str,
    stderr: bool,
    events: bool,
    offset: int,
    limit: int | None,
) -> None:
    """Print the stdout of an execution, or its stderr, complete; byte for byte on a pipe."""
    invocation.action = f"read the output of {execution}"
    if stderr and events:
        raise usage("--stderr and --events exclude each other", f"pxctl pipe output {execution} --stderr")
    stream = "stderr" if stderr else "events" if events else "stdout"
    client = invocation.client()
    found = find_execution(client, execution)
    found_pages = pages(client, execution_route(found, "output"), [("stream", stream)], offset, limit)
    place = {"execution": found.get("id"), "pipe_name": found.get("pipe_name"), "stream": stream}
    print_pages(invocation, found_pages, offset, {"schema": "px.execution-output/1", **place})


@declare(
    "tail",
    effect=READS,
    examples=[
        "pxctl pipe tail -f disk-digest    # its newest execution, to the end",
        "pxctl pipe tail 12                # what there is now",
        "pxctl pipe tail -f 12 --json",
    ],
)
@click.argument("execution", metavar="ID|PIPE", shell_complete=execution_names)
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on to its end; survives a restart of the daemon.")
def tail_execution(invocation: Invocation, execution: str, follows: bool) -> int:
    """Show both streams of an execution from the beginning; of a pipe, its newest one.

    Ctrl-C ends the looking only. With --json -f, events as they come, one a line; without -f the row with its text.
    """
    invocation.action = f"read the output of {execution}"
    client = invocation.client()
    found = find_execution(client, execution)
    try:
        if not follows:
            _show_now(invocation, client, found)
        elif invocation.json:
            _print_events(invocation, found)
        else:
            invocation.notice(f"pxctl: {sentence(follow(invocation, found))}")
    except KeyboardInterrupt:
        return OK
    return OK


def _print_events(invocation: Invocation, found: dict[str, Any]) -> None:
    for event in Following(invocation, found).events():
        print_event(invocation, event)


def _show_now(invocation: Invocation, client: Client, found: dict[str, Any]) -> None:
    target = execution_route(found, "output")
    if invocation.json:
        invocation.document(client.get(execution_route(found)))
        return
    last = show(invocation, pages(client, target, [("stream", "stdout")], 0, None))
    is_cut = last is not None and last.truncated
    with ExecutionView(invocation, found) as view:
        for page in pages(client, target, [("stream", "stderr")], 0, None):
            view.show({"event": "output", "stream": "stderr", "bytes": page.content})
            is_cut = is_cut or page.truncated
    if is_cut:
        invocation.warn(NOT_KEPT)
    if found.get("status") not in FINAL:
        invocation.notice(f"pxctl: {sentence(found)}; go on: pxctl pipe tail -f {found.get('id')}")


@declare(
    "retry",
    effect="modifying: queues a new execution with what its pipe says now",
    examples=["pxctl pipe retry 12", "pxctl pipe retry 12 --no-wait"],
)
@click.argument("execution", metavar="ID", shell_complete=execution_ids)
@click.option("--no-wait", is_flag=True, help="Return once it is queued.")
def retry_execution(invocation: Invocation, execution: str, no_wait: bool) -> int:
    """Queue an execution that is over again, as a new one, and follow it to its end; exits as `pipe run` does."""
    number = required_id(execution)
    invocation.action = f"retry execution {number}"
    client = invocation.client()
    again = queue_once(client, execution_route(find_execution(client, number), "retry"), {})
    invocation.action = f"run pipe:{again.get('pipe_name')}"
    return let_go(invocation, again) if no_wait else watch(invocation, client, again)


_EXECUTION = "execution "


@declare(
    "cancel",
    effect="modifying: takes executions out of line, and ends the process trees of those that run",
    examples=[
        "pxctl pipe cancel 12",
        "pxctl pipe cancel disk-digest    # what runs and waits of it",
        "pxctl pipe cancel --all",
    ],
)
@click.argument("targets", nargs=-1, metavar="[ID|PIPE]...", shell_complete=execution_names)
@click.option("--all", "everything", is_flag=True, help="All that run and wait.")
def cancel_executions(invocation: Invocation, targets: tuple[str, ...], everything: bool) -> int:
    """Cancel executions; returns when nothing of them is left (TERM, its grace, KILL)."""
    invocation.action = f"cancel {', '.join(targets) or 'all executions'}"
    if everything == bool(targets):
        raise usage("name executions or pipes, or --all", "pxctl pipe queue")
    client = invocation.client()
    numbers = [target for target in targets if is_execution_id(target)]
    names = bare_names(client, "pipe", [target for target in targets if not is_execution_id(target)])
    if everything:
        groups = client.get("/api/pipes/queue").document.get("groups", [])
        listed = [one for group in groups for part in ("waiting", "running") for one in group.get(part) or []]
        names = list(dict.fromkeys(str(one.get("pipe_name")) for one in listed))
    numbered = [f"{_EXECUTION}{number}" for number in numbers]
    outcomes = one_by_one(invocation, "cancel", numbered, lambda unit: _cancel(client, unit))
    if names:
        outcomes += request(invocation, client, "stop", [f"{PREFIX}{name}" for name in names], None)

    def executions(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for document in documents for one in document.get("executions", [])]

    def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
        return {"schema": "px.executions/1", "executions": executions(documents), "next_cursor": None}

    def say(_: Outcome, document: dict[str, Any]) -> None:
        for one in executions([document]):
            name = f"{PREFIX}{one.get('pipe_name')} execution {one.get('id')}"
            invocation.say(str(one.get("id")) if invocation.quiet else f"{name} {one.get('status')}")

    code = tell(invocation, outcomes, merged, say)
    documents = [outcome.document for outcome in outcomes if outcome.document is not None]
    if not executions(documents) and code == OK and not invocation.json:
        invocation.notice("nothing runs and nothing waits")
    return code


def _cancel(client: Client, unit: str) -> dict[str, Any]:
    found = find_execution(client, unit.removeprefix(_EXECUTION))
    return {"executions": [client.ask("POST", execution_route(found, "cancel"), timeout=None).document]}
