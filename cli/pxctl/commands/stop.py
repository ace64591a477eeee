"""`pxctl stop`: stop units and say what survived."""

from __future__ import annotations

import click

from pxctl.client import query
from pxctl.commanding import declare
from pxctl.completing import unit_names
from pxctl.failure import Failure
from pxctl.naming import unit_route
from pxctl.pipes import PREFIX as PIPE
from pxctl.pipes import cancel_all_of
from pxctl.seconds import SECONDS
from pxctl.steering import Act, steer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

_LEAST_SECONDS = 0.001
"""A socket takes a timeout of 0 for "do not block"."""


def stop_act(timeout: float | None, *, wait: bool) -> Act:
    """Return the act of stopping one unit."""

    def step(client: Client, unit: str) -> dict[str, Any]:
        limit = None if timeout is None else max(timeout, _LEAST_SECONDS)
        try:
            if unit.startswith(PIPE):
                return cancel_all_of(client, unit, limit)
            target = query(unit_route(unit, "stop"), [("wait", None if wait else False)])
            document: dict[str, Any] = client.ask("POST", target, timeout=limit).document
        except Failure as failure:
            if failure.kind == "timed_out" and timeout is not None:
                failure.detail = f"something of it is left after {timeout:g} s; the stop goes on"
                failure.hint = f"pxctl wait {unit} --for stopped"
            raise
        return document

    return Act("stop", "stopping", step, waits=wait)


@declare(
    "stop",
    effect="modifying: ends the unit's whole process tree (TERM, its grace, KILL)",
    examples=["pxctl stop lorenz-ode-solver", "pxctl stop 'tool:*'", "pxctl stop lorenz-ode-solver --no-wait"],
)
@click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the stop is under way.")
def command(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units; returns when nothing of them is left.

    Of a pipe, what runs and waits is cancelled, and always waited for.
    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is fine.
    Ctrl-C ends the waiting only: the stop goes on.
    """
    return steer(invocation, units, stop_act(timeout, wait=not no_wait))
