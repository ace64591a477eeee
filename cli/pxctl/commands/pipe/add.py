"""`pxctl pipe add`: a pipe from a folder, a file, an https address or an example."""

from __future__ import annotations

import os
import re

import click

from pxctl.commanding import declare
from pxctl.spinner import Spinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_EXAMPLE = "example:"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""A source that is no path, as no example is one; the daemon says which of them it takes."""


@declare(
    "add",
    effect="modifying: copies a pipe into the pipes directory; it is disabled there",
    examples=[
        "pxctl pipe add example:disk-digest",
        "pxctl pipe add ./my-pipe --name other-name",
        "pxctl pipe add https://example.org/pipes/triage/pipe.md --name triage",
    ],
)
@click.argument("source", metavar="PATH|URL|example:NAME", type=click.Path())
@click.option("--name", metavar="N", help="Another name than the source's own.")
def command(invocation: Invocation, source: str, name: str | None) -> None:
    """Install a pipe: checked first, whole or not at all, and disabled until `pxctl pipe enable` says otherwise."""
    invocation.action = f"add {source}"
    if not (source.startswith(_EXAMPLE) or _ADDRESS.match(source)):
        source = os.path.abspath(os.path.expanduser(source))
    content = {"source": source} | ({"name": name} if name else {})
    with Spinner(source, lambda: "adding…", on=invocation.err_is_terminal and not invocation.quiet):
        answer = invocation.client().ask("POST", "/api/pipes", content=content, timeout=None)
    found, folder = answer.document.get("name"), answer.document.get("folder")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(found))
    else:
        invocation.say(f"pipe:{found} added" + (f" in {folder}" if folder else "") + ", disabled")
        for warning in answer.document.get("warnings") or []:
            invocation.notice(f"warning: {warning}")
        invocation.notice(f"look at it: pxctl pipe show {found}; try it: pxctl pipe run {found}")
        invocation.notice(f"let its schedule start it: pxctl pipe enable {found}")
