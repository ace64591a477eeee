"""`pxctl pipe new`: a pipe to start from."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.pipes import pipe_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare("new", effect="modifying: writes a folder into the pipes directory", examples=["pxctl pipe new my-pipe"])
@click.argument("name", metavar="NAME")
def command(invocation: Invocation, name: str) -> None:
    """Write a small pipe to start from; it runs by hand only, until its schedule says otherwise."""
    name = pipe_name(name)
    invocation.action = f"make pipe:{name}"
    answer = invocation.client().ask("POST", "/api/pipes/new", content={"name": name}, timeout=120.0)
    made = answer.document.get("name") or name
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(made))
    else:
        invocation.say(f"pipe:{made} written to {answer.document.get('folder')}")
        invocation.notice(f"edit {answer.document.get('file')}, then: pxctl pipe run {made}")
