"""`pxctl tools remove`: a tool and its folder."""

from __future__ import annotations

import click

from pxctl.asking import confirm_removal
from pxctl.client import query
from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.naming import tool_name, tool_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "remove",
    effect="modifying: deletes the tool's folder",
    examples=["pxctl tools remove my-tool", "pxctl tools remove my-tool --yes --force"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Stop it first when it runs.")
def command(invocation: Invocation, tool: str, yes: bool, force: bool) -> None:
    """Remove a tool from the catalog, with its folder. Asks on a terminal; elsewhere --yes is needed."""
    name = tool_name(tool)
    invocation.action = f"remove tool:{name}"
    if not yes:
        confirm_removal(invocation, f"tool:{name}", f"pxctl tools remove {name} --yes")
    answer = invocation.client().ask(
        "DELETE", query(tool_route(tool), [("force", True if force else None)]), timeout=120.0
    )
    if invocation.json:
        document = answer.document or {"schema": "px.removed/1", "unit": f"tool:{name}", "removed": True}
        invocation.document(document)
    else:
        invocation.say(name if invocation.quiet else f"tool:{name} removed")
