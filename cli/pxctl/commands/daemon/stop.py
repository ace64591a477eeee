"""`pxctl daemon stop`: pxd and everything it holds."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.failure import FAILED, OK, Silent, Unreachable
from pxctl.seconds import SECONDS
from pxctl.stopping import ask_to_stop, await_end, sight_all, survived

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_SECONDS = 120.0


@declare(
    "stop",
    effect="modifying: stops every unit, then the daemon",
    examples=["pxctl daemon stop", "pxctl daemon stop --timeout 20", "pxctl daemon stop --json"],
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=_SECONDS,
    show_default=True,
    metavar="S",
    help="Name what is left after S seconds (exit 8).",
)
def command(invocation: Invocation, timeout: float) -> int:
    """Stop pxd and everything it holds; returns when nothing of it is left.

    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is fine.
    """
    invocation.action = "stop pxd"
    client = invocation.client()
    try:
        own, units = sight_all(client)
        ask_to_stop(client)
    except Unreachable:
        invocation.notice(f"pxd does not run (nobody answers at {invocation.socket_path})")
        return _tell(invocation, was_running=False)
    try:
        left = await_end(own + units, timeout)
    except KeyboardInterrupt:
        invocation.warn("\npxctl: detached; pxd goes on stopping")
        raise Silent(FAILED) from None
    if left:
        raise survived(left)
    return _tell(invocation, was_running=True)


def _tell(invocation: Invocation, *, was_running: bool) -> int:
    if invocation.json:
        invocation.document({"schema": "px.daemon_stop/1", "was_running": was_running, "survivors": []})
    elif was_running and not invocation.quiet:
        invocation.say("pxd stopped")
    return OK
