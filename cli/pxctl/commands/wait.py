"""`pxctl wait`: block until a unit is what it is waited for to be."""

from __future__ import annotations

import time

import click

from pxctl.client import query, quote
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.failure import FAILED, OK, TIMED_OUT, Failure, Interrupted, Problem, Silent, Unreachable
from pxctl.following import Patience
from pxctl.naming import unit_of
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
    ],
)
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "stopped", "done"]),
    default="ready",
    show_default=True,
    help="What to wait for.",
)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up after S seconds (exit 7).")
def command(invocation: Invocation, unit: str, wanted: str, timeout: float | None) -> int:
    """Block until a unit is ready, stopped or done; exits with the outcome: 0 as wanted, 1 not, 7 timed out.

    A restart of the daemon's control plane meanwhile does not end the waiting.
    """
    invocation.action = f"wait for {unit}"
    try:
        document = _await(invocation, unit, wanted, timeout)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: no longer waiting; {unit} goes on as it is")
        raise Silent(FAILED) from None
    if invocation.json:
        invocation.document(document)
    elif invocation.quiet:
        invocation.say(str(document.get("unit")))
    else:
        reason = f" ({document['reason']})" if document.get("reason") else ""
        invocation.say(f"{document.get('unit')} {document.get('state')}{reason}")
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
