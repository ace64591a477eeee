"""`pxctl kernel interrupt`: interrupt running cells."""

from __future__ import annotations

import click

from pxctl.commanding import declare
from pxctl.completing import kernel_names
from pxctl.failure import INACTIVE, Failure
from pxctl.kernels import is_glob, kernel_units
from pxctl.naming import unit_route
from pxctl.steering import Act, attempt_all, report_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation
    from pxctl.steering import Outcome

_WITHOUT_PROCESS = {"stopped", "failed"}


@declare(
    "interrupt",
    effect="modifying: interrupts the running cell; asked again, its kernel may be killed",
    examples=[
        "pxctl kernel interrupt default",
        "pxctl kernel interrupt default   # again: the next, harder step",
        "pxctl kernel interrupt 'work*'",
    ],
)
@click.argument("kernels", nargs=-1, required=True, metavar="NAME...", shell_complete=kernel_names)
@click.option("--cwd", metavar="DIR", help="Which of several sessions of that name; else the one of this folder.")
def command(invocation: Invocation, kernels: tuple[str, ...], cwd: str | None) -> int:
    """Interrupt the running cells of sessions, as Ctrl-C does. Exits 3 where there is no process to interrupt.

    Where it does not yield, the next steps follow by themselves, or at once when asked again: a second interrupt,
    then the kernel is terminated, then killed, and its variables are lost.
    """
    invocation.action = f"interrupt {', '.join(kernels)}"
    client = invocation.client()
    units = kernel_units(client, kernels, cwd=cwd)
    outcomes = attempt_all(invocation, client, units, Act("interrupt", "being interrupted", _step, waits=True))
    if any(map(is_glob, kernels)):
        # A pattern means what runs of it; only where nothing does, that is said.
        outcomes = [one for one in outcomes if not _is_inactive(one)] or outcomes
    return _tell(invocation, outcomes)


def _step(client: Client, unit: str) -> dict[str, Any]:
    document: dict[str, Any] = client.ask("POST", unit_route(unit, "interrupt")).document
    is_idle = not document.get("running") and not document.get("steps")
    if is_idle and document.get("state") in _WITHOUT_PROCESS:
        raise Failure(
            f"it is {document['state']}: there is no process to interrupt",
            kind="inactive",
            unit=unit,
            hint=f"pxctl kernel start {unit.partition(':')[2]}",
            exit_code=INACTIVE,
        )
    return document


def _is_inactive(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.kind == "inactive"


def _tell(invocation: Invocation, outcomes: list[Outcome]) -> int:
    failures = [one.failure for one in outcomes if one.failure is not None]
    documents = [one.document for one in outcomes if one.document is not None]
    if len(outcomes) == 1 and failures:
        raise failures[0]
    if invocation.json:
        told: dict[str, Any] = {"schema": "px.interrupts/1", "interrupts": documents}
        if failures:
            told["failures"] = [failure.document() for failure in failures]
        invocation.document(documents[0] if len(outcomes) == 1 else told)
        return failures[0].exit_code if failures else 0
    for document in documents:
        if line := _line(document, quiet=invocation.quiet):
            invocation.say(line)
    return report_all(invocation, failures)


def _line(document: dict[str, Any], *, quiet: bool) -> str:
    """Return what came of one interrupt; of a quiet one only the cell, if one ran."""
    running, taken = document.get("running"), document.get("steps") or []
    if quiet:
        return str(running or "")
    steps = ", ".join(str(step.get("action")) for step in taken)
    told = "".join(f": {step['detail']}" for step in taken if step.get("detail"))
    what = f"cell {running}: {steps or 'asked to end'}" if running else f"no cell is running{told}"
    return f"kernel:{document.get('kernel')} {what}"
