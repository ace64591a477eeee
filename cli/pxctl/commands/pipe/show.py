"""`pxctl pipe show`: one pipe, its prompt as it would be now, or one execution."""

from __future__ import annotations

import json

import click

from pxctl import wording
from pxctl.client import query
from pxctl.commanding import READS, declare
from pxctl.completing import execution_names
from pxctl.executions import is_execution_id, money
from pxctl.failure import UNKNOWN_UNIT, USAGE, Failure
from pxctl.moments import local
from pxctl.pipes import pipe_name, pipe_route, state_of
from pxctl.printing import print_facts
from pxctl.shown_text import shaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation

_PIPE_FACTS = (
    "name", "title", "description", "state", "schedule", "events", "next_run", "running", "queued", "last_run",
    "last_status", "last_success", "consecutive_failures", "agent", "presets", "average_duration_seconds", "muted",
    "file",
)  # fmt: skip
_EXECUTION_FACTS = (
    "id", "pipe_name", "status", "position", "error_type", "error_message", "trigger", "trigger_event", "retry_of",
    "retry_count", "queued_at", "not_before", "started_at", "finished_at", "duration_ms", "pid", "exit_code", "signal",
    "agent", "agent_version", "preset_id", "provider", "model", "tokens", "cost", "timeout_seconds", "context_start",
    "context_end", "output_dir", "session_path", "stdout_bytes", "stderr_bytes", "truncated",
)  # fmt: skip
_MOMENTS = frozenset({
    "next_run", "last_run", "last_success", "queued_at", "not_before", "started_at", "finished_at", "context_start",
    "context_end",
})  # fmt: skip


@declare(
    "show",
    effect=READS,
    examples=[
        "pxctl pipe show disk-digest",
        "pxctl pipe show disk-digest --rendered    # the prompt as the agent would get it now",
        "pxctl pipe show 12                        # an execution",
        "pxctl pipe show 12 --rendered             # the prompt that it got",
    ],
)
@click.argument("pipe", metavar="NAME|ID", shell_complete=execution_names)
@click.option("--rendered", is_flag=True, help="Only the prompt, with its five facts.")
def command(invocation: Invocation, pipe: str, rendered: bool) -> None:
    """Show a pipe or an execution; with --json everything that is known of it."""
    number = is_execution_id(pipe)
    invocation.action = f"show {'execution ' if number else ''}{pipe}"
    asks_for_prompt = rendered and not number
    target = (
        f"/api/executions/{int(pipe)}"
        if number
        else query(pipe_route(pipe_name(pipe)), [("rendered", True if asks_for_prompt else None)])
    )
    answer = invocation.client().get(target)
    document = answer.document
    if document.get("schema") == "px.queue/1":  # `queue` is a route: no pipe has that name
        raise Failure("there is no pipe 'queue'", kind="unknown_unit", hint="pxctl pipe queue", exit_code=UNKNOWN_UNIT)
    if invocation.json:
        invocation.document_as_it_came(answer.raw)
    elif rendered:
        _print_prompt(invocation, document.get("rendered_prompt" if number else "rendered"), pipe)
    elif invocation.quiet:
        invocation.say(str(document.get("id" if number else "name")))
    elif number:
        print_facts(invocation, _facts(invocation, document, _EXECUTION_FACTS))
    else:
        _print_pipe(invocation, document)


def _print_prompt(invocation: Invocation, prompt: object, name: str) -> None:
    """Write the prompt, on a pipe byte for byte; a terminal gets nothing that could steer it."""
    if not isinstance(prompt, str):
        raise Failure("it has no prompt", kind="failed", hint=f"pxctl pipe show {name}", exit_code=USAGE)
    invocation.write(shaped(prompt, colour=False) if invocation.out_is_terminal else prompt)


def _print_pipe(invocation: Invocation, pipe: dict[str, Any]) -> None:
    facts = _facts(invocation, {**pipe, "state": state_of(pipe)}, _PIPE_FACTS)
    if decision := pipe.get("last_decision"):
        at = local(decision.get("at"), terminal=invocation.out_is_terminal)
        facts.append(("last decision", f"{at}: {decision.get('text')}"))
    facts += [("warning", str(warning)) for warning in pipe.get("warnings") or []]
    if pipe.get("config_error"):
        facts.append(("broken", str(pipe["config_error"])))
    print_facts(invocation, facts)


def _facts(invocation: Invocation, document: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        value = document.get(name)
        if value is None or value in ("", [], 0, False):
            continue
        label = name.removesuffix("_seconds").removesuffix("_ms")
        found.append((label, _words(invocation, name, value)))
    return found


def _words(invocation: Invocation, name: str, value: Any) -> str:
    if name in _MOMENTS:
        return local(value, terminal=invocation.out_is_terminal)
    if name == "cost":
        return money(value)
    if name == "duration_ms":
        return wording.duration(value / 1000)
    if name.endswith("_seconds"):
        return wording.duration(value)
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
