"""`pxctl pipe mute`: silence failure hooks."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.pipe_changing import change_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "mute",
    effect="modifying: the pipe's failure hooks are not called any more",
    examples=["pxctl pipe mute disk-digest", "pxctl pipe mute 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def command(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Silence the failure hooks of pipes; executions and their rows stay as they are."""
    return change_pipes(invocation, pipes, "mute", "muted")
