"""`pxctl daemon uninstall`: disable and remove the unit of the service manager."""

from __future__ import annotations

import os

import click

from pxctl import installing
from pxctl.commanding import declare
from pxctl.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_PLATFORMS = click.Choice(["auto", installing.SYSTEMD, installing.LAUNCHD])


@declare(
    "uninstall",
    effect="modifying: stops and disables the unit, removes its file; tools, settings and ledger stay",
    examples=["pxctl daemon uninstall", "pxctl daemon uninstall --print", "sudo pxctl daemon uninstall --system"],
)
@click.option("--print", "only_print", is_flag=True, help="Print what would be removed and change nothing.")
@click.option("--platform", type=_PLATFORMS, default="auto", show_default=True, help="Service manager.")
def command(invocation: Invocation, only_print: bool, platform: str) -> None:
    """Disable and remove the unit that `pxctl daemon install` wrote. When there is none, that is fine."""
    invocation.action = "uninstall pxd"
    platform = installing.choose_platform(platform)
    text = installing.unit_text(invocation, platform) if platform == installing.LAUNCHD else ""
    path = installing.unit_path(invocation, platform, text)
    if only_print:
        invocation.say(path)
        return
    there = os.path.exists(path)
    if there:
        _remove(invocation, platform, path)
    else:
        invocation.notice(f"there is no {path}; nothing to do")
    if invocation.json:
        invocation.document({"schema": "px.daemon_uninstall/1", "platform": platform, "path": path, "removed": there})
    elif there:
        invocation.say(path if invocation.quiet else f"pxd is uninstalled: {path} removed")


def _remove(invocation: Invocation, platform: str, path: str) -> None:
    """Remove the file even where no service manager runs: it must not come back at the next boot."""
    trouble: Failure | None = None
    try:
        installing.turn_off(invocation, platform, path)
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        trouble = failure
    os.unlink(path)
    if trouble is not None:
        invocation.warn(f"pxctl: {trouble.detail}")
        return
    installing.after_removal(invocation, platform)
