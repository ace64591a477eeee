"""`pxctl daemon install`: write and enable the unit of the service manager."""

from __future__ import annotations

import click

from pxctl import installing
from pxctl.commanding import declare
from pxctl.failure import Failure
from pxctl.starting import answers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation

_PLATFORMS = click.Choice(["auto", installing.SYSTEMD, installing.LAUNCHD])


@declare(
    "install",
    effect="modifying: writes one unit file, enables and starts it; --print changes nothing",
    examples=[
        "pxctl daemon install",
        "pxctl daemon install --print",
        "sudo pxctl daemon install --system",
        "pxctl daemon install --print --platform launchd",
    ],
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option("--platform", type=_PLATFORMS, default="auto", show_default=True, help="Service manager.")
@click.option("--force", is_flag=True, help="Overwrite a unit that differs.")
def command(invocation: Invocation, only_print: bool, platform: str, force: bool) -> None:
    """Write and enable the systemd or launchd unit of pxd: the user's, or with --system the machine's."""
    invocation.action = "install pxd"
    platform = installing.choose_platform(platform)
    text = installing.unit_text(invocation, platform)
    path = installing.unit_path(invocation, platform, text)
    if only_print:
        _print(invocation, platform, path, text)
        return
    written = installing.write_unit(path, text, force=force)
    invocation.notice(f"{'wrote' if written else 'found'} {path}")
    by_hand = answers(invocation.client())
    try:
        installing.turn_on(invocation, platform, path, now=not by_hand)
    except Failure as failure:
        failure.detail = f"{path} is written, but not enabled: {failure.detail}"
        raise
    if by_hand:
        invocation.notice(
            "pxd runs already; for the service manager to take over: pxctl daemon stop, then start the unit"
        )
    if invocation.json:
        invocation.document({"schema": "px.daemon_install/1", "platform": platform, "path": path, "written": written})
    elif invocation.quiet:
        invocation.say(path)
    else:
        invocation.say(f"pxd is installed: {path}")


def _print(invocation: Invocation, platform: str, path: str, text: str) -> None:
    if invocation.json:
        invocation.document({"schema": "px.daemon_unit/1", "platform": platform, "path": path, "text": text})
    else:
        invocation.write(text)
