"""`pxctl pipe cancel`: cancel executions, waiting or running."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import execution_names
from pxctl.executions import execution_route, find_execution, is_execution_id
from pxctl.failure import OK, USAGE, Failure
from pxctl.pipes import PREFIX, pipe_names, pipe_route
from pxctl.steering import Act, attempt_all, report_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation
    from pxctl.steering import Outcome

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
def command(invocation: Invocation, targets: tuple[str, ...], everything: bool) -> int:
    """Cancel executions; returns when nothing of them is left (TERM, its grace, KILL)."""
    invocation.action = f"cancel {', '.join(targets) or 'all executions'}"
    if everything == bool(targets):
        raise Failure("name executions or pipes, or --all", kind="usage", hint="pxctl pipe queue", exit_code=USAGE)
    client = invocation.client()
    subjects = _subjects(client, targets) if targets else _everything(client)
    outcomes = attempt_all(invocation, client, subjects, Act("cancel", "being cancelled", _cancel, waits=True))
    return _tell(invocation, outcomes)


def _subjects(client: Client, targets: tuple[str, ...]) -> list[str]:
    numbers = [f"{_EXECUTION}{target}" for target in targets if is_execution_id(target)]
    names = pipe_names(client, [target for target in targets if not is_execution_id(target)])
    return list(dict.fromkeys([*numbers, *(f"{PREFIX}{name}" for name in names)]))


def _everything(client: Client) -> list[str]:
    """Return what waits before what runs, so that no freed slot lets in what is to be cancelled next."""
    groups = client.get("/api/pipes/queue").document.get("groups", [])
    listed = [one for part in ("waiting", "running") for group in groups for one in group.get(part) or []]
    return [f"{_EXECUTION}{one.get('id')}" for one in listed]


def _cancel(client: Client, subject: str) -> dict[str, Any]:
    if subject.startswith(PREFIX):
        document: dict[str, Any] = client.ask("POST", pipe_route(subject, "cancel"), timeout=None).document
        return document
    found = find_execution(client, subject.removeprefix(_EXECUTION))
    cancelled = client.ask("POST", execution_route(found, "cancel"), timeout=None).document
    return {"executions": [cancelled]}


def _tell(invocation: Invocation, outcomes: list[Outcome]) -> int:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures and len(outcomes) == 1:
        raise failures[0]
    cancelled = [one for outcome in outcomes for one in (outcome.document or {}).get("executions", [])]
    if invocation.json:
        told: dict[str, Any] = {"schema": "px.executions/1", "executions": cancelled, "next_cursor": None}
        if failures:
            told["failures"] = [failure.document() for failure in failures]
        invocation.document(told)
        return failures[0].exit_code if failures else OK
    for one in cancelled:
        name = f"{PREFIX}{one.get('pipe_name')} {_EXECUTION}{one.get('id')}"
        invocation.say(str(one.get("id")) if invocation.quiet else f"{name} {one.get('status')}")
    if not cancelled and not failures:
        invocation.notice("nothing runs and nothing waits")
    return report_all(invocation, failures)
