"""`pxctl tools new`: a working tool to start from."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.naming import tool_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "new",
    effect="modifying: writes a folder into the tools directory",
    examples=["pxctl tools new my-tool", "pxctl tools new my-tool --template stdlib"],
)
@click.argument("name", metavar="NAME")
@click.option("--template", metavar="T", help="Which template to take; without it the standard one.")
def command(invocation: Invocation, name: str, template: str | None) -> None:
    """Write a working tool with its test request, and put it into the catalog."""
    name = tool_name(name)
    invocation.action = f"make tool:{name}"
    content = {"name": name} | ({"template": template} if template else {})
    answer = invocation.client().ask("POST", "/api/tools/new", content=content, timeout=120.0)
    folder = answer.document.get("folder")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str(answer.document.get("name") or name))
    else:
        invocation.say(f"tool:{answer.document.get('name') or name} written to {folder}")
        invocation.notice(f"try it: pxctl run {name} --input @{folder}/test-request.json")
