"""Starting, stopping and restarting several units at once: one request each, all at the same time.

Law: what one unit answers never hides what another answered; the exit code is that of the first failure in the order
in which the units were named. Ctrl-C ends the waiting, never what was asked for.
"""

from __future__ import annotations

import os
import threading

from pxctl import interrupts
from pxctl.failure import FAILED, OK, Failure, Silent
from pxctl.naming import expand
from pxctl.reporting import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation

    Step = Callable[[Client, str], dict[str, Any]]


class Act:
    """What is done to each unit.

    Args:
        verb: "start".
        going: How it goes on when nobody waits: "starting".
        step: Performs it for one unit and returns the daemon's document.
        waits: Whether it is over when `step` returns.
    """

    __slots__ = ("going", "step", "verb", "waits")

    def __init__(self, verb: str, going: str, step: Step, *, waits: bool) -> None:
        self.waits = waits
        self.verb = verb
        self.going = going
        self.step = step


class Outcome:
    """What became of one unit: the daemon's document, or a failure."""

    __slots__ = ("document", "failure", "unit")

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.document: dict[str, Any] | None = None
        self.failure: Failure | None = None

    def attempt(self, client: Client, act: Act) -> None:
        """Do it to the unit; failures are kept, not raised."""
        try:
            self.document = act.step(client, self.unit)
        except Failure as failure:
            failure.action = f"{act.verb} {self.unit}"
            self.failure = failure


def steer(
    invocation: Invocation,
    names: Sequence[str],
    act: Act,
    *,
    find: Callable[[Client, Sequence[str]], list[str]] = expand,
) -> int:
    """Do it to all units that the names mean (as `find` reads them), tell the outcome, return the exit code."""
    invocation.action = f"{act.verb} {', '.join(names)}"
    client = invocation.client()
    return _tell(invocation, attempt_all(invocation, client, find(client, names), act), act)


def attempt_all(invocation: Invocation, client: Client, units: Sequence[str], act: Act) -> list[Outcome]:
    """Do it to all of them at the same time; return what became of each, in their order.

    Raises:
        Silent: Ctrl-C; what goes on was said.
    """
    outcomes = [Outcome(unit) for unit in units]
    try:
        _attempt(client, outcomes, act)
    except KeyboardInterrupt:
        going = [outcome.unit for outcome in outcomes if outcome.document is None and outcome.failure is None]
        invocation.warn(f"\npxctl: detached; {', '.join(going)} goes on {act.going}")
        raise Silent(FAILED) from None
    return outcomes


def _attempt(client: Client, outcomes: list[Outcome], act: Act) -> None:
    if len(outcomes) == 1:
        outcomes[0].attempt(client, act)
        return
    # A pipe and no join: waiting for a thread, the interpreter may miss Ctrl-C.
    reading, writing = os.pipe()

    def attempt(outcome: Outcome) -> None:
        try:
            outcome.attempt(client, act)
        finally:
            os.write(writing, b".")

    for outcome in outcomes:
        threading.Thread(target=attempt, args=(outcome,), daemon=True).start()
    for _ in outcomes:
        interrupts.wait_readable(reading)
        os.read(reading, 1)
    # After Ctrl-C they stay open: the threads go on for as long as the process does.
    os.close(reading)
    os.close(writing)


def _tell(invocation: Invocation, outcomes: list[Outcome], act: Act) -> int:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures and len(outcomes) == 1:
        raise failures[0]
    if invocation.json:
        invocation.document(_merge(outcomes, act))
        return failures[0].exit_code if failures else OK
    for outcome in outcomes:
        if outcome.document is not None:
            invocation.say(outcome.unit if invocation.quiet else f"{outcome.unit} {_summary(outcome, act)}")
    return report_all(invocation, failures)


def report_all(invocation: Invocation, failures: Sequence[Failure]) -> int:
    """Report each failure; return the exit code of the first, 0 where there is none."""
    for failure in failures:
        report(invocation, failure)
    return failures[0].exit_code if failures else OK


def _merge(outcomes: list[Outcome], act: Act) -> dict[str, Any]:
    units = [unit for outcome in outcomes for unit in (outcome.document or {}).get("units", [])]
    survivors = [one for outcome in outcomes for one in (outcome.document or {}).get("survivors", [])]
    failures = [outcome.failure.document() for outcome in outcomes if outcome.failure is not None]
    merged: dict[str, Any] = {"schema": f"px.{act.verb}/1", "units": units}
    if act.verb == "stop":
        merged["survivors"] = survivors
    if failures:
        merged["failures"] = failures
    return merged


def _summary(outcome: Outcome, act: Act) -> str:
    if not act.waits:
        return act.going
    units = (outcome.document or {}).get("units") or [{}]
    found = next((unit for unit in units if unit.get("unit") == outcome.unit), units[0])
    if act.verb == "stop" and found.get("state") in {None, "cold", "stopped", "failed"}:
        return "stopped"
    if found.get("execution") is not None:
        return f"{found.get('state')} (execution {found['execution']})"
    pid = found.get("pid")
    return f"{found.get('state') or act.going}" + (f" (pid {pid})" if pid else "")
