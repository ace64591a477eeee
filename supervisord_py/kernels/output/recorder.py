"""Writes the files of a cell from the iopub messages of a kernel that does not write them by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.inside.cell_writer import STATUS_MIME, CellWriter
from supervisord_py.kernels.output.replies import asks_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class CellRecorder:
    """Records one cell.

    Args:
        folder: Of the session's cell files; exists.
        cell_id: Names the files. Where they are there already, it goes on at their end.
        cap: Most bytes of stream output.
    """

    def __init__(self, folder: Path, cell_id: str, cap: int) -> None:
        self._writer = CellWriter(str(folder), cell_id, cap)
        self._began = time.monotonic()
        self._takers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "stream": self._stream,
            "display_data": self._display,
            "update_display_data": self._update,
            "execute_result": self._result,
            "clear_output": lambda content: self._writer.clear(content.get("wait") is True),
            "error": self._error,
        }

    @property
    def total(self) -> int:
        """Bytes of stream output so far."""
        return self._writer.total

    @property
    def lost_bytes(self) -> int:
        """Bytes that the cap or a full disk took."""
        return self._writer.lost_bytes

    def begin(self, code: str, pid: int | None = None) -> None:
        """The cell is sent to the kernel whose process is `pid`."""
        self._began = time.monotonic()
        self._writer.begin(code, pid)

    def take(self, msg_type: str, content: Mapping[str, Any]) -> bool:
        """Record an iopub message of the cell; False for one that is no output."""
        taker = self._takers.get(msg_type)
        if taker is None:
            return False
        taker(content)
        return True

    def end(self, reply: Mapping[str, Any], *, status: str | None = None) -> None:
        """The cell has ended. Output that comes later may still be taken.

        Args:
            reply: Content of the execute_reply; {} where none came.
            status: `ok`, `error` or `aborted`, where it is not to be the reply's.
        """
        told = status or str(reply.get("status") or "error")
        count = reply.get("execution_count")
        self._writer.end(
            told if told in {"ok", "error"} else "aborted",
            execution_count=count if isinstance(count, int) else None,
            duration=time.monotonic() - self._began,
            ask_exit=asks_exit(reply),
            error=_error_of(reply) if reply.get("status") == "error" else None,
        )

    def close(self) -> None:
        """Let go of the files; output that comes later opens them again."""
        self._writer.close()

    def _stream(self, content: Mapping[str, Any]) -> None:
        name = "stderr" if content.get("name") == "stderr" else "stdout"
        # What no encoding can hold (lone surrogates) is kept in the one way that UTF-8 has for it.
        self._writer.write(name, str(content.get("text") or "").encode("utf-8", "surrogatepass"))

    def _display(self, content: Mapping[str, Any], *, update: bool = False) -> None:
        data = _map(content, "data")
        event = data.get(STATUS_MIME)
        if isinstance(event, dict):
            self._writer.status(event)
            return
        display_id = _map(content, "transient").get("display_id")
        name = str(display_id) if display_id is not None else None
        self._writer.display(data, _map(content, "metadata"), name, update=update)

    def _update(self, content: Mapping[str, Any]) -> None:
        self._display(content, update=True)

    def _result(self, content: Mapping[str, Any]) -> None:
        count = content.get("execution_count")
        self._writer.result(_map(content, "data"), _map(content, "metadata"), count if isinstance(count, int) else None)

    def _error(self, content: Mapping[str, Any]) -> None:
        told = _error_of(content)
        self._writer.error(told["name"], told["value"], told["traceback"])


def _error_of(content: Mapping[str, Any]) -> dict[str, Any]:
    lines = content.get("traceback")
    return {
        "name": str(content.get("ename") or "Error"),
        "value": str(content.get("evalue") or ""),
        "traceback": [str(line) for line in lines] if isinstance(lines, list) else [],
    }


def _map(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}
