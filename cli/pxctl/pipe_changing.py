"""Changing several pipes in one way: enable, disable, mute, unmute."""

from __future__ import annotations

from pxctl import wording
from pxctl.failure import OK
from pxctl.pipes import PREFIX, pipe_names, pipe_route
from pxctl.steering import Act, attempt_all, report_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation


def change_pipes(invocation: Invocation, texts: Sequence[str], verb: str, done: str) -> int:
    """Do it to every pipe that the names mean, tell the outcome, return the exit code.

    Args:
        invocation: Whose daemon.
        texts: Names and globs.
        verb: "enable", the last part of the route.
        done: "enabled".
    """
    invocation.action = f"{verb} {', '.join(texts)}"
    client = invocation.client()

    def step(client: Client, unit: str) -> dict[str, Any]:
        document: dict[str, Any] = client.ask("POST", pipe_route(unit, verb), timeout=None).document
        return document

    units = [f"{PREFIX}{name}" for name in pipe_names(client, texts)]
    outcomes = attempt_all(invocation, client, units, Act(verb, f"being {done}", step, waits=True))
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures and len(outcomes) == 1:
        raise failures[0]
    documents = [outcome.document for outcome in outcomes if outcome.document is not None]
    if invocation.json:
        told: dict[str, Any] = {"schema": "px.pipes/1", "pipes": documents}
        if failures:
            told["failures"] = [failure.document() for failure in failures]
        invocation.document(documents[0] if len(outcomes) == 1 else told)
        return failures[0].exit_code if failures else OK
    for document in documents:
        name = str(document.get("name"))
        invocation.say(name if invocation.quiet else f"{PREFIX}{name} {done}{_when(invocation, verb, document)}")
        for warning in document.get("warnings") or [] if verb == "enable" else []:
            invocation.notice(f"warning: {warning}")
    return report_all(invocation, failures)


def _when(invocation: Invocation, verb: str, pipe: dict[str, Any]) -> str:
    if verb != "enable" or not pipe.get("next_run"):
        return ""
    at = wording.epoch(pipe["next_run"])
    if at is not None and at <= invocation.now():
        return "; it runs now"
    return f"; next run {wording.ago(pipe['next_run'], invocation.now())}"
