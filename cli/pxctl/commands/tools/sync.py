"""`pxctl tools sync`: build a tool's .venv."""

from __future__ import annotations

import json

import click

from pxctl.commanding import declare
from pxctl.completing import tool_names
from pxctl.failure import FAILED, Failure, Interrupted, Problem, Silent
from pxctl.naming import tool_route, unit_of
from pxctl.streams import split_lines
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_INTERNAL = 500


@declare(
    "sync",
    effect="modifying: builds or renews the tool's .venv",
    examples=["pxctl tools sync lorenz-ode-solver", "pxctl tools sync lorenz-ode-solver --json"],
)
@click.argument("tool", metavar="TOOL", shell_complete=tool_names)
def command(invocation: Invocation, tool: str) -> None:
    """Build the tool's .venv out of requirements.txt, pyproject.toml or the metadata in main.py.

    Progress goes to stderr; with --json every step is a line of NDJSON. Ctrl-C ends the build and clears it away.
    """
    unit = unit_of(tool)
    invocation.action = f"sync {unit}"
    fields = {"Accept": "application/x-ndjson"}
    try:
        with invocation.client().open("POST", tool_route(tool, "sync"), fields=fields, timeout=None) as exchange:
            last: dict[str, Any] = {}
            for line in split_lines(exchange.chunks()):
                last = _step(invocation, line) or last
    except KeyboardInterrupt:
        raise Failure("cancelled", kind="cancelled", unit=unit) from None
    _judge(invocation, unit, last)


def _step(invocation: Invocation, line: bytes) -> dict[str, Any]:
    if not line.strip():
        return {}
    if invocation.json:
        invocation.write(line + b"\n")
    try:
        step = json.loads(line)
    except ValueError as error:
        raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
    if not isinstance(step, dict):
        return {}
    if "progress" in step and not invocation.json:
        invocation.notice(clean(str(step["progress"])))
    return step


def _judge(invocation: Invocation, unit: str, last: dict[str, Any]) -> None:
    if last.get("done"):
        if not invocation.json:
            invocation.say(unit if invocation.quiet else f"{unit} synced")
        return
    if "detail" in last or "kind" in last:
        status = last.get("status")
        problem = Problem(status if isinstance(status, int) else _INTERNAL, last)
        if invocation.json:
            # The problem was the last line of the stream already.
            raise Silent(problem.exit_code or FAILED)
        raise problem
    raise Interrupted("it was closed before the build was done")
