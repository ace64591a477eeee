"""`pxctl daemon start`: pxd in the background."""

from __future__ import annotations

import click

from pxctl import starting
from pxctl.commanding import declare
from pxctl.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "start",
    effect="modifying: starts the daemon unless it runs",
    examples=["pxctl daemon start", "PX_HOME=/tmp/px pxctl daemon start", "sudo pxctl daemon start --system"],
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=starting.START_SECONDS,
    show_default=True,
    metavar="S",
    help="Give up after S seconds (exit 7).",
)
def command(invocation: Invocation, timeout: float) -> None:
    """Start pxd, detached; returns when its socket answers.

    Its own log goes to pxd.log in the log directory. When it runs already, that is fine.
    """
    invocation.action = "start pxd"
    running = _pid(invocation)
    if running is None:
        starting.start_daemon(invocation, timeout)
    pid = running or _pid(invocation)
    if invocation.json:
        invocation.document(
            {
                "schema": "px.daemon_start/1",
                "started": running is None,
                "pid": pid,
                "socket": invocation.socket_path,
                "log": invocation.places.log_file,
            }
        )
    elif invocation.quiet:
        invocation.say(str(pid))
    else:
        invocation.say(f"pxd {'runs already' if running else 'started'} (pid {pid}), socket {invocation.socket_path}")


def _pid(invocation: Invocation) -> int | None:
    try:
        document = invocation.client().get("/api/daemon").document
    except Failure as failure:
        if failure.kind in {"unreachable", "interrupted", "shutdown"}:
            return None
        raise
    pid = (document.get("keeper") or {}).get("pid")
    return pid if isinstance(pid, int) else None
