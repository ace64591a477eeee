"""`pxctl unpin`: take a pin away."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.pinning import take_pins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "unpin",
    effect="modifying: the tool may be evicted again",
    examples=["pxctl unpin lorenz-ode-solver", "pxctl unpin 'web*'"],
)
@click.argument("tools", nargs=-1, required=True, metavar="TOOL...", shell_complete=tool_names)
def command(invocation: Invocation, tools: tuple[str, ...]) -> int:
    """Take pins away; a tool that is not pinned is fine."""
    return take_pins(invocation, tools)
