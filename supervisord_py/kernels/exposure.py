"""Which kinds of cells this daemon offers, and what the original's variables say about it and other settings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Offer(NamedTuple):
    """One kind of cells: offered or not, why not (or what is to be known), and the interpreter or shell."""

    offered: bool
    reason: str | None = None
    program: str | None = None


def report(wanted: str, python: Offer, shell: str | None, backend: str) -> dict[str, Any]:
    """Return the document of what is `wanted` by setting and what of it is offered; `shell`: the bash, if there is one.

    `expose` is None when nothing is left. Where only Python is wanted and cannot be had, bash takes its place.
    """
    not_wanted = "turned off by [kernels] expose"
    if wanted == "bash":
        python = Offer(offered=False, reason=not_wanted)
    is_instead = wanted == "python" and not python.offered
    bash = Offer(shell is not None and (wanted != "python" or is_instead), None, shell)
    if shell is None:
        bash = bash._replace(reason="there is no bash on PATH")
    elif is_instead:
        bash = bash._replace(reason="in place of Python cells, which cannot be had")
    elif not bash.offered:
        bash = bash._replace(reason=not_wanted)
    kinds = {(True, True): "both", (True, False): "python", (False, True): "bash"}
    return {
        "expose": kinds.get((python.offered, bash.offered)),
        "wanted": wanted,
        "python": {"offered": python.offered, "reason": python.reason, "interpreter": python.program},
        "bash": {"offered": bash.offered, "reason": bash.reason, "shell": bash.program},
        "backend": backend,
    }


# -- variables of the original -----------------------------------------------------------------------------------------

_EXPOSE = {"0": "bash", "bash": "bash", "1": "python", "py": "python", "mix": "both", "both": "both"}
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_VARIABLES: Mapping[str, tuple[str, Mapping[str, str | bool] | None, str]] = {
    "PX_PY": ("kernels.expose", _EXPOSE, ", ".join(_EXPOSE)),
    "PI_PY": ("kernels.expose", _EXPOSE, ", ".join(_EXPOSE)),
    "PI_PYTHON_GATEWAY_URL": ("kernels.gateway_url", None, "an address"),
    "PI_PYTHON_GATEWAY_TOKEN": ("kernels.gateway_token", None, "a token"),
    "PI_PYTHON_SKIP_CHECK": ("kernels.skip_check", _SWITCH, "1 or 0"),
    "PI_PYTHON_IPC_TRACE": ("kernels.trace", _SWITCH, "1 or 0"),
    "PI_DEBUG_STARTUP": ("kernels.trace", _SWITCH, "1 or 0"),
}
"""Variable → key, the words it knows (None: any text), and how they are told. The first for a key counts."""
LEGACY_NAMES = frozenset(_VARIABLES)


def legacy_settings(environ: Mapping[str, str]) -> tuple[dict[str, tuple[str | bool, str]], tuple[str, ...]]:
    """Read the original's variables; returns settings, `{key: (value, variable)}`, and warnings.

    They are weaker than ours: a key whose own `PX_KERNELS__…` is set is left out. An empty variable is none; a word
    that one does not know is a warning, never an error: these variables are set for other programs too. Warnings quote
    no address or token. An address of a gateway also selects the external gateway, as it did there.
    """
    values: dict[str, tuple[str | bool, str]] = {}
    warnings: list[str] = []

    def take(key: str, value: str | bool, variable: str) -> None:
        if f"PX_{key.upper().replace('.', '__')}" not in environ:
            values.setdefault(key, (value, variable))

    for variable, (key, words, known) in _VARIABLES.items():
        if not (text := environ.get(variable, "")):
            continue
        value = text.strip() or None if words is None else words.get(text.strip().lower())
        if value is None:
            warnings.append(f"{variable}{f'={text[:40]!r}' if words else ''} is ignored: it knows {known}")
        else:
            take(key, value, variable)
    if "kernels.gateway_url" in values:
        take("kernels.backend", "gateway-external", values["kernels.gateway_url"][1])
    return values, tuple(warnings)
