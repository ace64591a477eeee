"""`pxctl pipe retry`: queue an execution again."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import execution_ids
from pxctl.execution_following import queue_once
from pxctl.execution_watching import let_go, watch
from pxctl.executions import execution_route, find_execution, required_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "retry",
    effect="modifying: queues a new execution with what its pipe says now",
    examples=["pxctl pipe retry 12", "pxctl pipe retry 12 --no-wait"],
)
@click.argument("execution", metavar="ID", shell_complete=execution_ids)
@click.option("--no-wait", is_flag=True, help="Return once it is queued.")
def command(invocation: Invocation, execution: str, no_wait: bool) -> int:
    """Queue an execution that is over again, as a new one, and follow it to its end; exits as `pipe run` does."""
    number = required_id(execution)
    invocation.action = f"retry execution {number}"
    client = invocation.client()
    again = queue_once(client, execution_route(find_execution(client, number), "retry"), {})
    invocation.action = f"run pipe:{again.get('pipe_name')}"
    return let_go(invocation, again) if no_wait else watch(invocation, client, again)
