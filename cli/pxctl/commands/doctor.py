"""`pxctl doctor`: the daemon's checks, and those that need no daemon."""

from __future__ import annotations

from pxctl.checks import Check, local_checks
from pxctl.commanding import READS, declare
from pxctl.failure import FAILED, OK, Failure
from pxctl.style import BY_STATE
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare("doctor", effect=READS, examples=["pxctl doctor", "pxctl doctor --json"])
def command(invocation: Invocation) -> int:
    """Check everything, and name the one command that repairs each fault. Works without a daemon, too.

    Exits 1 when a check fails; warnings do not count.
    """
    invocation.action = "check the daemon"
    checks = local_checks(invocation) + _daemon_checks(invocation)
    failed = any(check.status == "fail" for check in checks)
    if invocation.json:
        invocation.document({"schema": "px.doctor/1", "checks": [check.document() for check in checks]})
    elif invocation.quiet:
        for check in checks:
            if check.status != "ok":
                invocation.say(check.name)
    else:
        for check in checks:
            _tell(invocation, check)
    return FAILED if failed else OK


def _tell(invocation: Invocation, check: Check) -> None:
    paint = invocation.paint
    invocation.say(
        f"{paint(f'{check.status:<4}', BY_STATE.get(check.status))}  {clean(f'{check.name}: {check.detail}')}"
    )
    if check.repair:
        invocation.say(f"      repair: {clean(check.repair)}")


def _daemon_checks(invocation: Invocation) -> list[Check]:
    try:
        document = invocation.client().get("/api/doctor").document
    except Failure as failure:
        return [Check("daemon", "fail", failure.detail, failure.hint)]
    found = [Check("daemon", "ok", f"answers at {invocation.socket_path}", None)]
    for one in document.get("checks") or []:
        repair = one.get("repair")
        found.append(
            Check(str(one.get("name")), str(one.get("status")), str(one.get("detail")), str(repair) if repair else None)
        )
    return found
