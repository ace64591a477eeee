"""`pxctl events`, `why`, `wait`: what happened to a unit, and what comes of it.

Ctrl-C ends the looking and the waiting, never what is looked at.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import click

from pxctl import executions, output
from pxctl.app import Invocation, declare, root, timeout_option, unit_names
from pxctl.client import (
    SLACK_SECONDS,
    Client,
    Document,
    Exit,
    Failure,
    folder_for,
    of_unit,
    of_units,
    usage,
)
from pxctl.streams import ask_until, events_of, since_when

EVENT_WORDS = (
    "starting", "spawned", "ready", "adopted", "stopping", "stopped", "start_failed", "died",
    "interrupted", "survivors", "unassigned", "log_degraded", "log_recovered", "run", "run_failed",
    "runtime_limit", "unresponsive", "responsive", "schema_drift", "plain_port", "pinned",
    "unpinned", "removed", "preparing", "prepared", "prepare_failed", "recycled",
    "interrupted_cell", "cell_failed", "pipe_added", "pipe_changed", "pipe_broken", "pipe_mended",
    "pipe_removed", "pipe_installed", "pipe_enabled", "pipe_disabled", "execution_queued",
    "execution_started", "execution_adopted", "execution_settled", "execution_completed",
    "execution_cancelled", "execution_failed", "execution_timed_out", "control_started",
    "daemon_stopping", "reloaded", "reload_refused", "rolled_back", "keeper_lost",
    "ledger_degraded", "ledger_recovered", "ledger_damaged", "ledger_missing", "ledger_rebuilt",
    "ledger_rows_unreadable", "ledger_wishes_lost",
)  # fmt: skip
"""What an event can be called; the daemon has the same list, with what each of them is."""


def _event_words(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    return [word for word in EVENT_WORDS if word.startswith(incomplete)]


@declare(root, "events", "read the events")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on as things happen; survives a restart of the control plane.",
)
@click.option(
    "--unit",
    multiple=True,
    metavar="U",
    shell_complete=unit_names,
    help="Of units: names, quoted globs.",
)
@click.option(
    "--event",
    multiple=True,
    metavar="E",
    shell_complete=_event_words,
    help="With these words or globs.",
)
@click.option("--failed", is_flag=True, help="Deaths, failed starts and runs, limits.")
@click.option("--since", metavar="T", help="From a time or an age on, as 16:00, yesterday, 2h.")
@click.option("--until", metavar="T", help="Up to a time or an age.")
@click.option(
    "-n",
    "--lines",
    "limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Begin with the latest N.",
)
def show_events(invocation: Invocation, **asked: Any) -> None:
    """Show what happened: one line an event, with --json one NDJSON document an event.

    Without --since and -n it is the newest 1,000; a note says when there are more. --unit pxd is
    the daemon.

    $ pxctl events --failed --since yesterday
    $ pxctl events -f --unit compound-interest
    $ pxctl events --event 'died' --event 'start*' --unit 'tool:*'
    """
    asked["since"] = since_when(asked["since"])
    asked["until"] = since_when(asked["until"], "--until")
    if asked["follow"] and asked["until"]:
        raise usage("--follow has no end, and --until is one", "pxctl events --help")
    asked["failed"] = asked["failed"] or None
    asked["cwd"] = folder_for(asked["unit"])
    is_limited = asked["limit"] is not None
    is_complete = True
    oldest: str | None = None

    def note_whether_complete(fields: Mapping[str, str]) -> None:
        nonlocal is_complete
        is_complete = fields.get("x-complete") != "false"

    with contextlib.suppress(KeyboardInterrupt):
        for line, event in events_of(
            invocation.client(), "/api/events", asked, note_whether_complete
        ):
            oldest = oldest or event.get("time")
            if invocation.json:
                output.write(line + b"\n")
            elif event["event"] == "gap":
                invocation.warn(f"pxctl: {event['missed']} events were missed here")
            else:
                invocation.print(
                    event["id"] if invocation.quiet else _event_line(invocation, event)
                )
    if not is_complete and not is_limited:
        more = f"pxctl events --until {oldest}, or --since T, or -n N"
        invocation.notice(f"pxctl: these are the newest; there are older ones: {more}")


def _event_line(invocation: Invocation, event: Document) -> str:
    known = {"id", "time", "unit", "event", "reason", "instance", "cause", "schema", "digest"}
    told = {
        key: value
        for key, value in event.items()
        if key not in known and value not in (None, [], {}, "")
    }
    facts = [
        f"{key}={it if isinstance(it, str) else json.dumps(it, ensure_ascii=False)}"
        for key, it in told.items()
    ]
    reason = [f"({event['reason']})"] if event["reason"] else []
    words = [
        invocation.moment(event["time"]),
        event["unit"] or "pxd",
        event["event"],
        *reason,
        *facts,
    ]
    return output.clean("  ".join(words))


@declare(root, "why", "explain {unit}")
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
def explain(invocation: Invocation, unit: str) -> None:
    """Explain a unit's state: what led to it, its last words, what to do."""
    client = invocation.client()
    try:
        document = client.get(of_unit(unit, "why"))
    except Failure as failure:
        executions.explain_number(client, failure, unit, "pxctl pipe show")
        raise
    if invocation.print_result(document, [document.get("unit")]):
        return
    start = f"{document['unit']} is {document['state']}"
    reason = f" ({document['reason']})" if document["reason"] else ""
    invocation.print(invocation.paint(start + reason, "bold"))
    invocation.print(output.clean(document["summary"].removeprefix(f"{start}: ")))
    if chain := document.get("chain"):
        events = (f"  {_event_line(invocation, event)}" for event in chain)
        invocation.print("", "What happened, oldest first:", *events)
    death = document.get("last_death")
    if death and death["id"] not in {event["id"] for event in document.get("chain") or []}:
        invocation.print(
            "", "The last time that it ended badly:", f"  {_event_line(invocation, death)}"
        )
    if tail := (document.get("stderr_tail") or "").rstrip():
        invocation.print(
            "",
            "Its last words on stderr:",
            *(f"  {output.clean(line)}" for line in tail.splitlines()),
        )
    if document.get("next_step"):
        step = invocation.complete(document["next_step"])
        invocation.print("", invocation.paint("next:", "bold") + f" {step}")


@declare(root, "wait", "wait for {unit}")
@click.argument("unit", metavar="UNIT|EXECUTION", shell_complete=unit_names)
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped", "done"]),
    help="Default: ready; for a pipe: done.",
)
@timeout_option()
def wait_for(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Block until a unit is ready, stopped or done; exits with the outcome: 0 as wanted, 1 not, 7
    timed out.

    With an execution id or a pipe, waits until it has finished, also over a restart of the control
    plane. It never starts a unit.

    $ pxctl wait compound-interest --for stopped --timeout 30
    """
    client, execution = invocation.client(), None
    with (
        invocation.detaching(f"no longer waiting; {unit} goes on as it is"),
        invocation.spinner(unit, f"waiting until it is {wanted or 'ready'}…"),
    ):
        if unit.isdecimal():
            found = executions.find_execution(client, unit)
            document = execution = executions.await_execution(client, found, timeout)
            name, words = f"pipe:{execution.get('pipe_name')}", executions.sentence(execution)
        else:
            goal = wanted or _goal_of(invocation, client, unit)

            def target(seconds: float) -> str:
                return of_unit(unit, "wait", ("for", goal), ("timeout", round(seconds, 3)))

            document = ask_until(client, target, timeout, slack=SLACK_SECONDS)
            name, words = str(document.get("unit")), str(document.get("state"))
            words += f" ({document['reason']})" if document.get("reason") else ""
            if goal == "done" and (execution := executions.newest_of(client, name)) is not None:
                document, words = (
                    {**document, "execution": execution},
                    f"{words}; {executions.sentence(execution)}",
                )
    invocation.show(document, [unit if unit.isdecimal() else name], f"{name} {words}")
    if execution is not None:
        return executions.exit_code_of(execution)
    return Exit.OK if document.get("ok") else Exit.FAILED


def _goal_of(invocation: Invocation, client: Client, unit: str) -> str:
    """Return what is waited for where nothing was said; of what is not up, say that waiting
    starts nothing.
    """
    found: Document = {}
    with contextlib.suppress(Failure):  # what is wrong with the name is said by the wait itself
        found = client.get(of_units("/api/status", "unit", [unit]))["units"][0]
    if found.get("state") in {"cold", "stopped"}:
        name = found.get("unit")
        invocation.notice(
            f"pxctl: {name} is not up, and waiting does not start it: pxctl start {name}"
        )
    return "done" if unit.startswith("pipe:") or found.get("kind") == "pipe" else "ready"
