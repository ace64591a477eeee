"""`pxctl restart`: stop and start units."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.commands.start import start_act
from pxctl.commands.stop import stop_act
from pxctl.completing import unit_names
from pxctl.failure import Failure
from pxctl.naming import unit_route
from pxctl.pipes import PREFIX as PIPE
from pxctl.pipes import refuse_restart
from pxctl.seconds import SECONDS
from pxctl.steering import Act, steer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation


def restart_act(timeout: float | None, *, wait: bool) -> Act:
    """Return the act of replacing one unit's instance. The stop is always waited for: two at once help nobody."""
    stop, start = stop_act(timeout, wait=True), start_act(timeout, wait=wait)

    def step(client: Client, unit: str) -> dict[str, Any]:
        if unit.startswith(PIPE):
            raise refuse_restart(unit)
        if unit.startswith("kernel:") and wait:
            return _replace_kernel(client, unit, timeout)
        stop.step(client, unit)
        return start.step(client, unit)

    return Act("restart", "restarting", step, waits=wait)


def _replace_kernel(client: Client, unit: str, timeout: float | None) -> dict[str, Any]:
    """Have a session's kernel replaced in one go, so that calls in line are kept."""
    try:
        kernel = client.ask("POST", unit_route(unit, "restart"), timeout=timeout).document
    except Failure as failure:
        if failure.kind == "timed_out" and timeout is not None:
            failure.detail = f"it is not ready after {timeout:g} s; the restart goes on"
            failure.hint = f"pxctl wait {unit}"
        raise
    return {"units": [{**kernel, "unit": unit}]}


@declare(
    "restart",
    effect="modifying: replaces the unit's instance by a new one",
    examples=["pxctl restart lorenz-ode-solver", "pxctl restart 'tool:web*' --timeout 60"],
)
@click.argument("units", nargs=-1, required=True, metavar="UNIT...", shell_complete=unit_names)
@click.option("--timeout", type=SECONDS, metavar="S", help="Limit of the stop, and of the start (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the new start is under way.")
def command(invocation: Invocation, units: tuple[str, ...], timeout: float | None, no_wait: bool) -> int:
    """Stop units and start them anew; returns when they are ready."""
    return steer(invocation, units, restart_act(timeout, wait=not no_wait))
