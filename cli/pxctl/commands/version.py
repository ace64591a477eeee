"""`pxctl version`: of the client, and of the daemon when it answers."""

from __future__ import annotations

from pxctl.commanding import READS, declare
from pxctl.failure import Failure
from pxctl.versions import UNKNOWN, own_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare("version", effect=READS, examples=["pxctl version", "pxctl version --json"])
def command(invocation: Invocation) -> None:
    """Show the version of the client, and that of the daemon when it answers."""
    client = own_version()
    daemon = _daemon_version(invocation)
    if invocation.json:
        invocation.document({"schema": "px.version/1", "client": client, "daemon": daemon})
        return
    invocation.say(client if invocation.quiet else f"pxctl {client}")
    if not invocation.quiet:
        invocation.say(f"pxd {daemon}" if daemon else "pxd not running")
    if daemon and client not in {daemon, UNKNOWN}:
        invocation.notice("pxctl: client and daemon differ; bring the daemon up to date: pxctl daemon restart --all")


def _daemon_version(invocation: Invocation) -> str | None:
    try:
        document = invocation.client().get("/api/daemon", timeout=5.0).document
    except Failure:
        return None
    version = document.get("version")
    return str(version) if version else None
