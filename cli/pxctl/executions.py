"""Executions of pipes as the client tells them: found, followed to their end, explained; how one ended, in words.

What one ended with is an exit code of CONTRACT §3: 0 completed, 7 timed out, 1 else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pxctl import output
from pxctl.app import Invocation
from pxctl.client import Client, Document, Exit, Failure, bare_name, query, quote
from pxctl.follow import STREAMS, Outlet, ask_until, bytes_of, events_of
from pxctl.output import duration

NOT_KEPT = "pxctl: not all of its output was kept (pipes.output_file_bytes)"
STATUSES = ("queued", "running", "completed", "failed", "timed_out", "cancelled")
FINAL = frozenset(STATUSES[2:])
_RETRY, _VALIDATE, _PROMPT = "pxctl pipe retry {id}", "pxctl pipe validate {name}", "pxctl pipe show {name} --rendered"
_HINTS = {
    "timeout": "pxctl pipe config {name} timeout=30m",
    "disk_full": "pxctl doctor",
    **dict.fromkeys(("rate_limited", "network", "provider_error", "cancelled", "shutdown", "interrupted"), _RETRY),
    "auth_failed": "check presets.toml and the key that it names, then: pxctl pipe retry {id}",
    "model_not_found": "mend the model in {place}, then: pxctl pipe retry {id}",
    "quota_exhausted": "name another preset in pipe.md, or wait, then: pxctl pipe retry {id}",
    "preflight_failed": "start the provider ({provider}), then: pxctl pipe retry {id}",
    **dict.fromkeys(("agent_not_found", "agent_incompatible", "preset_not_found", "config_error"), _VALIDATE),
    **dict.fromkeys(("context_overflow", "safety_refusal"), _PROMPT),
    **dict.fromkeys(("budget_exceeded", "resource_limit"), "pxctl config show; pxctl pipe show {name}"),
}
"""The next step by error type; what is not here is told by the agent's stderr."""
_TAIL_LINES = 15


def is_execution_id(text: str) -> bool:
    """Say whether a name means an execution: ids are numbers. A pipe that is called 12 is `pipe:12`."""
    return text.isascii() and text.isdigit()


def find_execution(client: Client, text: str) -> Document:
    """Return the execution that an id means, or the newest one of a pipe."""
    if is_execution_id(text):
        return client.get(f"/api/executions/{int(text)}").document
    name = bare_name("pipe", text)
    newest = newest_of(client, name)
    if newest is None:
        detail, hint, unit = "it has no executions yet", f"pxctl pipe run {name}", f"pipe:{name}"
        raise Failure(detail, kind="unknown_unit", hint=hint, unit=unit)
    return newest


def newest_of(client: Client, name: str) -> Document | None:
    """Return the newest execution of a pipe, None where it has none."""
    page = client.get(query(f"/api/pipes/{quote(name)}/executions", [("limit", 1)])).document
    return next(iter(page.get("executions", [])), None)


def await_execution(client: Client, execution: Document, timeout: float | None = None) -> Document:
    """Return the whole row once it is final; a restart of the control plane meanwhile does not end the waiting."""
    number, unit = execution.get("id"), f"pipe:{execution.get('pipe_name')}"
    detail, hint = f"it is not over after {timeout or 0:g} s", f"pxctl pipe tail -f {number}"
    too_late = Failure(detail, kind="timed_out", hint=hint, unit=unit, execution=number)
    target = query(f"/api/executions/{number}", [("wait", True)])
    return ask_until(client, lambda _: target, timeout, too_late, met=True)


def exit_code_of(execution: Document) -> int:
    """Return what the end of an execution exits with: 0 completed, 7 timed out, 1 else (CONTRACT §3)."""
    return {"completed": Exit.OK, "timed_out": Exit.TIMED_OUT}.get(str(execution.get("status")), Exit.FAILED)


def took(execution: Document) -> str:
    """Return how long it ran, "25ms" or "3.2s"; empty where that is not known."""
    milliseconds = execution.get("duration_ms")
    if not isinstance(milliseconds, int):
        return ""
    return f"{milliseconds}ms" if milliseconds < 100 else duration(milliseconds / 1000)


def money(cost: Any) -> str:
    """Return US dollars: "$1.25", below a dollar with four digits."""
    if not output.is_number(cost):
        return output.ABSENT
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


def particulars(execution: Document) -> str:
    """Return duration, tokens and cost in words, those that are known."""
    tokens, cost = execution.get("tokens"), execution.get("cost")
    words = (took(execution), f"{tokens:,} tokens" if tokens else "", money(cost) if cost else "")
    return ", ".join(filter(None, words))


def error_word(execution: Document) -> str:
    """Return the error type, where the status does not say the same already."""
    status, kind = execution.get("status"), str(execution.get("error_type") or "")
    return "" if (status, kind) in {("timed_out", "timeout"), ("cancelled", "cancelled")} else kind


def sentence(execution: Document) -> str:
    """Return "execution 12 failed after 3.2s, 1,200 tokens, $0.0123 (crash): what happened"."""
    status, known, kind = str(execution.get("status")), particulars(execution), error_word(execution)
    spent = f" {'in' if status == 'completed' else 'after'} {known}" if known else ""
    why = f" ({kind})" if kind else ""
    message = f": {execution['error_message']}" if execution.get("error_message") else ""
    return f"execution {execution.get('id')} {status.replace('_', ' ')}{spent}{why}{message}"


def _hint_for(execution: Document) -> str:
    """Return the next step after an execution that did not complete."""
    kind = str(execution.get("error_type"))
    hint = _HINTS.get(kind, "pxctl pipe output {id} --stderr")
    if kind == "timeout" and execution.get("timeout_wanted_seconds") is not None:
        hint = "raise pipes.timeout_max_seconds in pxd.toml, then: pxctl daemon reload"
    preset, provider = execution.get("preset_id"), execution.get("provider")
    place = "pipe.md" if preset is None else f"[presets.{preset}] of presets.toml"
    return hint.format(id=execution.get("id"), name=execution.get("pipe_name"), place=place, provider=provider)


def failure_of(execution: Document, successor: Document | None = None) -> Failure | None:
    """Return the failure of a final execution that did not complete, with the retry that follows; None of others."""
    code, detail, hint = exit_code_of(execution), sentence(execution), _hint_for(execution)
    if code == Exit.OK:
        return None
    if successor is not None:
        after = successor.get("id")
        detail, hint = f"{detail}; it is tried again as execution {after}", f"pxctl pipe tail -f {after}"
    kind, unit = str(execution.get("error_type") or execution.get("status")), f"pipe:{execution.get('pipe_name')}"
    return Failure(detail, kind=kind, hint=hint, exit_code=code, unit=unit, execution=execution.get("id"))


def explain_execution(client: Client, number: str) -> Document:
    """Return what is known of an execution in the form of a px.why/1 document."""
    execution = find_execution(client, number)
    unit, status = f"pipe:{execution.get('pipe_name')}", str(execution.get("status"))
    target = query("/api/events", [("unit", unit), ("limit", 1000)])
    events = [event for _, event in events_of(client, lambda: target, follow=False)]
    known = {event["id"]: event for event in events if "id" in event}
    own = [event["id"] for event in events if event.get("execution") == execution.get("id") and "id" in event]
    chain: list[Document] = []
    wanted = own[-1] if own else None
    while wanted in known:
        chain.insert(0, known.pop(wanted))
        wanted = chain[0].get("cause")
    words = [f"{sentence(execution)}."]
    if execution.get("trigger_event"):
        words.append(f"It was started by the event {execution['trigger_event']}.")
    if execution.get("retry_of"):
        number_of_try = int(execution.get("retry_count") or 0) + 1
        words.append(f"It is try {number_of_try}, after execution {execution['retry_of']}.")
    is_bad = status in FINAL and status != "completed"
    going = f"pxctl pipe {'output' if status in FINAL else 'tail -f'} {execution.get('id')}"
    return {
        "schema": "px.why/1",
        "unit": unit,
        "execution": execution.get("id"),
        "state": status,
        "reason": execution.get("error_type"),
        "summary": " ".join(words),
        "chain": chain,
        "stderr_tail": "\n".join(str(execution.get("stderr") or "").splitlines()[-_TAIL_LINES:]) if is_bad else "",
        "next_step": _hint_for(execution) if is_bad else going,
    }


def title_of(execution: Document) -> str:
    return f"pipe:{execution.get('pipe_name')} execution {execution.get('id')}"


def successor_of(client: Client, execution: Document) -> Document | None:
    """Return the retry that was queued after an execution; None where none is known. Never fails."""
    if execution.get("status") not in {"failed", "timed_out"}:
        return None
    target = query(f"/api/pipes/{quote(str(execution.get('pipe_name')))}/executions", [("limit", 20)])
    try:
        later = client.get(target).document.get("executions", [])
    except Failure:
        return None
    return next((one for one in later if one.get("retry_of") == execution.get("id")), None)


# -- followed to the end ----------------------------------------------------------------------------------------------


def execution_route(execution: Document) -> str:
    """Return the route of an execution, under its pipe."""
    return f"/api/pipes/{quote(str(execution.get('pipe_name')))}/executions/{execution.get('id')}"


def execution_events(client: Client, execution: Document) -> Iterator[Document]:
    """Yield `start`, then `output` and `status` as they come, and `done` with the final row.

    Raises Failure: there is no such execution any more, or the daemon is away for too long.
    """
    seen, began = dict.fromkeys(STREAMS, 0), False

    def target() -> str:
        # The offset is that of stdout; what comes twice of stderr is passed over.
        return query(f"{execution_route(execution)}/tail", [("offset", seen["stdout"] or None)])

    for _, event in events_of(client, target, follow=True):
        shown = event
        match event.get("event"):
            case "output":
                stream, content = str(event.get("stream")), bytes_of(event)
                offset, known = int(event.get("offset") or 0), seen.get(stream, 0)
                if offset + len(content) <= known:
                    continue
                seen[stream] = offset + len(content)
                if offset < known:
                    shown = {key: value for key, value in event.items() if key not in {"text", "base64"}}
                    shown.update(offset=known, end=seen[stream], bytes=content[known - offset :])
            case "start":
                event["event"] = "status" if began else "start"
                began = True
        yield shown
        if event.get("event") == "done":
            return


class ExecutionView:
    """Shows the events of an execution. Use as a context manager: while it lasts, a spinner may be drawn."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        self._invocation, self._unit = invocation, unit
        self._phase, self._has_printed = "…", False
        self._spinner = invocation.spinner(unit, lambda: self._phase)
        self._out, self._err = (Outlet(invocation, stream) for stream in STREAMS)

    def __enter__(self) -> ExecutionView:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close_lines()

    def show(self, event: Document) -> None:
        if event.get("event") == "output":
            pair = (self._out, self._err)
            outlet, other = pair if event.get("stream") != "stderr" else pair[::-1]
            self._spinner.stop()
            self._has_printed = True
            if self._invocation.out_is_terminal and self._invocation.err_is_terminal:
                other.close_line()
            outlet.put(bytes_of(event))
        elif event.get("event") in {"start", "status"}:
            execution = event.get("execution") or {}
            words = where_it_is(execution)
            if words and words != self._phase:
                self._phase = words
                self._close_lines()
                self._invocation.notice(f"pxctl: {self._unit} execution {execution.get('id')}: {words}")
            if not self._has_printed and execution.get("status") in {"queued", "running"}:
                self._spinner.start()

    def _close_lines(self) -> None:
        self._spinner.stop()
        self._out.close_line()
        self._err.close_line()


def where_it_is(execution: Document) -> str:
    """Return what an execution is doing: "waiting in line: position 2", "running"; empty once it is over."""
    if execution.get("status") != "queued":
        return "running" if execution.get("status") == "running" else ""
    now, not_before = time.time(), output.epoch(execution.get("not_before"))
    if not_before is not None and not_before > now:
        return f"waiting {output.duration(int(not_before - now) + 1)} before it is tried"
    return f"waiting in line: position {execution['position']}" if execution.get("position") else ""


def follow_execution(invocation: Invocation, execution: Document) -> Document:
    """Show an execution's output and where it is until it is over; return the final row."""
    final = execution
    with ExecutionView(invocation, f"pipe:{execution.get('pipe_name')}") as view:
        for event in execution_events(invocation.client(), execution):
            view.show(event)
            if isinstance(known := event.get("execution"), dict):
                final = known
    if final.get("truncated"):
        invocation.warn(NOT_KEPT)
    return final
