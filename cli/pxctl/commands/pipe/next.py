"""`pxctl pipe next`: when a pipe is due next, and why."""

from __future__ import annotations

import click

from pxctl import wording
from pxctl.client import query
from pxctl.commanding import READS, declare
from pxctl.completing import pipe_names
from pxctl.pipes import PREFIX, pipe_name, pipe_route
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "next",
    effect=READS,
    examples=["pxctl pipe next disk-digest", "pxctl pipe next disk-digest -n 20", "pxctl pipe next disk-digest --json"],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option(
    "-n", "--count", type=click.IntRange(1, 50), default=5, show_default=True, metavar="N", help="Coming times."
)
def command(invocation: Invocation, pipe: str, count: int) -> None:
    """Say when a pipe is due next and why, or why it is not; and what was last decided about it.

    That it waits is no decision: a start, a skip, a run that was missed is one, and stays to be seen.
    """
    name = pipe_name(pipe)
    invocation.action = f"look ahead for pipe:{name}"
    answer = invocation.client().get(query(pipe_route(name, "next"), [("count", count)]))
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        for moment in answer.document.get("upcoming") or []:
            invocation.say(str(moment))
    else:
        for line in _lines(invocation, answer.document):
            invocation.say(line)


def _lines(invocation: Invocation, report: dict[str, Any]) -> Iterator[str]:
    schedule = f" ({report['schedule']})" if report.get("schedule") else ""
    yield invocation.paint(clean(f"{PREFIX}{report.get('name')}{schedule}"), "bold")
    for sentence in report.get("sentences") or []:
        yield clean(str(sentence))
    if decision := report.get("last_decision"):
        when = wording.ago(decision.get("at"), invocation.now())
        yield f"last decision, {when}: {clean(str(decision.get('text')))}"
    elif report.get("upcoming"):
        yield "last decision: none yet"
