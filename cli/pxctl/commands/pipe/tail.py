"""`pxctl pipe tail`: an execution's output, live."""

from __future__ import annotations

import json

import click

from pxctl.commanding import READS, declare
from pxctl.completing import execution_names
from pxctl.execution_following import Following
from pxctl.execution_view import ExecutionView
from pxctl.execution_watching import follow
from pxctl.executions import FINAL, execution_route, find_execution, sentence
from pxctl.failure import OK
from pxctl.output_pages import pages, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation


@declare(
    "tail",
    effect=READS,
    examples=[
        "pxctl pipe tail -f disk-digest    # its newest execution, to the end",
        "pxctl pipe tail 12                # what there is now",
        "pxctl pipe tail -f 12 --json",
    ],
)
@click.argument("execution", metavar="ID|PIPE", shell_complete=execution_names)
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on to its end; survives a restart of the daemon.")
def command(invocation: Invocation, execution: str, follows: bool) -> int:
    """Show both streams of an execution from the beginning; of a pipe, its newest one.

    Ctrl-C ends the looking only. With --json -f, events as they come, one a line; without -f the row with its text.
    """
    invocation.action = f"read the output of {execution}"
    client = invocation.client()
    found = find_execution(client, execution)
    try:
        if not follows:
            _show_now(invocation, client, found)
        elif invocation.json:
            _print_events(invocation, found)
        else:
            invocation.notice(f"pxctl: {sentence(follow(invocation, found))}")
    except KeyboardInterrupt:
        return OK
    return OK


def _print_events(invocation: Invocation, found: dict[str, Any]) -> None:
    for event in Following(invocation, found).events():
        if isinstance(content := event.pop("bytes", None), bytes):
            # The rest of a piece that a lost connection had cut.
            event["text"] = content.decode("utf-8", "replace")
        invocation.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")


def _show_now(invocation: Invocation, client: Client, found: dict[str, Any]) -> None:
    route = execution_route(found, "output")
    if invocation.json:
        invocation.document_as_it_came(client.get(execution_route(found)).raw)
        return
    last = show(invocation, pages(client, route, [("stream", "stdout")], 0, None))
    is_cut = last is not None and last.truncated
    with ExecutionView(invocation, found) as view:
        for page in pages(client, route, [("stream", "stderr")], 0, None):
            view.show({"event": "output", "stream": "stderr", "bytes": page.content})
            is_cut = is_cut or page.truncated
    if is_cut:
        invocation.warn("pxctl: not all of its output was kept (pipes.output_file_bytes)")
    if found.get("status") not in FINAL:
        invocation.notice(f"pxctl: {sentence(found)}; go on: pxctl pipe tail -f {found.get('id')}")
