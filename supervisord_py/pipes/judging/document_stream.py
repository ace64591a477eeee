"""A stream that may also be one JSON document over several lines: what is no record is gathered till the end."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.judging.line_stream import LINE_BYTES, LineStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.judging.values import Happening


class DocumentStream(LineStream):
    """Adds `document` to the records of a stream of lines. At most LINE_BYTES are gathered."""

    def __init__(self, state: Mapping[str, Any] | None = None, *, line_bytes: int = LINE_BYTES) -> None:
        super().__init__(state, line_bytes=line_bytes)
        self._gathered = [] if state is None else [base64.b64decode(state["gathered"])]
        self._gathered_bytes = sum(map(len, self._gathered))

    def state(self) -> dict[str, Any]:
        """As in LineStream, with what was gathered."""
        return {**super().state(), "gathered": base64.b64encode(b"\n".join(self._gathered)).decode()}

    def garbage(self, line: bytes) -> list[Happening]:
        """Gather a line that is no record by itself."""
        if self._gathered_bytes + len(line) <= self._line_bytes:
            self._gathered.append(line)
            self._gathered_bytes += len(line) + 1
        return super().garbage(line)

    def finish(self) -> list[Happening]:
        """Read what was gathered as one document, where it is one."""
        text, self._gathered = b"\n".join(self._gathered), []
        try:
            found = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            found = None
        if found is None:
            return []
        self.gathering.garbage_lines = 0
        return self.document(found)

    @abstractmethod
    def document(self, found: Any) -> list[Happening]:
        """Understand a document of several lines."""
