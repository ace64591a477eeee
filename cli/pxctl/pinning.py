"""Setting and taking away pins, one request a tool."""

from __future__ import annotations

from pxctl.client import query
from pxctl.failure import OK
from pxctl.naming import expand, unit_of, unit_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pxctl.invocation import Invocation


def set_pins(invocation: Invocation, tools: Sequence[str], *, forever: bool) -> int:
    """Pin tools."""
    return _each(invocation, tools, "pin", "PUT", [("forever", forever)])


def take_pins(invocation: Invocation, tools: Sequence[str]) -> int:
    """Unpin tools."""
    return _each(invocation, tools, "unpin", "DELETE", [])


def _each(
    invocation: Invocation, tools: Sequence[str], verb: str, method: str, parameters: list[tuple[str, object]]
) -> int:
    invocation.action = f"{verb} {', '.join(unit_of(tool) for tool in tools)}"
    client = invocation.client()
    documents: list[dict[str, Any]] = []
    for unit in expand(client, [unit_of(tool) for tool in tools]):
        invocation.action = f"{verb} {unit}"
        documents.append(client.ask(method, query(unit_route(unit, "pin"), parameters)).document)
    if invocation.json:
        one = documents[0] if len(documents) == 1 else {"schema": "px.pins/1", "pins": documents}
        invocation.document(one)
        return OK
    for document in documents:
        invocation.say(str(document.get("unit")) if invocation.quiet else _sentence(document))
    return OK


def _sentence(document: dict[str, Any]) -> str:
    if not document.get("pinned"):
        return f"{document.get('unit')} not pinned"
    return f"{document.get('unit')} pinned" + (" for ever" if document.get("forever") else "")
