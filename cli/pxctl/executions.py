"""Executions of pipes: found, listed page after page; and how one ended, in a sentence, a hint and an exit code."""

from __future__ import annotations

import time

from pxctl import output
from pxctl.client import bare_name, query, quote
from pxctl.failure import FAILED, OK, TIMED_OUT, UNKNOWN_UNIT, Failure, Interrupted, Problem, Unreachable, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from pxctl.client import Client

    Execution = dict[str, Any]

PREFIX = "pipe:"
STATUSES = ("queued", "running", "completed", "failed", "timed_out", "cancelled")
FINAL = frozenset(STATUSES[2:])
_EXIT = {"completed": OK, "timed_out": TIMED_OUT}
_RETRY, _VALIDATE, _PROMPT = "pxctl pipe retry {id}", "pxctl pipe validate {name}", "pxctl pipe show {name} --rendered"
_KEY = "check presets.toml and the key that it names, then: pxctl pipe retry {id}"
_MODEL = "mend the model in {place}, then: pxctl pipe retry {id}"
_QUOTA = "name another preset in pipe.md, or wait, then: pxctl pipe retry {id}"
_PROVIDER = "start the provider ({provider}), then: pxctl pipe retry {id}"
_LIMITS = "pxctl config show; pxctl pipe show {name}"
_LONGEST = "raise pipes.timeout_max_seconds in pxd.toml, then: pxctl daemon reload"
_HINTS = {
    "timeout": "pxctl pipe config {name} timeout=30m",
    "rate_limited": _RETRY,
    "network": _RETRY,
    "provider_error": _RETRY,
    "cancelled": _RETRY,
    "shutdown": _RETRY,
    "interrupted": _RETRY,
    "auth_failed": _KEY,
    "model_not_found": _MODEL,
    "quota_exhausted": _QUOTA,
    "preflight_failed": _PROVIDER,
    "agent_not_found": _VALIDATE,
    "agent_incompatible": _VALIDATE,
    "preset_not_found": _VALIDATE,
    "config_error": _VALIDATE,
    "context_overflow": _PROMPT,
    "safety_refusal": _PROMPT,
    "budget_exceeded": _LIMITS,
    "resource_limit": _LIMITS,
    "disk_full": "pxctl doctor",
}
"""The next step by error type; what is not here is told by the agent's stderr."""
_SLICE_SECONDS = 300.0
_TENTH_MS = 100
_SUCCESSORS_LOOKED_AT = 20
_LEAST_SECONDS = 0.001
"""A socket takes a timeout of 0 for "do not block"."""


def is_execution_id(text: str) -> bool:
    """Say whether a name means an execution: ids are numbers. A pipe that is called 12 is `pipe:12`."""
    return text.isascii() and text.isdigit()


def required_id(text: str) -> str:
    """Return an execution's id as it was given.

    Raises:
        Failure: It is none.
    """
    if not is_execution_id(text):
        raise usage(f"{text!r} is no id of an execution", "pxctl pipe runs shows the ids")
    return text


def execution_route(execution: Execution, verb: str = "") -> str:
    """Return the route of an execution, under its pipe."""
    route = f"/api/pipes/{quote(str(execution.get('pipe_name')))}/executions/{execution.get('id')}"
    return f"{route}/{verb}" if verb else route


def find_execution(client: Client, text: str) -> Execution:
    """Return the execution that an id means, or the newest one of a pipe.

    Raises:
        Failure: There is none.
    """
    if is_execution_id(text):
        found: Execution = client.get(f"/api/executions/{int(text)}").document
        return found
    name = bare_name("pipe", text)
    newest = newest_of(client, name)
    if newest is None:
        raise Failure(
            "it has no executions yet",
            kind="unknown_unit",
            hint=f"pxctl pipe run {name}",
            exit_code=UNKNOWN_UNIT,
            unit=f"{PREFIX}{name}",
        )
    return newest


def newest_of(client: Client, name: str) -> Execution | None:
    """Return the newest execution of a pipe, None where it has none.

    Raises:
        Problem: There is no such pipe.
    """
    page = client.get(query(f"/api/pipes/{quote(name)}/executions", [("limit", 1)])).document
    return next(iter(page.get("executions", [])), None)


def await_execution(client: Client, execution: Execution, timeout: float | None = None) -> Execution:
    """Return the whole row once it is final; a restart of the control plane meanwhile does not end the waiting.

    Args:
        client: Of the daemon, which answered before.
        execution: Which.
        timeout: Seconds; None is without end.

    Raises:
        Failure: The time is over (`timed_out`), or the daemon is away for too long.
    """
    from pxctl.follow import Patience

    patience = Patience(met=True)
    deadline = None if timeout is None else time.monotonic() + timeout
    target = query(f"/api/executions/{execution.get('id')}", [("wait", True)])
    while True:
        left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
        part = min(max(left, _LEAST_SECONDS), _SLICE_SECONDS)
        try:
            found: Execution = client.get(target, timeout=part).document
            return found
        except (Interrupted, Unreachable, Problem) as failure:
            patience.bear(failure)
        except Failure as failure:
            if failure.kind != "timed_out":
                raise
            patience.met()
        if deadline is not None and time.monotonic() >= deadline:
            raise _too_late(execution, timeout)


def _too_late(execution: Execution, timeout: float | None) -> Failure:
    number = execution.get("id")
    return Failure(
        f"it is not over after {timeout:g} s",
        kind="timed_out",
        hint=f"pxctl pipe tail -f {number}",
        exit_code=TIMED_OUT,
        unit=f"{PREFIX}{execution.get('pipe_name')}",
        execution=number,
    )


# -- how it ended -----------------------------------------------------------------------------------------------------


def exit_code_of(execution: Execution) -> int:
    """Return what the end of an execution exits with: 0 completed, 7 timed out, 1 else (CONTRACT §3)."""
    return _EXIT.get(str(execution.get("status")), FAILED)


def particulars(execution: Execution) -> list[str]:
    """Return duration, tokens and cost in words, those that are known."""
    words = []
    if took(execution):
        words.append(took(execution))
    if tokens := execution.get("tokens"):
        words.append(f"{tokens:,} tokens")
    if execution.get("cost"):
        words.append(money(execution["cost"]))
    return words


def took(execution: Execution) -> str:
    """Return how long it ran, "25ms" or "3.2s"; empty where that is not known."""
    milliseconds = execution.get("duration_ms")
    if not isinstance(milliseconds, int):
        return ""
    return f"{milliseconds}ms" if milliseconds < _TENTH_MS else output.duration(milliseconds / 1000)


def money(cost: object) -> str:
    """Return US dollars: "$1.25", below a dollar with four digits."""
    if not isinstance(cost, int | float) or isinstance(cost, bool):
        return output.ABSENT
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def sentence(execution: Execution) -> str:
    """Return "execution 12 failed after 3.2s, 1,200 tokens, $0.0123 (crash): what happened"."""
    status = str(execution.get("status"))
    known = particulars(execution)
    spent = f" {'in' if status == 'completed' else 'after'} {', '.join(known)}" if known else ""
    kind = error_word(execution)
    why = f" ({kind})" if kind else ""
    message = f": {execution['error_message']}" if execution.get("error_message") else ""
    return f"execution {execution.get('id')} {status.replace('_', ' ')}{spent}{why}{message}"


def error_word(execution: Execution) -> str:
    """Return the error type, where the status does not say the same already."""
    status, kind = execution.get("status"), str(execution.get("error_type") or "")
    return "" if (status, kind) in {("timed_out", "timeout"), ("cancelled", "cancelled")} else kind


def failure_of(execution: Execution, successor: Execution | None = None) -> Failure | None:
    """Return the failure of an execution that did not complete; None of one that did.

    Args:
        execution: A final one.
        successor: The retry that follows it, where there is one.
    """
    code = exit_code_of(execution)
    if code == OK:
        return None
    number = execution.get("id")
    detail, hint = sentence(execution), hint_for(execution)
    if successor is not None:
        after = successor.get("id")
        detail += f"; it is tried again as execution {after}"
        hint = f"pxctl pipe tail -f {after}"
    return Failure(
        detail,
        kind=str(execution.get("error_type") or execution.get("status")),
        hint=hint,
        exit_code=code,
        unit=f"{PREFIX}{execution.get('pipe_name')}",
        execution=number,
    )


def hint_for(execution: Execution) -> str:
    """Return the next step after an execution that did not complete."""
    kind = str(execution.get("error_type"))
    is_cut = kind == "timeout" and execution.get("timeout_wanted_seconds") is not None
    hint = _LONGEST if is_cut else _HINTS.get(kind, "pxctl pipe output {id} --stderr")
    preset, provider = execution.get("preset_id"), execution.get("provider")
    place = "pipe.md" if preset is None else f"[presets.{preset}] of presets.toml"
    return hint.format(id=execution.get("id"), name=execution.get("pipe_name"), place=place, provider=provider)


def successor_of(client: Client, execution: Execution) -> Execution | None:
    """Return the retry that was queued after an execution; None where none is known. Never fails."""
    if execution.get("status") not in {"failed", "timed_out"}:
        return None
    target = query(
        f"/api/pipes/{quote(str(execution.get('pipe_name')))}/executions", [("limit", _SUCCESSORS_LOOKED_AT)]
    )
    try:
        later = client.get(target).document.get("executions", [])
    except Failure:
        return None
    return next((one for one in later if one.get("retry_of") == execution.get("id")), None)


# -- listed -----------------------------------------------------------------------------------------------------------

_PAGE = 500
"""The longest page that the daemon gives."""


def read_pages(
    client: Client,
    filters: Sequence[tuple[str, object]],
    pipes: list[str],
    most: int | None,
    cursor: int | None = None,
) -> tuple[list[Execution], int | None]:
    """Return the newest executions and the cursor behind them; None where there are no more.

    Args:
        client: Of the daemon.
        filters: Of the query: status, since, until.
        pipes: Bare names; none are all.
        most: At most so many; None for all.
        cursor: Begin behind it.
    """
    routes = [f"/api/pipes/{quote(pipe)}/executions" for pipe in pipes] or ["/api/executions"]
    sources = [_rows(client, route, filters, most, cursor) for route in routes]
    found: list[Execution] = []
    # Ids grow with time: those of several pipes are merged by them.
    heads = [(head, source) for source in sources if (head := next(source, None)) is not None]
    while heads and (most is None or len(found) < most):
        at = max(range(len(heads)), key=lambda index: int(heads[index][0]["id"]))
        head, source = heads.pop(at)
        found.append(head)
        if (following := next(source, None)) is not None:
            heads.append((following, source))
    return found, int(found[-1]["id"]) if heads and found else None


def _rows(
    client: Client, route: str, filters: Sequence[tuple[str, object]], most: int | None, cursor: int | None
) -> Iterator[Execution]:
    """Yield the executions of one source; a page is asked for when its first row is wanted."""
    size = _PAGE if most is None else min(most + 1, _PAGE)
    while True:
        page = client.get(query(route, [*filters, ("limit", size), ("cursor", cursor)])).document
        yield from page.get("executions", [])
        cursor = page.get("next_cursor")
        if cursor is None:
            return
