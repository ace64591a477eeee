"""What the daemon tells this room: its settings, places and bounds; which kinds of cells are
offered. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from supervisord_py.config.settings import MIB, KernelsSettings

# of the machine's memory: one kernel that holds more leaves too little for all others
SOFT_SHARE = 0.5


class CellLimits(Struct, frozen=True):
    """How much of a cell's output is kept, published and shown. Bytes; days."""

    # what the kernel publishes live of one cell, and about what `text` of a result holds
    preview_bytes: int = 65536
    head_bytes: int = 16384  # how much of the preview is the beginning; the rest is the end
    # complete output on disk of one cell, beyond which it is capped, and says so
    cell_bytes: int = 4096 * MIB
    # a rich output larger than this becomes an artifact file with a reference
    inline_bytes: int = 256 * 1024
    total_bytes: int = 16384 * MIB  # of all cells; the oldest go
    keep_days: float = 7.0  # age at which outputs of cells go


class KernelsConfig(KernelsSettings, frozen=True, kw_only=True):
    """Everything the room is told.

    The gateway's token is a secret: never in logs, or the environment of a kernel.
    """

    # private (0700), short: connection files and ipc sockets, `run_dir/k/<session id>/`
    run_dir: Path
    cells_dir: Path  # complete outputs of cells, `cells_dir/<session id>/`
    data_dir: Path  # the managed environment (`data_dir/python`) and overlays (`data_dir/overlays`)
    modules_dir: Path  # the user's modules, loaded into every Python kernel
    gateway_dir: Path  # where the local gateway's metadata and kernelspecs lie
    token_setting: str = "kernels.gateway_token"  # noqa: S105  # which setting the token comes from
    gateway_start_seconds: float = 30.0  # how long the start of the local gateway may take
    stop_seconds: float = 5.0  # from TERM to KILL in an orderly stop
    # the same over memory; who grows on by a quarter is killed at once
    memory_grace_seconds: float = 2.0
    zygotes: int = 10  # interpreters whose imports are kept ready to fork kernels from; 0 is none
    output: CellLimits = CellLimits()

    def soft_memory_bytes(self, machine_bytes: int) -> int:
        """Return beyond how much a kernel is replaced after a cell, 0 for never; of a machine
        with so much memory.
        """
        if self.soft_memory_mb is None:
            return round(machine_bytes * SOFT_SHARE)
        return self.soft_memory_mb * MIB

    @property
    def ladder_again_seconds(self) -> float:
        """From the first SIGINT to a cell to the second."""
        return self.ladder_terminate_seconds / 3


# -- which kinds of cells are offered --------------------------------------------------------------


class Offer(NamedTuple):
    """One kind of cells: offered or not, why not (or what is to be known), and the interpreter
    or shell.
    """

    offered: bool
    reason: str | None = None
    program: str | None = None
    hint: str | None = None  # what would help where they are not offered


def report(wanted: str, python: Offer, shell: str | None, backend: str) -> dict[str, Any]:
    """Return the document of what is `wanted` by setting and what of it is offered: `expose`,
    None for nothing.
    """
    not_wanted = "turned off by [kernels] expose"
    if wanted == "bash":
        python = Offer(offered=False, reason=not_wanted)
    reason = not_wanted if wanted == "python" else None if shell else "there is no bash on PATH"
    bash = Offer(reason is None, reason, shell)
    kinds = {(True, True): "both", (True, False): "python", (False, True): "bash"}
    return {
        "expose": kinds.get((python.offered, bash.offered)),
        "wanted": wanted,
        "python": {
            "offered": python.offered,
            "reason": python.reason,
            "interpreter": python.program,
            "hint": python.hint,
        },
        "bash": {"offered": bash.offered, "reason": bash.reason, "shell": bash.program},
        "backend": backend,
    }


# -- variables of the original ---------------------------------------------------------------------

_EXPOSE = {
    "0": "bash",
    "bash": "bash",
    "1": "python",
    "py": "python",
    "mix": "both",
    "both": "both",
}
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)
_VARIABLES: Mapping[str, tuple[str, Mapping[str, str | bool] | None]] = {
    "PX_PY": ("kernels.expose", _EXPOSE),
    "PI_PY": ("kernels.expose", _EXPOSE),
    "PI_PYTHON_GATEWAY_URL": ("kernels.gateway_url", None),
    "PI_PYTHON_GATEWAY_TOKEN": ("kernels.gateway_token", None),
    "PI_PYTHON_SKIP_CHECK": ("kernels.skip_check", _SWITCH),
    "PI_PYTHON_IPC_TRACE": ("kernels.trace", _SWITCH),
    "PI_DEBUG_STARTUP": ("kernels.trace", _SWITCH),
}
"""Variable → key, and the words it knows (None: any text). The first for a key counts."""
LEGACY_NAMES = frozenset(_VARIABLES)


def legacy_settings(
    environ: Mapping[str, str],
) -> tuple[dict[str, tuple[str | bool, str]], tuple[str, ...]]:
    """Read the original's variables; returns settings, `{key: (value, variable)}`, and warnings.

    They are weaker than ours: a key whose own `PX_KERNELS__…` is set is left out. An empty variable
    is none; a word that one does not know is a warning, never an error: these variables are set for
    other programs too. Warnings quote no address or token. An address of a gateway also selects the
    external gateway, as it did there.
    """
    values: dict[str, tuple[str | bool, str]] = {}
    warnings: list[str] = []

    def take(key: str, value: str | bool, variable: str) -> None:
        if f"PX_{key.upper().replace('.', '__')}" not in environ:
            values.setdefault(key, (value, variable))

    for variable, (key, words) in _VARIABLES.items():
        text = environ.get(variable, "").strip()
        value = text if words is None else words.get(text.lower())
        if words is not None and text and value is None:
            warnings.append(f"{variable}={text[:40]!r} is ignored: it knows {', '.join(words)}")
        elif text and value is not None:
            take(key, value, variable)
    if "kernels.gateway_url" in values:
        take("kernels.backend", "gateway-external", values["kernels.gateway_url"][1])
    return values, tuple(warnings)
