"""Completion scripts for bash, zsh and fish. They call `pxctl` itself with `_PXCTL_COMPLETE` set.

Those of zsh and fish are click's. Bash cuts words at the colon of a unit's name: its script is our own, which puts the
words together again before they are handed over, and takes what bash holds already of a word off the answers.
"""

from __future__ import annotations

from click.shell_completion import get_completion_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

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
    found = get_completion_class(shell)
    assert found is not None, shell
    return found(command, {}, "pxctl", "_PXCTL_COMPLETE").source()
