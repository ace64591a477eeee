"""`pxctl pipe validate`: everything that can be said of a pipe before it runs."""

from __future__ import annotations

import click

from pxctl.commanding import READS, declare
from pxctl.completing import pipe_names as complete_names
from pxctl.failure import FAILED, OK, USAGE, Failure
from pxctl.pipes import pipe_names, pipe_route
from pxctl.style import BY_STATE
from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.client import Client
    from pxctl.invocation import Invocation


@declare(
    "validate",
    effect=READS,
    examples=["pxctl pipe validate disk-digest", "pxctl pipe validate --all --summary"],
)
@click.argument("pipes", nargs=-1, metavar="[NAME]...", shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="Every pipe.")
@click.option("--summary", is_flag=True, help="Only what did not pass.")
def command(invocation: Invocation, pipes: tuple[str, ...], everything: bool, summary: bool) -> int:
    """Check pipes: front matter, schedule, agent, presets and more; exits 0 on pass and warn, 1 on fail.

    Each finding has its line in pipe.md and its cure. Nothing is run.
    """
    invocation.action = f"validate {', '.join(pipes) or 'the pipes'}"
    if everything == bool(pipes):
        raise Failure("name pipes, or --all", kind="usage", hint="pxctl pipe validate --all", exit_code=USAGE)
    client = invocation.client()
    found = [_checked(client, name) for name in _names(client, pipes)]
    if invocation.json:
        whole = {"schema": "px.pipe-validations/1", "ok": all(one.get("ok") for one in found), "pipes": found}
        invocation.document(whole if everything or len(found) != 1 else found[0])
    else:
        for one in found:
            _tell(invocation, one, summary=summary)
    return OK if all(one.get("ok") for one in found) else FAILED


def _names(client: Client, pipes: tuple[str, ...]) -> list[str]:
    if pipes:
        return pipe_names(client, pipes)
    return [str(pipe.get("name")) for pipe in client.get("/api/pipes").document.get("pipes", [])]


def _checked(client: Client, name: str) -> dict[str, Any]:
    """Return the checks of a pipe, with the file that their lines are of."""
    checks: dict[str, Any] = client.ask("POST", pipe_route(name, "validate"), timeout=None).document
    return {**checks, "file": client.get(pipe_route(name)).document.get("file")}


def _tell(invocation: Invocation, found: dict[str, Any], *, summary: bool) -> None:
    paint = invocation.paint
    verdict = _overall(found)
    if invocation.quiet:
        invocation.say(str(found.get("pipe")))
        return
    invocation.say(f"pipe:{found.get('pipe')}: " + paint(verdict, BY_STATE.get(verdict)))
    for check in found.get("checks") or []:
        word = str(check.get("verdict"))
        if summary and word in {"pass", "skip"}:
            continue
        where = f"{found.get('file') or 'pipe.md'}:{check['line']}: " if check.get("line") else ""
        name = f"{check.get('name')}: "
        invocation.say(f"  {paint(f'{word:4}', BY_STATE.get(word))}  {clean(name + where + str(check.get('detail')))}")
        if check.get("hint") and word not in {"pass", "skip"}:
            invocation.say(f"        {paint('cure:', 'bold')} {clean(str(check['hint']))}")


def _overall(found: dict[str, Any]) -> str:
    if not found.get("ok"):
        return "fail"
    return "warn" if any(check.get("verdict") == "warn" for check in found.get("checks") or []) else "pass"
