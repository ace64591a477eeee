"""`pxctl daemon status`: the daemon's own state."""

from __future__ import annotations

from pxctl import wording
from pxctl.commanding import READS, declare
from pxctl.failure import INACTIVE, Failure, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation


@declare("status", effect=READS, examples=["pxctl daemon status", "pxctl daemon status --json"])
def command(invocation: Invocation) -> None:
    """Show the daemon's own state; exits 3 when it does not run."""
    invocation.action = "read the daemon's state"
    try:
        answer = invocation.client().get("/api/daemon")
    except Unreachable as failure:
        raise _not_running(failure) from failure
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif invocation.quiet:
        invocation.say(str((answer.document.get("keeper") or {}).get("pid")))
    else:
        for name, value in _facts(answer.document, invocation.now()):
            invocation.say(f"{name:<12} {value}")


def _not_running(failure: Unreachable) -> Failure:
    return Failure(
        f"pxd does not run: {failure.detail}",
        kind="not_running",
        hint="pxctl daemon start",
        exit_code=INACTIVE,
        **failure.extra,
    )


def _facts(document: dict[str, Any], now: float) -> list[tuple[str, str]]:
    control = document.get("control") or {}
    facts = [
        ("version", str(document.get("version"))),
        ("socket", str(document.get("socket"))),
        ("keeper", _process(document.get("keeper") or {}, now)),
        ("control", _process(control, now) + f", restarted {control.get('restarts') or 0}x"),
        ("kill", str(document.get("kill_rung"))),
        ("memory", str(document.get("memory_rung"))),
    ]
    if document.get("stopping"):
        facts.append(("state", "stopping"))
    facts += [("interrupted", f"{one.get('unit')} (pid {one.get('pid')})") for one in document.get("interrupted") or []]
    facts += [("degraded", f"{one.get('part')}: {one.get('detail')}") for one in document.get("degraded") or []]
    return facts


def _process(part: dict[str, Any], now: float) -> str:
    memory, started = wording.size(part.get("rss_bytes")), wording.ago(part.get("started_at"), now)
    return f"pid {part.get('pid')}, {memory}, started {started}"
