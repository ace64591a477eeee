"""`pxctl config show`: every setting with its origin."""

from __future__ import annotations

import json

from pxctl.commanding import READS, declare
from pxctl.settings_of import ask_pxd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "show",
    effect=READS,
    examples=["pxctl config show", "pxctl config show --json", "PX_TOOLS__WARM_KEEP_MAX=9 pxctl config show"],
)
def command(invocation: Invocation) -> None:
    """Show every setting that holds, its value and where it comes from; with -q the keys only.

    Works without a daemon.
    """
    invocation.action = "show the settings"
    if not invocation.quiet or invocation.json:
        invocation.write(ask_pxd(invocation, "--show-config", *(["--json"] if invocation.json else [])))
        return
    for setting in json.loads(ask_pxd(invocation, "--show-config", "--json"))["settings"]:
        invocation.say(setting["key"])
