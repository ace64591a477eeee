"""Which kinds of cells this daemon offers, and what the original's variables say about it and other settings. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.session import BackendName

NOT_WANTED = "turned off by [kernels] expose"


class Expose(StrEnum):
    """`[kernels] expose`."""

    BOTH = "both"
    PYTHON = "python"
    BASH = "bash"

    @property
    def python(self) -> bool:
        return self is not Expose.BASH

    @property
    def bash(self) -> bool:
        return self is not Expose.PYTHON


class Offer(msgspec.Struct, frozen=True):
    """One kind of cells: offered or not, why not (or what is to be known), and the interpreter or shell."""

    offered: bool
    reason: str | None = None
    program: str | None = None


class CapabilityReport(msgspec.Struct, frozen=True):
    """What is `wanted` by setting, and what is offered of it; `expose` is None when nothing is left."""

    wanted: Expose
    expose: Expose | None
    python: Offer
    bash: Offer
    backend: BackendName

    def document(self) -> dict[str, Any]:
        """Return JSON values; an `expose` of null is a daemon that can offer no cells at all."""
        names = {"python": "interpreter", "bash": "shell"}
        offers = {"python": self.python, "bash": self.bash}
        kinds = {
            kind: {"offered": offer.offered, "reason": offer.reason, names[kind]: offer.program}
            for kind, offer in offers.items()
        }
        return {"expose": self.expose, "wanted": self.wanted, **kinds, "backend": self.backend}


def report(wanted: Expose, python: Offer, shell: str | None, backend: BackendName) -> CapabilityReport:
    """Put together what is offered, from what is wanted, what became of Python, and the bash that was found or not.

    Where Python cells are wanted and cannot be had, bash takes their place, even where only Python was asked for: an
    agent that can do something is better than one that can do nothing. The other way round nothing is widened.
    """
    if not wanted.python:
        python = Offer(offered=False, reason=NOT_WANTED)
    is_instead = not wanted.bash and not python.offered
    if shell is None:
        bash = Offer(offered=False, reason="there is no bash on PATH")
    elif wanted.bash or is_instead:
        reason = "in place of Python cells, which cannot be had" if is_instead else None
        bash = Offer(offered=True, reason=reason, program=shell)
    else:
        bash = Offer(offered=False, reason=NOT_WANTED, program=shell)
    kinds = {(True, True): Expose.BOTH, (True, False): Expose.PYTHON, (False, True): Expose.BASH}
    return CapabilityReport(wanted, kinds.get((python.offered, bash.offered)), python, bash, backend)


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

    An empty variable counts as one that is not set. They are weaker than ours: a key whose own `PX_KERNELS__…` is set
    is left out. A word that a variable does not know is a warning, never an error: these variables are set for other
    programs too. Warnings quote no address or token. An address of a gateway also selects the external gateway, as it
    did there.
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
