"""Shell completion: the scripts, which call `pxctl` itself with `_PXCTL_COMPLETE` set, and the live names.

Names are asked of a running daemon, which gets a tenth of a second, or not at all: completion never starts a daemon and
never prints an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import click

from pxctl.client import Client, query, route
from pxctl.failures import Failure
from pxctl.invocation import Invocation

Completer = Callable[[click.Context, click.Parameter, str], list[str]]

LIMIT_SECONDS = 0.1


def _ask(context: click.Context, target: str) -> Any:
    """Return the document at `target`; {} when it does not come in time."""
    invocation: Invocation = context.find_root().obj or Invocation({})
    with contextlib.suppress(Failure, OSError):
        return Client(invocation.socket_path).get(target, timeout=LIMIT_SECONDS)
    return {}


def _offer(names: Iterable[object], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(map(str, names)) if name.startswith(incomplete)]


def _listing(target: str, key: str, kind: str, *members: str) -> Completer:
    """Return what offers members of the objects that the daemon lists, with their kind once it was typed."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        listed = _ask(context, target).get(key, [])
        names = [(one.get("kind", kind), one.get(member)) for member in members for one in listed]
        full = (f"{its}:{name}" for its, name in names)
        return _offer((name for _, name in names), incomplete) or _offer(full, incomplete)

    return complete


def _choices(*words: str) -> Completer:
    return lambda _, __, incomplete: _offer(words, incomplete)


tool_names = _listing("/api/tools", "tools", "tool", "name")
kernel_names = _listing("/api/kernels", "kernels", "kernel", "name", "id")
pipe_names = _listing("/api/pipes", "pipes", "pipe", "name")
unit_names = _listing(query("/api/units", [("name", "*")]), "units", "", "name")
execution_ids = _listing("/api/executions", "executions", "", "id")
example_tools = _choices("example:compound-interest", "example:lorenz-ode-solver", "example:text-stats")
pipe_keys = _choices(
    "agent=", "allow_empty=", "command=", "description=", "effort=", "enabled=", "history=", "limits=", "preset=",
    "retries=", "run_on_enable=", "schedule=", "schedule_config=", "timeout=", "timezone=", "title=", "trigger=",
)  # fmt: skip
example_pipes = _choices("example:daily-digest", "example:disk-digest", "example:tell-failure")


def execution_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    ids = execution_ids(context, parameter, incomplete) if not incomplete or incomplete[0].isdigit() else []
    return ids + (pipe_names(context, parameter, incomplete) if not incomplete[:1].isdigit() else [])


def assignments(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    if "=" in incomplete:
        return []
    with contextlib.suppress(Failure):
        tool = _ask(context, route("tool", context.params.get("tool") or ""))
        return _offer([f"{key}=" for key in (tool.get("input_schema") or {}).get("properties") or {}], incomplete)
    return []
