"""`pxctl kernel restart`: replace kernels."""

from __future__ import annotations

from functools import partial

import click

from pxctl.commanding import declare
from pxctl.commands.restart import restart_act
from pxctl.completing import kernel_names
from pxctl.kernels import kernel_units
from pxctl.seconds import SECONDS
from pxctl.steering import steer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "restart",
    effect="modifying: replaces the kernel by a new one; its variables are lost",
    examples=["pxctl kernel restart default", "pxctl kernel restart 'work*'"],
)
@click.argument("kernels", nargs=-1, required=True, metavar="NAME...", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
def command(invocation: Invocation, kernels: tuple[str, ...], cwd: str | None, timeout: float | None) -> int:
    """Replace the kernels of sessions; returns when the new ones are ready. Forgets a hard failure.

    A running cell is cut off; calls that wait in line are run by the new kernel.
    """
    return steer(invocation, kernels, restart_act(timeout, wait=True), find=partial(kernel_units, cwd=cwd))
