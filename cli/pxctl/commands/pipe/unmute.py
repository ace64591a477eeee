"""`pxctl pipe unmute`: let failure hooks speak."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.pipe_changing import change_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "unmute",
    effect="modifying: the pipe's failure hooks are called again",
    examples=["pxctl pipe unmute disk-digest", "pxctl pipe unmute 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def command(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Let the failure hooks of pipes speak again."""
    return change_pipes(invocation, pipes, "unmute", "unmuted")
