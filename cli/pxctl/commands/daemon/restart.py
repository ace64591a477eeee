"""`pxctl daemon restart`: a new control plane, the same children."""

from __future__ import annotations

import contextlib
import time

import click

from pxctl import interrupts, starting
from pxctl.client import query
from pxctl.commanding import declare
from pxctl.failure import FAILED, OK, TIMED_OUT, Failure, Interrupted, Silent, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_SECONDS = 120.0
_PAUSE_SECONDS = 0.05


@declare(
    "restart",
    effect="modifying: replaces the control plane; with --all stops every unit and starts pxd anew",
    examples=["pxctl daemon restart", "pxctl daemon restart --all"],
)
@click.option("--all", "everything", is_flag=True, help="Stop all children, too, and start the keeper anew.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=_SECONDS,
    show_default=True,
    metavar="S",
    help="Give up after S seconds (exit 7).",
)
def command(invocation: Invocation, everything: bool, timeout: float) -> int:
    """Replace the control plane and keep every child; returns when the new one answers.

    When pxd does not run, it is started.
    """
    invocation.action = "restart pxd"
    client = invocation.client()
    try:
        before = client.get("/api/daemon").document
    except Unreachable:
        invocation.notice("pxd does not run; starting it")
        starting.start_daemon(invocation, timeout)
        return _tell(invocation, client.get("/api/daemon").document)
    # The old control plane may go before its answer is out; what counts is the new one.
    with contextlib.suppress(Interrupted):
        client.ask("POST", query("/api/daemon/restart", [("all", everything)]), timeout=timeout)
    try:
        return _tell(invocation, _await_new(invocation, before, timeout))
    except KeyboardInterrupt:
        invocation.warn("\npxctl: detached; pxd goes on restarting")
        raise Silent(FAILED) from None


def _mark(document: dict[str, Any]) -> tuple[Any, Any]:
    control = document.get("control") or {}
    return control.get("pid"), control.get("started_at")


def _await_new(invocation: Invocation, before: dict[str, Any], timeout: float) -> dict[str, Any]:
    client = invocation.client()
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            document: dict[str, Any] = client.get("/api/daemon", timeout=5.0).document
        except Failure:
            document = before
        if _mark(document) != _mark(before) and starting.answers(client, timeout=5.0):
            return document
        interrupts.pause(_PAUSE_SECONDS)
    raise Failure(
        f"no new control plane answers after {timeout:g} s",
        kind="timed_out",
        hint="pxctl doctor",
        exit_code=TIMED_OUT,
    )


def _tell(invocation: Invocation, document: dict[str, Any]) -> int:
    keeper, control = document.get("keeper") or {}, document.get("control") or {}
    if invocation.json:
        invocation.document(document)
    elif not invocation.quiet:
        invocation.say(f"pxd answers again (keeper {keeper.get('pid')}, control {control.get('pid')})")
    return OK
