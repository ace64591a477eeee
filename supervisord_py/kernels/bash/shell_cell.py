"""What one shell cell is started with, and what its exit says. Pure.

The code lies in a file and never in argv, where every user of the machine could read it. The wrapper is bash itself: it
appends stdout and stderr to the cell's file, reads the code and evaluates it alone, so that messages read as those of
`bash -c` (`bash: line 3: …`) and show no word that the user did not write. The variable is the one in which `bash -c`
itself has its code; nothing else is left of the wrapper when the code runs.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.process.spec import ChildSpec, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.process.spec import ExitRecord, ResourceLimit

_LIMITS = {Reason.MEMORY_LIMIT: "memory", Reason.OOM_KILL: "memory", Reason.CPU_LIMIT: "cpu"}
_KILLED = 128
"""A shell exits with so much more than the signal that its last command died of."""

WRAPPER = (
    'exec >>"$2" 2>&1 </dev/null; '
    '{ IFS= read -rd "" BASH_EXECUTION_STRING || :; } <"$1" || exit 126; '
    'set --; eval -- "$BASH_EXECUTION_STRING"'
)


@dataclass(frozen=True, slots=True)
class ShellFiles:
    """Files of one shell cell beside its records: the code, 0600, gone when the cell has ended, and its output."""

    code: Path
    out: Path


def child_spec(launch: Launch, shell: str, files: ShellFiles) -> ChildSpec:
    """Return the child that runs a cell: a process of its own in the session's directory and environment."""
    return ChildSpec(
        f"kernel:{launch.session_id}",
        (shell, "--noprofile", "--norc", "-c", WRAPPER, "bash", str(files.code), str(files.out)),
        launch.cwd,
        _environment(launch.env),
        limits=launch.limits,
        max_rss_bytes=launch.max_rss_bytes,
        memory_grace_seconds=launch.memory_grace_seconds,
        tag=launch.tag,
    )


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would run code before the cell's, or trace the wrapper."""
    return {name: value for name, value in env.items() if name not in {"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"}}


def outcome(record: ExitRecord, limits: Sequence[ResourceLimit] = ()) -> tuple[CellStatus, CellError | None]:
    """Return how a cell ended, by how its shell did; `limits` are those that it was started with."""
    if (limit := _limit_hit(record, limits)) is not None:
        return CellStatus.ERROR, CellError("ResourceLimitExceeded", limit)
    if record.signal is not None:
        return CellStatus.ERROR, CellError("Signal", signal_name(record.signal))
    if record.code:
        return CellStatus.ERROR, CellError("ExitCode", str(record.code))
    return CellStatus.OK, None


def _limit_hit(record: ExitRecord, limits: Sequence[ResourceLimit]) -> str | None:
    """Return the limit that ended a cell, by its killer's word; an exit code alone never names one.

    The limit of CPU seconds meets what the shell runs as well as the shell itself: then the shell lives on, and passes
    on the signal as its exit code. That counts where the cell, with all that it waited for, used the time: as with the
    keeper's verdict half of it is enough, because ticks are sampled and only the kernel sends SIGXCPU.
    """
    if record.verdict is not None and record.verdict.reason in _LIMITS:
        return _LIMITS[record.verdict.reason]
    allowed = next((each.soft for each in limits if each.name == "cpu"), None)
    if allowed is None or allowed < 0 or record.code != _KILLED + signal.SIGXCPU:
        return None
    return "cpu" if record.user_seconds + record.system_seconds >= allowed / 2 else None


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; the bare number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
