"""Shell completion: the scripts, which call `pxctl` itself with `_PXCTL_COMPLETE` set, and the live names.

Names are asked of a running daemon, within a tenth of a second, or not at all: completion never starts a daemon and
never prints an error. The scripts of zsh and fish are click's; bash cuts words at the colon of a unit's name: its own
script puts the words together again and takes off the answers what bash holds already of a word.
"""

from __future__ import annotations

import contextlib
import threading

from pxctl.client import Client, query, route
from pxctl.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import click

    from pxctl.app import Invocation

SHELLS = ("bash", "zsh", "fish")

BASH = r"""# bash completion for pxctl
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
    """Return the script for one of SHELLS: click's own but for bash."""
    if shell == "bash":
        return BASH
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    return found(command, {}, "pxctl", "_PXCTL_COMPLETE").source()


LIMIT_SECONDS = 0.1


def _ask(context: click.Context, target: str) -> Any:
    """Return the document at `target`, or None when it does not come in time."""
    invocation: Invocation | None = context.find_root().obj
    if invocation is None:
        return None
    found: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Failure):
            found.append(Client(invocation.socket_path).get(target, timeout=LIMIT_SECONDS).document)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LIMIT_SECONDS)
    return found[0] if found else None


def _offer(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def unit_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer full names of units, and bare ones while no kind was typed."""
    del parameter
    document = _ask(context, query("/api/units", [("name", "*")])) or {}
    units = [str(unit.get("unit")) for unit in document.get("units", [])]
    bare = [unit.partition(":")[2] for unit in units]
    return _offer(bare, incomplete) or _offer(units, incomplete)


def tool_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of the tools in the catalog."""
    del parameter
    document = _ask(context, "/api/tools") or {}
    return _offer([str(tool.get("name")) for tool in document.get("tools", [])], incomplete)


def kernel_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names and ids of sessions."""
    del parameter
    kernels = (_ask(context, "/api/kernels") or {}).get("kernels", [])
    names = dict.fromkeys(str(kernel.get(key)) for key in ("name", "id") for kernel in kernels)
    return _offer(list(names), incomplete) or _offer([f"kernel:{name}" for name in names], incomplete)


def pipe_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of pipes."""
    del parameter
    pipes = (_ask(context, "/api/pipes") or {}).get("pipes", [])
    names = [str(pipe.get("name")) for pipe in pipes]
    return _offer(names, incomplete) or _offer([f"pipe:{name}" for name in names], incomplete)


def execution_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer the ids of the newest executions."""
    del parameter
    executions = (_ask(context, "/api/executions") or {}).get("executions", [])
    return _offer([str(execution.get("id")) for execution in executions], incomplete)


def execution_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer what names an execution: the pipe whose newest one it is, and once a digit was typed, ids."""
    if incomplete[:1].isdigit():
        return execution_ids(context, parameter, incomplete)
    return pipe_names(context, parameter, incomplete)


def assignments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Offer `key=` for the inputs of the tool that was named."""
    del parameter
    tool = context.params.get("tool")
    if not tool or "=" in incomplete:
        return []
    try:
        document = _ask(context, route("tool", tool)) or {}
    except Failure:
        return []
    properties = (document.get("input_schema") or {}).get("properties") or {}
    return _offer([f"{key}=" for key in properties], incomplete)
