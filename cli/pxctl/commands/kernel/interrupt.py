"""`pxctl kernel interrupt`: interrupt the running cell."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import kernel_names
from pxctl.kernels import kernel_id
from pxctl.naming import kernel_route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pxctl.invocation import Invocation


@declare(
    "interrupt",
    effect="modifying: interrupts the running cell; asked again, its kernel may be killed",
    examples=["pxctl kernel interrupt default", "pxctl kernel interrupt default   # again: the next, harder step"],
)
@click.argument("kernel", metavar="NAME", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(invocation: Invocation, kernel: str, cwd: str | None) -> None:
    """Interrupt the running cell of a session, as Ctrl-C does.

    Where it does not yield, the next steps follow by themselves, or at once when asked again: a second interrupt,
    then the kernel is terminated, then killed, and its variables are lost.
    """
    invocation.action = f"interrupt {kernel}"
    client = invocation.client()
    answer = client.ask("POST", kernel_route(kernel_id(client, kernel, cwd=cwd), "interrupt"))
    document = answer.document
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
        return
    running = document.get("running")
    if invocation.quiet:
        if running:
            invocation.say(str(running))
        return
    taken = document.get("steps") or []
    steps = ", ".join(str(step.get("action")) for step in taken)
    told = "".join(f": {step['detail']}" for step in taken if step.get("detail"))
    what = f"cell {running}: {steps or 'asked to end'}" if running else f"no cell is running{told}"
    invocation.say(f"kernel:{document.get('kernel')} {what}")
