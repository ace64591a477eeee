"""Shell completion: the scripts, which call `pxctl` itself with `_PXCTL_COMPLETE` set, and the live names.

Names are asked of a running daemon, which gets a tenth of a second, or not at all: completion never starts a daemon and
never prints an error. The scripts of zsh and fish are click's; bash cuts words at the colon of a unit's name: its own
script puts the words together again and takes off the answers what bash holds already of a word.
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

SHELLS = ("bash", "zsh", "fish")
LIMIT_SECONDS = 0.1
_BASH = r"""# bash completion for pxctl
_pxctl_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" current response kind value
    local -a words
    read -ra words <<< "$line"
    case "$line" in
        *[[:space:]]) words+=("") ;;
    esac
    current="${words[${#words[@]}-1]}"
    response=$(env COMP_WORDS="$(printf '%q ' "${words[@]}")" COMP_CWORD=$((${#words[@]} - 1)) \
        _PXCTL_COMPLETE=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    while IFS=',' read -r kind value; do
        case "$kind" in
            dir) compopt -o dirnames 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
            plain)
                if [[ "$COMP_WORDBREAKS" == *:* && "$current" == *:* ]]; then
                    value="${value#"${current%"${current##*:}"}"}"
                fi
                if [[ "$value" == *= ]]; then
                    compopt -o nospace 2>/dev/null
                fi
                COMPREPLY+=("$value")
                ;;
        esac
    done <<< "$response"
    return 0
}
complete -o nosort -F _pxctl_complete pxctl 2>/dev/null || complete -F _pxctl_complete pxctl
"""


def script(shell: str, command: click.Command) -> str:
    if shell == "bash":
        return _BASH
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    return found(command, {}, "pxctl", "_PXCTL_COMPLETE").source()


def _ask(context: click.Context, target: str) -> Any:
    """Return the document at `target`; {} when it does not come in time."""
    invocation: Invocation = context.find_root().obj or Invocation({})
    with contextlib.suppress(Failure, OSError):
        return Client(invocation.socket_path).get(target, timeout=LIMIT_SECONDS).document
    return {}


def _offer(names: Iterable[object], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(map(str, names)) if name.startswith(incomplete)]


def _listing(target: str, key: str, kind: str, *members: str) -> Completer:
    """Return what offers members of the objects that the daemon lists, with their kind once it was typed."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        names = [one.get(member) for member in members for one in _ask(context, target).get(key, [])]
        return _offer(names, incomplete) or (_offer([f"{kind}:{name}" for name in names], incomplete) if kind else [])

    return complete


def _choices(*words: str) -> Completer:
    return lambda _, __, incomplete: _offer(words, incomplete)


tool_names = _listing("/api/tools", "tools", "", "name")
kernel_names = _listing("/api/kernels", "kernels", "kernel", "name", "id")
pipe_names = _listing("/api/pipes", "pipes", "pipe", "name")
execution_ids = _listing("/api/executions", "executions", "", "id")
example_tools = _choices("example:compound-interest", "example:lorenz-ode-solver", "example:text-stats")
example_pipes = _choices("example:daily-digest", "example:disk-digest", "example:tell-failure")
pipe_keys = _choices(
    "agent=", "allow_empty=", "command=", "description=", "effort=", "enabled=", "history=", "limits=", "preset=",
    "retries=", "run_on_enable=", "schedule=", "schedule_config=", "timeout=", "timezone=", "title=", "trigger=",
)  # fmt: skip


def unit_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Offer full names of units, and bare ones while no kind was typed."""
    units = [str(unit.get("unit")) for unit in _ask(context, query("/api/units", [("name", "*")])).get("units", [])]
    return _offer([unit.partition(":")[2] for unit in units], incomplete) or _offer(units, incomplete)


def execution_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer what names an execution: its id, or the pipe whose newest one it is."""
    ids = execution_ids(context, parameter, incomplete) if not incomplete or incomplete[0].isdigit() else []
    return ids + (pipe_names(context, parameter, incomplete) if not incomplete[:1].isdigit() else [])


def assignments(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Offer `key=` for the inputs of the tool that was named."""
    if "=" in incomplete:
        return []
    with contextlib.suppress(Failure):
        tool = _ask(context, route("tool", context.params.get("tool") or ""))
        return _offer([f"{key}=" for key in (tool.get("input_schema") or {}).get("properties") or {}], incomplete)
    return []
