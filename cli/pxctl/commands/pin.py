"""`pxctl pin`: exempt tools from eviction."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.pinning import set_pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "pin",
    effect="modifying: a pin lasts until `pxctl unpin`, also over restarts of everything",
    examples=["pxctl pin lorenz-ode-solver", "pxctl pin --forever lorenz-ode-solver text-stats"],
)
@click.argument("tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names)
@click.option("--forever", is_flag=True, help="Exempt from its time to live, too.")
def command(invocation: Invocation, tools: tuple[str, ...], forever: bool) -> int:
    """Exempt tools from being evicted for room; their time to live still applies unless --forever."""
    return set_pins(invocation, tools, forever=forever)
