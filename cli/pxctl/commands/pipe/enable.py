"""`pxctl pipe enable`: let schedule and events start pipes."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.pipe_changing import change_pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "enable",
    effect="modifying: schedule and events start the pipe from now on, on this machine",
    examples=["pxctl pipe enable disk-digest", "pxctl pipe enable 'daily-*'"],
)
@click.argument("pipes", nargs=-1, required=True, metavar="NAME...", shell_complete=pipe_names)
def command(invocation: Invocation, pipes: tuple[str, ...]) -> int:
    """Let schedule and events start pipes, on this machine; the file keeps what it says."""
    return change_pipes(invocation, pipes, "enable", "enabled")
