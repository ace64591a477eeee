"""Pipes as users name them: `x`, `pipe:x`, globs; and one pipe in a word."""

from __future__ import annotations

from pxctl.client import quote
from pxctl.failure import USAGE, Failure
from pxctl.naming import expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pxctl.client import Client

PREFIX = "pipe:"
_GLOB_SIGNS = frozenset("*?[")


def pipe_name(text: str) -> str:
    """Return the bare name of a pipe out of `x` or `pipe:x`."""
    kind, colon, rest = text.partition(":")
    if not colon and text:
        return text
    if kind != "pipe" or not rest:
        raise Failure(
            f"{text!r} does not name a pipe", kind="usage", hint="pxctl pipe list shows them", exit_code=USAGE
        )
    return rest


def pipe_route(text: str, verb: str = "") -> str:
    """Return the route of a pipe named as users do."""
    return f"/api/pipes/{quote(pipe_name(text))}" + (f"/{verb}" if verb else "")


def pipe_names(client: Client, texts: Sequence[str]) -> list[str]:
    """Return the bare names that names and globs mean, each once; only globs are asked of the daemon."""
    found: list[str] = []
    for text in texts:
        name = pipe_name(text)
        if _GLOB_SIGNS.isdisjoint(name):
            found.append(name)
        else:
            found += [unit.removeprefix(PREFIX) for unit in expand(client, [f"{PREFIX}{name}"])]
    return list(dict.fromkeys(found))


def exact_name(client: Client, text: str) -> str:
    """Return the bare name of the one pipe that a name or a glob means, for those who say it before they act on it."""
    name = pipe_name(text)
    return name if _GLOB_SIGNS.isdisjoint(name) else str(client.get(pipe_route(name)).document.get("name"))


def state_of(pipe: dict[str, Any]) -> str:
    """Return the word for a pipe of px.pipes/1, the same that `status` has for the unit."""
    if pipe.get("running") is not None:
        return "running"
    if pipe.get("queued"):
        return "queued"
    if pipe.get("config_error"):
        return "failed"
    return "idle" if pipe.get("enabled") else "disabled"


def run_in_background(client: Client, unit: str) -> dict[str, Any]:
    """Have a pipe run by hand without waiting for its end; return the units that `start` tells of.

    Raises:
        Failure: It runs already, or ended before it began.
    """
    execution = client.ask("POST", pipe_route(unit, "run"), content={}).document
    if execution.get("status") == "failed":
        from pxctl.executions import failure_of  # noqa: PLC0415 - the words of failures are seldom needed

        failure = failure_of(execution)
        if failure is not None:
            raise failure
    told = {"unit": unit, "state": execution.get("status"), "pid": execution.get("pid")}
    return {"units": [{**told, "execution": execution.get("id")}]}


def cancel_all_of(client: Client, unit: str, timeout: float | None) -> dict[str, Any]:
    """Cancel what runs and waits of a pipe; return the units that `stop` tells of."""
    ended = client.ask("POST", pipe_route(unit, "cancel"), timeout=timeout).document
    cancelled = [execution.get("id") for execution in ended.get("executions", [])]
    return {"units": [{"unit": unit, "state": "stopped", "pid": None, "cancelled": cancelled}], "survivors": []}


def refuse_restart(unit: str) -> Failure:
    """Return why a pipe is not restarted."""
    return Failure(
        "a pipe is not restarted: each execution is a run of its own, from its beginning to its end",
        kind="usage",
        hint=f"pxctl stop {unit} && pxctl start {unit}; the last one again: pxctl pipe retry ID",
        exit_code=USAGE,
        unit=unit,
    )
