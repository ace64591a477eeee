"""Several units in one call: what one of them answers never hides what another answered.

The exit code is that of the first failure in the order in which the units were named. Ctrl-C ends the waiting, never
what was asked for.
"""

from __future__ import annotations

from pxctl.app import report
from pxctl.client import query
from pxctl.failure import FAILED, OK, Failure, Problem, Silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from pxctl.app import Invocation
    from pxctl.client import Client

    Document = dict[str, Any]

GOING = {"start": "starting", "stop": "stopping", "restart": "restarting"}
_SLACK_SECONDS = 15.0
"""How much longer than its own limit the daemon may take to answer."""
_DOWN = {None, "cold", "stopped", "failed"}


class Outcome:
    """What became of one unit: the daemon's document, or a failure."""

    __slots__ = ("document", "failure", "unit")

    def __init__(self, unit: str, document: Document | None = None, failure: Failure | None = None) -> None:
        self.unit = unit
        self.document = document
        self.failure = failure


def one_by_one(invocation: Invocation, verb: str, units: Sequence[str], step: Callable[[str], Any]) -> list[Outcome]:
    """Do to each unit what is over at once; failures are kept, not raised."""
    outcomes = []
    for unit in units:
        try:
            outcomes.append(Outcome(unit, step(unit)))
        except Failure as failure:
            failure.action = f"{verb} {unit}"
            outcomes.append(Outcome(unit, failure=failure))
        except KeyboardInterrupt:
            invocation.warn(f"\npxctl: detached; what was asked of {unit} goes on")
            raise Silent(FAILED) from None
    return outcomes


def tell(
    invocation: Invocation,
    outcomes: Sequence[Outcome],
    merged: Callable[[list[Document]], Document],
    say: Callable[[Outcome, Document], None],
) -> int:
    """Tell what became of each, under `--json` in one document; raise the failure of a single one."""
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    documents = [outcome.document for outcome in outcomes if outcome.document is not None]
    if failures and len(outcomes) == 1:
        raise failures[0]
    if invocation.json:
        more = {"failures": [failure.document() for failure in failures]} if failures else {}
        invocation.document({**merged(documents), **more})
        return failures[0].exit_code if failures else OK
    for outcome in outcomes:
        if outcome.document is not None:
            say(outcome, outcome.document)
    for failure in failures:
        report(invocation, failure)
    return failures[0].exit_code if failures else OK


def steer(
    invocation: Invocation, client: Client, verb: str, names: Sequence[str], timeout: float | None, *, wait: bool = True
) -> int:
    """Start, stop or restart all units that the names mean in one request; tell the outcome, return the exit code."""

    def merged(documents: list[Document]) -> Document:
        members = ("units", "survivors") if verb == "stop" else ("units",)
        lists = {member: [one for document in documents for one in document.get(member, [])] for member in members}
        return {"schema": f"px.{verb}/1", **lists}

    def say(outcome: Outcome, document: Document) -> None:
        unit = outcome.unit
        invocation.say(unit if invocation.quiet else f"{unit} {_summary(verb, unit, document, wait=wait)}")

    return tell(invocation, request(invocation, client, verb, names, timeout, wait=wait), merged, say)


def request(
    invocation: Invocation, client: Client, verb: str, names: Sequence[str], timeout: float | None, *, wait: bool = True
) -> list[Outcome]:
    """Ask the daemon for it; return what became of each unit, in its order.

    Raises:
        Silent: Ctrl-C; what goes on was said.
    """
    parameters: list[tuple[str, object]] = [("unit", name) for name in names]
    target = query(f"/api/units/{verb}", [*parameters, ("timeout", timeout), ("wait", None if wait else False)])
    limit = None if timeout is None else 2 * timeout + _SLACK_SECONDS
    try:
        results = client.ask("POST", target, timeout=limit).document.get("results", [])
    except KeyboardInterrupt:
        invocation.warn(f"\npxctl: detached; {', '.join(names)} goes on {GOING[verb]}")
        raise Silent(FAILED) from None
    return [_outcome(verb, result, timeout) for result in results]


def _outcome(verb: str, result: Document, timeout: float | None) -> Outcome:
    unit, answer, problem = str(result.get("unit")), result.get("answer") or {}, result.get("problem")
    failure: Failure | None = None
    if problem is not None:
        failure = Problem(int(problem.get("status") or 500), problem)
    elif unit.startswith("pipe:") and verb == "start" and answer.get("status") == "failed":
        from pxctl.executions import failure_of

        failure = failure_of(answer)
    if failure is None:
        return Outcome(unit, _as_units(verb, unit, answer))
    if failure.kind == "timed_out" and timeout is not None and verb != "start":
        is_stop = verb == "stop"
        what, goal = ("something of it is left", " --for stopped") if is_stop else ("it is not ready", "")
        failure.detail, failure.hint = f"{what} after {timeout:g} s; the {verb} goes on", f"pxctl wait {unit}{goal}"
    failure.action = f"{verb} {unit}"
    return Outcome(unit, failure=failure)


def _as_units(verb: str, unit: str, answer: Document) -> Document:
    """Return the answer of a single unit's route with `units`, whatever the kind answers."""
    if unit.startswith("pipe:") and verb == "start":
        told = {"unit": unit, "state": answer.get("status"), "pid": answer.get("pid")}
        return {"units": [{**told, "execution": answer.get("id")}]}
    if unit.startswith("pipe:"):
        cancelled = [execution.get("id") for execution in answer.get("executions", [])]
        told = {"unit": unit, "state": "stopped", "pid": None, "cancelled": cancelled}
        return {"units": [told], "survivors": [], "executions": answer.get("executions", [])}
    return answer if "units" in answer else {"units": [{**answer, "unit": unit}]}


def _summary(verb: str, unit: str, document: Document, *, wait: bool) -> str:
    if not wait:
        return GOING[verb]
    units = document.get("units") or [{}]
    found = next((one for one in units if one.get("unit") == unit), units[0])
    if verb == "stop" and found.get("state") in _DOWN:
        return "stopped"
    if found.get("execution") is not None:
        return f"{found.get('state')} (execution {found['execution']})"
    pid = found.get("pid")
    return f"{found.get('state') or GOING[verb]}" + (f" (pid {pid})" if pid else "")
