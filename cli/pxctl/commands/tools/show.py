"""`pxctl tools show`: one tool of the catalog."""

from __future__ import annotations

import json

import click

from pxctl.commanding import READS, declare
from pxctl.completing import tool_names
from pxctl.naming import tool_route, unit_of
from pxctl.printing import print_facts, print_table
from pxctl.table import Cell, Column

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_COLUMNS = [Column("INPUT"), Column("TYPE", rank=1), Column("DEFAULT", rank=2), Column("MEANING", rank=3, minimum=16)]


@declare(
    "show", effect=READS, examples=["pxctl tools show lorenz-ode-solver", "pxctl tools show lorenz-ode-solver --json"]
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def command(invocation: Invocation, tool: str) -> None:
    """Show one tool: its inputs, limits and settings; with --json its manifest and schemas, too."""
    invocation.action = f"show {unit_of(tool)}"
    answer = invocation.client().get(tool_route(tool))
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    if invocation.quiet:
        invocation.say(str(answer.document.get("name")))
        return
    print_facts(invocation, _facts(answer.document))
    rows = _inputs(answer.document.get("input_schema"))
    if rows:
        invocation.say("")
        print_table(invocation, _COLUMNS, rows)


def _facts(tool: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (key, str(tool[key]))
        for key in ("name", "title", "version", "description", "dialect", "state", "folder")
        if tool.get(key)
    ]
    if tool.get("pinned"):
        facts.append(("pinned", "yes"))
    limits = tool.get("limits")
    if isinstance(limits, dict):
        facts += [(key, _short(value)) for key, value in limits.items() if value is not None]
    facts += [("warning", str(warning)) for warning in tool.get("warnings") or []]
    if tool.get("config_error"):
        facts.append(("broken", str(tool["config_error"])))
    return facts


def _inputs(schema: Any) -> list[list[Cell]]:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return []
    required = schema.get("required") or []
    rows = []
    for key, declared in schema["properties"].items():
        one = declared if isinstance(declared, dict) else {}
        default = "required" if key in required and "default" not in one else _short(one.get("default", ""))
        rows.append(
            [
                Cell(key),
                Cell(type_words(one)),
                Cell(default),
                Cell(str(one.get("description") or one.get("title") or "")),
            ]
        )
    return rows


def type_words(schema: dict[str, Any]) -> str:
    """Return the type of a value in a few words: "number", "integer | null", "a | b | c"."""
    if isinstance(schema.get("enum"), list):
        return " | ".join(_short(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {type_words(schema['items'])}"
    if kind:
        return str(kind)
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    return " | ".join(type_words(branch) for branch in branches if isinstance(branch, dict)) or "any"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
