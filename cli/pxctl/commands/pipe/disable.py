"""`pxctl pipe disable`: keep schedule and events from starting pipes."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.pipe_changing import change_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "disable",
    effect="modifying: cancels what the pipe's schedule has in line, and starts nothing more",
    examples=["pxctl pipe disable disk-digest", "pxctl pipe disable 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def command(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Keep schedule and events from starting pipes, on this machine; what runs goes on."""
    return change_pipes(invocation, pipes, "disable", "disabled")
