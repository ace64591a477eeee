"""`pxctl daemon reload`: settings and tools again."""

from __future__ import annotations

from pxctl.commanding import declare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "reload",
    effect="modifying: takes over changed settings; broken ones are refused and the old ones kept",
    examples=["pxctl daemon reload", "pxctl config check && pxctl daemon reload"],
)
def command(invocation: Invocation) -> None:
    """Read settings and tools again; says what changed and what needs a restart."""
    invocation.action = "reload the settings"
    answer = invocation.client().ask("POST", "/api/daemon/reload")
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    for warning in answer.document.get("warnings") or []:
        invocation.warn(f"warning: {warning}")
    if invocation.quiet:
        return
    changed = answer.document.get("changed") or []
    for line in changed:
        invocation.say(f"changed: {line}")
    for line in answer.document.get("needs_restart") or []:
        invocation.say(f"needs `pxctl daemon restart`: {line}")
    if not changed:
        invocation.say("reloaded; nothing changed")
