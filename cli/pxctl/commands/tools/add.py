"""`pxctl tools add`: a tool from a folder or an example."""

from __future__ import annotations

import os

import click

from pxctl.commanding import declare
from pxctl.spinner import Spinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_EXAMPLE = "example:"


@declare(
    "add",
    effect="modifying: copies a folder into the tools directory",
    examples=[
        "pxctl tools add example:compound-interest",
        "pxctl tools add ./my-tool",
        "pxctl tools add ./my-tool --name other-name",
    ],
)
@click.argument("source", metavar="PATH|example:NAME", type=click.Path())
@click.option("--name", metavar="N", help="Another name than the source's own.")
def command(invocation: Invocation, source: str, name: str | None) -> None:
    """Add a tool to the catalog: from a folder, or one of the examples that come along."""
    invocation.action = f"add {source}"
    source = source if source.startswith(_EXAMPLE) else os.path.abspath(os.path.expanduser(source))
    content = {"source": source} | ({"name": name} if name else {})
    with Spinner(source, lambda: "adding…", on=invocation.err_is_terminal and not invocation.quiet):
        answer = invocation.client().ask("POST", "/api/tools/add", content=content, timeout=None)
    found = answer.document.get("name")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(found))
    else:
        folder = answer.document.get("folder")
        invocation.say(f"tool:{found} added" + (f" in {folder}" if folder else ""))
        for warning in answer.document.get("warnings") or []:
            invocation.notice(f"warning: {warning}")
