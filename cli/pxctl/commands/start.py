"""`pxctl start`: warm up units."""

from __future__ import annotations

import click

from pxctl.client import query
from pxctl.commanding import declare
from pxctl.completing import unit_names
from pxctl.naming import unit_route
from pxctl.pipes import PREFIX as PIPE
from pxctl.pipes import run_in_background
from pxctl.seconds import SECONDS
from pxctl.steering import Act, steer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

_SLACK_SECONDS = 15.0
"""How much longer than its own limit the daemon may take to answer."""


def start_act(timeout: float | None, *, wait: bool) -> Act:
    """Return the act of starting one unit."""

    def step(client: Client, unit: str) -> dict[str, Any]:
        if unit.startswith(PIPE):
            return run_in_background(client, unit)
        target = query(unit_route(unit, "start"), [("timeout", timeout), ("wait", None if wait else False)])
        limit = None if timeout is None else timeout + _SLACK_SECONDS
        document: dict[str, Any] = client.ask("POST", target, timeout=limit).document
        return document

    return Act("start", "starting", step, waits=wait)


@declare(
    "start",
    effect="modifying: starts the unit's process and keeps it warm",
    examples=[
        "pxctl start lorenz-ode-solver",
        "pxctl start 'tool:*' --timeout 60",
        "pxctl start lorenz-ode-solver --no-wait",
        "pxctl start pipe:disk-digest",
    ],
)
@click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the start is under way.")
def command(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Warm up units; returns when they are ready. A pipe is run in the background: returns when it is queued.

    Ctrl-C ends the waiting only: the start goes on.
    """
    return steer(invocation, units, start_act(timeout, wait=not no_wait))
