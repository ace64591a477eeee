"""Executions of pipes as the client tells them: found, followed to their end; how one ended, in
words.

What one ended with is an exit code of CONTRACT §3: 0 completed, 7 timed out, 1 else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pxctl import output
from pxctl.app import Invocation
from pxctl.client import Client, Document, Exit, Failure, bare_name, query, route
from pxctl.output import duration
from pxctl.streams import Screen, ask_until, bytes_of, events_of

NOT_KEPT = "pxctl: not all of its output was kept: the disk was full, or files were removed"
STATUSES = ("queued", "running", "completed", "failed", "timed_out", "cancelled")
_AGAIN, _CHECK = "pxctl pipe retry {id}", "pxctl pipe validate {name}"
_HINTS = {
    "timeout": f"raise timeout: in pipe.md, then: {_AGAIN}",
    "disk_full": "pxctl doctor",
    "budget_exceeded": f"raise limits: or budget: in pipe.md, then: {_AGAIN}",
    **dict.fromkeys(
        ("rate_limited", "network", "provider_error", "cancelled", "shutdown", "interrupted"),
        _AGAIN,
    ),
    "auth_failed": f"check {{credentials}}, then: {_AGAIN}",
    "model_not_found": f"mend the model in {{place}}, then: {_AGAIN}",
    "quota_exhausted": f"name another preset in pipe.md, or wait, then: {_AGAIN}",
    "preflight_failed": f"start the provider ({{provider}}), then: {_AGAIN}",
    **dict.fromkeys(
        ("agent_not_found", "agent_incompatible", "preset_not_found", "config_error"), _CHECK
    ),
}  # the next step by error type; what is not here is told by the agent's stderr


def find_execution(client: Client, text: str) -> Document:
    """Return the execution that an id means, or the newest one of a pipe; a pipe that is called
    12 is `pipe:12`.
    """
    if text.isascii() and text.isdigit():
        return client.get(f"/api/executions/{int(text)}")
    name = bare_name("pipe", text)
    if (newest := newest_of(client, name)) is None:
        hint, unit = f"pxctl pipe run {name}", f"pipe:{name}"
        raise Failure("it has no executions yet", kind="unknown_unit", hint=hint, unit=unit)
    return newest


def explain_number(client: Client, failure: Failure, name: str, command: str) -> None:
    """Say of a number that is no unit whether it is an execution, and the `command` for that."""
    if failure.kind != "unknown_unit" or not name.isdecimal():
        return
    failure.hint = f"there is no execution {name} either: pxctl pipe runs"
    with contextlib.suppress(Failure):
        find_execution(client, name)
        failure.hint = f"{name} is the id of an execution: {command} {name}"


def newest_of(client: Client, name: str) -> Document | None:
    page = client.get(query(route("pipe", name, "executions"), [("limit", 1)]))
    return next(iter(page.get("executions", [])), None)


def await_execution(client: Client, execution: Document, timeout: float | None = None) -> Document:
    """Return the whole row once it is final; a restart of the control plane meanwhile does not
    end the waiting.
    """
    target = query(f"/api/executions/{execution['id']}", [("wait", True)])
    try:
        return ask_until(client, lambda _: target, timeout)
    except Failure as failure:
        if failure.kind == "timed_out":
            failure.detail, failure.unit = (
                f"it is not over after {timeout:g} s",
                f"pipe:{execution['pipe_name']}",
            )
            failure.hint = f"pxctl pipe tail -f {execution['id']}"
        raise


def successor_of(client: Client, execution: Document) -> Document | None:
    if execution["status"] not in {"failed", "timed_out"}:
        return None
    target = query(route("pipe", execution["pipe_name"], "executions"), [("limit", 20)])
    with contextlib.suppress(Failure):
        later = client.get(target).get("executions", [])
        return next((one for one in later if one.get("retry_of") == execution["id"]), None)
    return None


def route_of(execution: Document, verb: str) -> str:
    return route("pipe", f"pipe:{execution['pipe_name']}", f"executions/{execution['id']}/{verb}")


def is_final(execution: Document) -> bool:
    return execution["status"] in STATUSES[2:]


def exit_code_of(execution: Document) -> int:
    return {"completed": Exit.OK, "timed_out": Exit.TIMED_OUT}.get(execution["status"], Exit.FAILED)


def title_of(execution: Document) -> str:
    return f"pipe:{execution['pipe_name']} execution {execution['id']}"


def took(execution: Document) -> str:
    """Return how long it ran, "25ms" or "3.2s"; empty where that is not known."""
    spent = execution.get("duration_ms")
    return "" if spent is None else f"{spent}ms" if spent < 100 else duration(spent / 1000)


def cost_of(execution: Document) -> str:
    return f"${execution['cost']:.4f}" if execution.get("cost") is not None else ""


def sentence(execution: Document) -> str:
    """Return "execution 12 failed after 3.2s (crash): what happened"."""
    status, spent, kind = execution["status"], took(execution), execution.get("error_type")
    spent = spent and f" {'in' if status == 'completed' else 'after'} {spent}"
    why = f" ({kind})" if kind else ""
    message = f": {execution['error_message']}" if execution.get("error_message") else ""
    return f"execution {execution['id']} {status.replace('_', ' ')}{spent}{why}{message}"


def where_it_is(execution: Document) -> str:
    """Return what an execution is doing: "waiting in line: position 2", "running"; empty once it
    is over.
    """
    if execution["status"] != "queued":
        return "" if is_final(execution) else "running"
    now, not_before = time.time(), output.epoch(execution.get("not_before"))
    if not_before is not None and not_before > now:
        return f"waiting {duration(int(not_before - now) + 1)} before it is tried"
    if not execution.get("position"):
        return ""
    obstacle = f", for {execution['waits_for']}" if execution.get("waits_for") else ""
    return f"waiting in line: position {execution['position']}{obstacle}"


def failure_of(execution: Document, successor: Document | None = None) -> Failure:
    """Return the failure of an execution that is over and did not complete, with the retry that
    follows.
    """
    kind, preset, name = (execution.get(key) for key in ("error_type", "preset_id", "pipe_name"))
    place = "pipe.md" if preset is None else f"[presets.{preset}] of presets.toml"
    credentials = f"the login of {execution.get('agent')}, or its key in .env beside pipe.md"
    if preset is not None:
        credentials = f"presets.toml and the key that [presets.{preset}] names"
    hint = _HINTS.get(str(kind), _evidence(execution))
    hint = hint.format(
        id=execution["id"],
        name=name,
        place=place,
        credentials=credentials,
        provider=execution.get("provider"),
    )
    detail, kind = sentence(execution), str(kind or execution["status"])
    if successor is not None:
        after = successor.get("id")
        detail, hint = (
            f"{detail}; it is tried again as execution {after}",
            f"pxctl pipe tail -f {after}",
        )
    members = {"unit": f"pipe:{name}", "execution": execution["id"]}
    return Failure(detail, kind=kind, hint=hint, exit_code=exit_code_of(execution), **members)


def _evidence(execution: Document) -> str:
    """Return the command that shows what an execution printed: the stream that has something."""
    if execution.get("stderr_bytes") == 0:
        return "pxctl pipe output {id}" if execution.get("stdout_bytes") else "pxctl pipe show {id}"
    return "pxctl pipe output {id} --stderr"


def execution_events(client: Client, execution: Document) -> Iterator[tuple[bytes, Document]]:
    """Yield line and event: `start` at each connection, `output`, `status`, and `done` with the
    final row.

    Raises Failure: there is no such execution any more, or the daemon is away for too long.
    """
    for line, event in events_of(client, route_of(execution, "tail"), {}):
        yield line, event
        if event["event"] == "done":
            return


def follow_execution(invocation: Invocation, execution: Document) -> Document:
    final = execution
    with Screen(invocation, f"pipe:{execution['pipe_name']}") as screen:
        for _, event in execution_events(invocation.client(), execution):
            final = event.get("execution") or final
            if event["event"] == "output":
                screen.put(str(event.get("stream")), bytes_of(event))
            elif (words := where_it_is(final)) and words != screen.phase:
                screen.say(f"pxctl: {title_of(final)}: {words}")
                screen.wait(words)
    if final.get("truncated"):
        invocation.warn(NOT_KEPT)
    return final
