"""`pxctl kernel stop`: stop kernels and say what survived."""

from __future__ import annotations

from functools import partial

import click

from pxctl.commanding import declare
from pxctl.commands.stop import stop_act
from pxctl.completing import kernel_names
from pxctl.kernels import kernel_units
from pxctl.seconds import SECONDS
from pxctl.steering import steer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "stop",
    effect="modifying: ends the kernel's whole process tree; its variables are lost",
    examples=["pxctl kernel stop default", "pxctl kernel stop 'work*'", "pxctl kernel stop default --cwd ~/other"],
)
@click.argument("kernels", nargs=-1, required=True, metavar="NAME...", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
@click.option("--timeout", type=SECONDS, metavar="S", help="Give up waiting after S seconds (exit 7).")
@click.option("--no-wait", is_flag=True, help="Return once the stop is under way.")
def command(
    invocation: Invocation,
    kernels: tuple[str, ...],
    cwd: str | None,
    timeout: float | None,
    no_wait: bool,
) -> int:
    """Stop the kernels of sessions; returns when nothing of them is left.

    The session stays in the list, and its history can be exported; the next call starts a fresh kernel.
    """
    return steer(invocation, kernels, stop_act(timeout, wait=not no_wait), find=partial(kernel_units, cwd=cwd))
