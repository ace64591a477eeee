"""`pxctl pipe output`: the complete output of an execution."""

from __future__ import annotations

import click

from pxctl.commanding import READS, declare
from pxctl.completing import execution_names
from pxctl.executions import execution_route, find_execution
from pxctl.failure import USAGE, Failure
from pxctl.output_pages import pages, show, tell_more, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "output",
    effect=READS,
    examples=[
        "pxctl pipe output 12",
        "pxctl pipe output disk-digest > report.txt    # of its newest execution",
        "pxctl pipe output 12 --stderr --offset 0 --limit 10000",
        "pxctl pipe output 12 --events                 # the agent's own event lines",
    ],
)
@click.argument("execution", metavar="ID|PIPE", shell_complete=execution_names)
@click.option("--stderr", is_flag=True, help="What came on stderr.")
@click.option("--events", is_flag=True, help="The agent's own event lines, where it writes any.")
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at byte N.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N bytes; else all there are.")
def command(
    invocation: Invocation,
    execution: str,
    stderr: bool,
    events: bool,
    offset: int,
    limit: int | None,
) -> None:
    """Print the stdout of an execution, or its stderr, complete; byte for byte on a pipe."""
    invocation.action = f"read the output of {execution}"
    if stderr and events:
        raise Failure(
            "--stderr and --events exclude each other",
            kind="usage",
            hint=f"pxctl pipe output {execution} --stderr",
            exit_code=USAGE,
        )
    stream = "stderr" if stderr else "events" if events else "stdout"
    client = invocation.client()
    found = find_execution(client, execution)
    found_pages = pages(client, execution_route(found, "output"), [("stream", stream)], offset, limit)
    if invocation.json:
        place = {"execution": found.get("id"), "pipe_name": found.get("pipe_name"), "stream": stream}
        invocation.document({"schema": "px.execution-output/1", **place, **whole(found_pages, offset)})
        return
    tell_more(invocation, show(invocation, found_pages))
