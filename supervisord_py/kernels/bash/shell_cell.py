"""What one shell cell is started with, what the daemon writes of it, and what its exit says.

The code lies in a file and never in argv, where every user of the machine could read it. The wrapper is bash itself: it
appends stdout and stderr to the cell's file, reads the code and evaluates it alone, so that messages read as those of
`bash -c` (`bash: line 3: …`) and show no word that the user did not write. The variable is the one in which `bash -c`
itself has its code; nothing else is left of the wrapper when the code runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.process.model import ChildSpec, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.process.model import ExitRecord, ResourceLimit

_LIMITS = {Reason.MEMORY_LIMIT: "memory", Reason.OOM_KILL: "memory", Reason.CPU_LIMIT: "cpu"}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
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


class CellFiles:
    """The files of one cell. Blocking.

    The shell appends to the output by itself; a file that outgrows its cap is cut back to it while the cell runs.
    """

    def __init__(self, request: ExecuteRequest) -> None:
        self._request = request
        self._begun = False
        self._folder = request.cells_dir
        self._writer = CellWriter(str(self._folder), request.cell_id, request.cell_bytes)
        self.shell = ShellFiles(self._folder / f"{request.cell_id}.sh", self._folder / f"{request.cell_id}.out")

    def prepare(self) -> None:
        """Write the code, make the output, and begin the records."""
        code = self._request.code.encode("utf-8", "surrogatepass")
        with os.fdopen(os.open(self.shell.code, _NEW | os.O_TRUNC, 0o600), "wb") as file:
            file.write(code)
        os.close(os.open(self.shell.out, _NEW, 0o600))
        self._writer.begin(self._request.code, 0)  # the process is not there yet; it is in the ledger when it is
        self._writer.close()
        self._begun = True

    def look(self) -> int:
        """Return the size of the output, after it was cut back to its cap."""
        self._writer.limit()
        return self._writer.size(".out")

    def ended(self) -> Reply | None:
        """Return what the end says, None where there is none yet."""
        return CellLog(self._folder, self._request.cell_id).reply()

    def end(self, status: CellStatus, error: CellError | None, duration: float) -> None:
        """Write the end; what is over the cap is cut off before.

        An end that is there already stands: an earlier control plane was replaced just behind it.
        """
        if self.ended() is not None:
            return
        said = None if error is None else {"name": error.name, "value": error.value, "traceback": []}
        self._writer.end(status.value, execution_count=None, duration=duration, error=said)
        with contextlib.suppress(OSError):
            self.shell.code.unlink()

    def not_started(self, error: CellError) -> None:
        """Write the whole story of a cell that never ran."""
        if not self._begun:
            self._writer.begin(self._request.code, 0)
        self.end(CellStatus.ERROR, error, 0.0)
