"""Completion scripts for bash, zsh and fish. They call `pxctl` itself with `_PXCTL_COMPLETE` set.

Own scripts, because a unit's name holds a colon, at which bash cuts words: the words are put together again before they
are handed over, and what bash holds already of a word is taken off the answers.
"""

from __future__ import annotations

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

ZSH = r"""#compdef pxctl
_pxctl() {
    local -a plain described response
    local kind value about
    response=("${(@f)$(env COMP_WORDS="${(j: :)${(q)words[1,CURRENT]}}" COMP_CWORD=$((CURRENT - 1)) \
        _PXCTL_COMPLETE=zsh_complete pxctl 2>/dev/null)}")
    for kind value about in "${response[@]}"; do
        case "$kind" in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ "$about" == "_" ]]; then
                    plain+=("$value")
                else
                    described+=("$value:$about")
                fi
                ;;
        esac
    done
    if (( ${#described} )); then
        _describe -V unsorted described -U
    fi
    if (( ${#plain} )); then
        compadd -U -V unsorted -a plain
    fi
}
if [[ "${zsh_eval_context[-1]}" == loadautofunc ]]; then
    _pxctl "$@"
else
    compdef _pxctl pxctl
fi
"""

FISH = r"""# fish completion for pxctl
function __pxctl_complete
    set -l response (env _PXCTL_COMPLETE=fish_complete COMP_WORDS=(commandline -cp | string collect) \
        COMP_CWORD=(commandline -t | string collect) pxctl 2>/dev/null)
    for line in $response
        set -l parts (string split -m 1 "," -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories (commandline -t)
            case file
                __fish_complete_path (commandline -t)
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command pxctl --arguments "(__pxctl_complete)"
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
