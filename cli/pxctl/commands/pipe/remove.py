"""`pxctl pipe remove`: a pipe and its folder."""

from __future__ import annotations

import click

from pxctl.asking import confirm_removal
from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.pipes import exact_name, pipe_name, pipe_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "remove",
    effect="modifying: cancels what runs of the pipe and deletes its folder, its output included",
    examples=["pxctl pipe remove my-pipe", "pxctl pipe remove my-pipe --yes"],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(invocation: Invocation, pipe: str, yes: bool) -> None:
    """Remove a pipe with its folder; its executions stay in the ledger. Asks on a terminal; elsewhere give --yes."""
    invocation.action = f"remove pipe:{pipe_name(pipe)}"
    client = invocation.client()
    name = exact_name(client, pipe)
    invocation.action = f"remove pipe:{name}"
    if not yes:
        confirm_removal(invocation, f"pipe:{name}", f"pxctl pipe remove {name} --yes")
    answer = client.ask("DELETE", pipe_route(name), timeout=None)
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    else:
        invocation.say(name if invocation.quiet else f"pipe:{name} removed")
