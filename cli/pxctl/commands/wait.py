"""`pxctl wait`: block until a unit is what it is waited for to be."""

from __future__ import annotations

import time

import click

from pxctl.client import query, quote
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.executions import await_execution, exit_code_of, find_execution, is_execution_id, newest_of, sentence
from pxctl.failure import FAILED, OK, TIMED_OUT, Failure, Interrupted, Problem, Silent, Unreachable
from pxctl.following import Patience
from pxctl.naming import unit_of
from pxctl.pipes import PREFIX as PIPE
from pxctl.seconds import SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_SLICE_SECONDS = 300.0
_SLACK_SECONDS = 15.0
_AWAY_SECONDS = 30.0
_GATEWAY_TIMEOUT = 504


@declare(
    "wait",
    effect=READS,
    examples=[
        "pxctl wait lorenz-ode-solver",
        "pxctl wait lorenz-ode-solver --for stopped --timeout 30",
        "pxctl wait pipe:disk-digest       # until nothing of it runs or waits",
        "pxctl wait 12                     # an execution",
    ],
)
@click.argument("unit", metavar="UNIT|EXECUTION", shell_complete=unit_names)
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped", "done"]),
    help="What to wait for; else ready, of a pipe done.",
)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after S seconds (exit 7).")
def command(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Block until a unit is ready, stopped or done; exits with the outcome: 0 as wanted, 1 not, 7 timed out.

    An execution, and what runs and waits of a pipe, is waited for until it is over; exits 0 completed, 1 failed or
    cancelled, 7 timed out. A restart of the daemon's control plane meanwhile does not end the waiting.
    """
    number = is_execution_id(unit)
    invocation.action = f"wait for {'execution ' if number else ''}{unit}"
    try:
        return _one(invocation, unit, timeout) if number else _unit(invocation, unit, wanted, timeout)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: no longer waiting; {unit} goes on as it is")
        raise Silent(FAILED) from None


def _one(invocation: Invocation, number: str, timeout: float | None) -> int:
    """Wait for an execution."""
    client = invocation.client()
    execution = await_execution(client, find_execution(client, number), timeout)
    if invocation.json:
        invocation.document(execution)
    else:
        line = f"{PIPE}{execution.get('pipe_name')} {sentence(execution)}"
        invocation.say(str(execution.get("id")) if invocation.quiet else line)
    return exit_code_of(execution)


def _unit(invocation: Invocation, unit: str, wanted: str | None, timeout: float | None) -> int:
    """Wait for a unit; of a pipe the outcome is that of its newest execution."""
    goal = wanted or ("done" if unit.startswith(PIPE) else "ready")
    document = _await(invocation, unit, goal, timeout)
    is_pipe = str(document.get("unit")).startswith(PIPE)
    if is_pipe and wanted is None and goal != "done":
        goal = "done"
        document = _await(invocation, str(document.get("unit")), goal, timeout)
    newest = newest_of(invocation.client(), str(document["unit"]).removeprefix(PIPE)) if is_pipe else None
    if invocation.json:
        invocation.document(document if newest is None else {**document, "execution": newest})
    elif invocation.quiet:
        invocation.say(str(document.get("unit")))
    else:
        reason = f" ({document['reason']})" if document.get("reason") else ""
        last = f"; {sentence(newest)}" if newest is not None else ""
        invocation.say(f"{document.get('unit')} {document.get('state')}{reason}{last}")
    if goal == "done" and newest is not None:
        return exit_code_of(newest)
    return OK if document.get("ok") else FAILED


def _await(invocation: Invocation, unit: str, wanted: str, timeout: float | None) -> dict[str, Any]:
    """Ask in slices, so that neither a long wait nor a restart of the control plane needs a connection that lasts."""
    client, patience = invocation.client(), Patience(_AWAY_SECONDS)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        part = min(left, _SLICE_SECONDS)
        target = query(f"/api/units/{quote(unit)}/wait", [("for", wanted), ("timeout", round(part, 3))])
        try:
            document: dict[str, Any] = client.get(target, timeout=part + _SLACK_SECONDS).document
            return document
        except Problem as problem:
            if problem.status != _GATEWAY_TIMEOUT:
                patience.bear(problem)
            patience.met()
            if deadline is not None and time.monotonic() >= deadline:
                raise _too_late(problem.unit or unit_of(unit), wanted, timeout) from problem
        except (Interrupted, Unreachable) as failure:
            patience.bear(failure)
            if deadline is not None and time.monotonic() >= deadline:
                raise _too_late(unit_of(unit), wanted, timeout) from failure


def _too_late(unit: str, wanted: str, timeout: float | None) -> Failure:
    return Failure(
        f"it is not {wanted} after {timeout:g} s",
        kind="timed_out",
        hint=f"pxctl why {unit}",
        exit_code=TIMED_OUT,
        unit=unit,
        status=_GATEWAY_TIMEOUT,
    )
