"""What is the same for every kernel, near or behind a server: how a cell is asked for, and who else uses it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest


def execute_content(code: str, **members: Any) -> dict[str, Any]:
    """Return the content of an execute_request; `members` replace what is usual."""
    return {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
        **members,
    }


def cell_mark(request: ExecuteRequest) -> dict[str, Any]:
    """Return the metadata by which our launcher knows a cell of ours, and writes its files."""
    place = {"cell": request.cell_id, "dir": str(request.cells_dir)}
    return {"px": {**place, "preview": request.preview_bytes, "cap": request.cell_bytes}}


class ForeignRequests:
    """What iopub tells of requests that are not ours. `used_at`: when one last began or ended, Unix seconds.

    A kernel is in foreign use from the first `busy` of such a request to its `idle`. Where an `idle` was lost, the end
    of a later request of our own settles it: shell requests are worked off one after the other.
    """

    def __init__(self) -> None:
        self.used_at: float | None = None
        self._under_way: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def note(self, state: str, request: str, now: float) -> None:
        """A status message of a foreign request came: its execution state, its message id, Unix seconds."""
        self.used_at = now
        if state == "busy":
            self._under_way.add(request)
        elif state == "idle":
            self._under_way.discard(request)

    def settle(self) -> None:
        """A shell request of our own has ended: earlier ones have too."""
        self._under_way.clear()
