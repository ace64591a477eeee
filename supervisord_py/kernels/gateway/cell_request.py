"""What an execute_request to a server says of a cell. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest


def content_of(request: ExecuteRequest) -> dict[str, Any]:
    """Return the content of the request."""
    return {
        "code": request.code,
        "silent": False,
        "store_history": request.store_history,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
    }


def metadata_of(request: ExecuteRequest) -> dict[str, Any]:
    """Return the mark by which our launcher knows a cell of ours, and writes its files."""
    mark = {
        "cell": request.cell_id,
        "dir": str(request.cells_dir),
        "preview": request.preview_bytes,
        "cap": request.cell_bytes,
    }
    return {"px": mark}
