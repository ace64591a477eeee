"""`pxctl config check`: are the settings files right?"""

from __future__ import annotations

from pxctl.commanding import READS, declare
from pxctl.settings_of import ask_pxd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare("check", effect=READS, examples=["pxctl config check", "pxctl config check --json"])
def command(invocation: Invocation) -> None:
    """Check the settings files: file, line, key and nearest match of each fault; exits 1 when there is one.

    Works without a daemon.
    """
    invocation.action = "check the settings"
    invocation.write(ask_pxd(invocation, "--check-config", *(["--json"] if invocation.json else [])))
