"""`pxctl tools debug`: walk the failure table of CONTRACT §8."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.naming import tool_route, unit_of
from pxctl.spinner import Spinner
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "debug",
    effect="modifying: may start an instance of the tool for a probe and stop it again",
    examples=["pxctl tools debug lorenz-ode-solver", "pxctl tools debug lorenz-ode-solver --json"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def command(invocation: Invocation, tool: str) -> None:
    """Find out why a tool fails: each known case with the evidence found and the one next step."""
    invocation.action = f"debug {unit_of(tool)}"
    with Spinner(unit_of(tool), lambda: "looking…", on=invocation.err_is_terminal and not invocation.quiet):
        answer = invocation.client().ask("POST", tool_route(tool, "debug"), timeout=None)
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for case in answer.document.get("cases") or []:
            if case.get("found"):
                invocation.say(str(case.get("case")))
    else:
        for line in _lines(invocation, answer.document):
            invocation.say(line)


def _lines(invocation: Invocation, document: dict[str, Any]) -> list[str]:
    paint = invocation.paint
    lines = []
    for case in document.get("cases") or []:
        if not case.get("found"):
            lines.append(paint(clean(f"no     {case.get('case')}"), "dim"))
            continue
        lines.append(paint("FOUND", "red") + clean(f"  {case.get('case')}"))
        lines += [f"       {clean(line)}" for line in _texts(case.get("evidence"))]
        if case.get("next_step"):
            lines.append(f"       next: {clean(str(case['next_step']))}")
    if document.get("verdict"):
        lines += ["", paint("verdict:", "bold") + f" {clean(str(document['verdict']))}"]
    return lines


def _texts(evidence: Any) -> list[str]:
    match evidence:
        case None:
            return []
        case list():
            return [line for one in evidence for line in str(one).splitlines()]
        case dict():
            return [f"{key}: {value}" for key, value in evidence.items()]
        case _:
            return str(evidence).splitlines()
