"""`pxctl pipe run`: run a pipe by hand and follow its output."""

from __future__ import annotations

import click

from pxctl import terminal
from pxctl.coerce import CannotRead, read_json
from pxctl.commanding import declare
from pxctl.completing import pipe_names
from pxctl.execution_following import queue_once
from pxctl.execution_watching import let_go, watch
from pxctl.failure import FAILED, USAGE, Failure, Silent
from pxctl.pipes import pipe_name, pipe_route
from pxctl.seconds import SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation


@declare(
    "run",
    effect="modifying: runs the pipe's agent as you, and starts the daemon when it is not there",
    examples=[
        "pxctl pipe run disk-digest",
        "pxctl pipe run disk-digest --no-wait -q      # prints the execution's id",
        "pxctl pipe run disk-digest --queue           # wait in line where it runs already",
        "pxctl pipe run triage --context '{\"issue\": 12}' --timeout 600",
        "pxctl pipe run triage --json > execution.json",
    ],
)
@click.argument("pipe", metavar="NAME", shell_complete=pipe_names)
@click.option("--no-wait", is_flag=True, help="Return once it is queued.")
@click.option("--queue", is_flag=True, help="Wait in line where it runs already, instead of being refused.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Of this execution; else the pipe's own (exit 7).")
@click.option("--context", metavar="JSON|@FILE|-", help="An object that the prompt shows to the agent.")
@click.option("--no-autostart", is_flag=True, help="Do not start the daemon when it is not there.")
def command(
    invocation: Invocation,
    pipe: str,
    no_wait: bool,
    queue: bool,
    timeout: float | None,
    context: str | None,
    no_autostart: bool,
) -> int:
    """Run a pipe and follow its output to the end; exits 0 completed, 1 failed or cancelled, 7 timed out.

    The agent's text goes to stdout, its complaints and all notices to stderr; on a pipe byte for byte. With --json
    the final execution is one document. Ctrl-C ends the following only: the execution goes on.
    """
    name = pipe_name(pipe)
    invocation.action = f"run pipe:{name}"
    asked = {"context": _context(context), "queue": queue or None, "timeout": timeout}
    content = {key: value for key, value in asked.items() if value is not None}
    client = invocation.waking_client(autostart=not no_autostart)
    execution = _queued(invocation, client, name, content)
    for warning in execution.get("warnings") or []:
        invocation.notice(f"warning: {warning}")
    return let_go(invocation, execution) if no_wait else watch(invocation, client, execution)


def _queued(invocation: Invocation, client: Client, name: str, content: dict[str, Any]) -> dict[str, Any]:
    try:
        return queue_once(client, pipe_route(name, "run"), content)
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached before the daemon answered; pipe:{name} may run: pxctl pipe queue")
        raise Silent(FAILED) from None


def _context(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        found = read_json(_content_of(given), "--context")
    except CannotRead as error:
        raise _usage(str(error)) from error
    except OSError as error:
        raise _usage(f"cannot read {given.removeprefix('@')}: {error.strerror}") from error
    if not isinstance(found, dict):
        raise _usage("--context must be a JSON object")
    return found


def _content_of(given: str) -> str | bytes:
    if given == "-":
        return terminal.read_input()
    if not given.startswith("@"):
        return given
    with open(given[1:], "rb") as file:
        return file.read()


def _usage(detail: str) -> Failure:
    return Failure(detail, kind="usage", hint="pxctl pipe run --help", exit_code=USAGE)
