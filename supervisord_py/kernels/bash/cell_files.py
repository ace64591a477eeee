"""What the daemon writes of a shell cell: its code, its records, and the cap of its output. Blocking file I/O.

Law: the shell appends to the output by itself, so its bytes depend on nobody here. A file that outgrows its cap is cut
back to it while the cell runs: the writers append, so what comes goes on at the cap, and is cut again. Between two
looks it may be larger; the first bytes are never touched. What is cut is counted, and what is appended in the instant
between the count and the cut is cut uncounted, for no system call does both: at least so much is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

from supervisord_py.kernels.bash.shell_cell import ShellFiles
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.output import end_record
from supervisord_py.kernels.output.replies import reply_of_end

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest, Reply
    from supervisord_py.kernels.cell import CellError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class CellFiles:
    """The files of one cell."""

    def __init__(self, request: ExecuteRequest) -> None:
        self._request = request
        self._lost = 0
        self._begun = False
        self._folder = request.cells_dir
        self.shell = ShellFiles(self._folder / f"{request.cell_id}.sh", self._folder / f"{request.cell_id}.out")

    def prepare(self) -> None:
        """Write the code, make the output, and begin the records."""
        code = self._request.code.encode("utf-8", "surrogatepass")
        with os.fdopen(os.open(self.shell.code, _NEW | os.O_TRUNC, 0o600), "wb") as file:
            file.write(code)
        os.close(os.open(self.shell.out, _NEW, 0o600))
        writer = self._writer()
        writer.begin(self._request.code, 0)  # the process is not there yet; it is in the ledger when it is
        writer.close()
        self._begun = True

    def look(self) -> int:
        """Return the size of the output, after it was cut back to its cap; at least so much as is counted is lost."""
        cap = self._request.cell_bytes
        try:
            size = os.stat(self.shell.out).st_size
            if size > cap:
                os.truncate(self.shell.out, cap)
                self._lost += size - cap
        except OSError:  # swept away, or a disk in trouble: there is nothing that could be done for the cell here
            return 0
        return size

    def ended(self) -> Reply | None:
        """Return what the end says, None where there is none yet."""
        found = end_record.find(self._folder, self._request.cell_id)
        return None if found is None else reply_of_end(found)

    def end(self, status: CellStatus, error: CellError | None, duration: float) -> None:
        """Write the end; what is not kept of the output is counted before.

        An end that is there already stands: an earlier control plane was replaced just behind it.
        """
        if self.ended() is not None:
            return
        self.look()
        if self._lost:
            self._record_lost()
        said = None if error is None else {"name": error.name, "value": error.value, "traceback": []}
        self._writer().end(status.value, execution_count=None, duration=duration, error=said)
        with contextlib.suppress(OSError):
            self.shell.code.unlink()

    def not_started(self, error: CellError) -> None:
        """Write the whole story of a cell that never ran."""
        if not self._begun:
            self._writer().begin(self._request.code, 0)
        self.end(CellStatus.ERROR, error, 0.0)

    def _writer(self) -> CellWriter:
        """Return a writer that knows the present size; it holds no descriptor until it writes."""
        return CellWriter(str(self._folder), self._request.cell_id, self._request.cell_bytes)

    def _record_lost(self) -> None:
        size = min(self.look(), self._request.cell_bytes)
        line = {"kind": "capped", "at": size, "t": round(time.time(), 6), "lost_bytes": self._lost}
        records = self._folder / f"{self._request.cell_id}.jsonl"
        with contextlib.suppress(OSError), records.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")
