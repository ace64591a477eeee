"""A stream of JSON records, one a line, read in whatever pieces it comes.

Law: a record ends at LF and nowhere else (U+2028 may stand inside). A line over LINE_BYTES is skipped to its end and
counted; so is one that is no JSON object. Nothing a stream says can raise.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.judging.gathering import Gathering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.judging.values import Happening, Summary

LINE_BYTES = 16 * 1024 * 1024


class LineStream(ABC):
    """Splits, parses, and gives each record to `record`.

    Args:
        state: What `state` returned of an earlier one that read the beginning.
    """

    def __init__(self, state: Mapping[str, Any] | None = None, *, line_bytes: int = LINE_BYTES) -> None:
        self.gathering = Gathering() if state is None else Gathering.of_state(state["gathering"])
        self._rest = [] if state is None else [base64.b64decode(state["rest"])]
        """Pieces of the line that is not complete: joined once, when it is."""
        self._rest_bytes = sum(map(len, self._rest))
        self._skipping = state is not None and bool(state["skipping"])
        self._line_bytes = line_bytes

    @property
    def summary(self) -> Summary:
        """What is known now."""
        return self.gathering.summary()

    def state(self) -> dict[str, Any]:
        """Return JSON values with which another one goes on exactly here."""
        rest = base64.b64encode(b"".join(self._rest)).decode()
        return {"gathering": self.gathering.state(), "rest": rest, "skipping": self._skipping}

    def feed(self, data: bytes) -> list[Happening]:
        """Take the next bytes."""
        *lines, rest = data.split(b"\n")
        happenings: list[Happening] = []
        for line in lines:
            happenings += self._line(self._joined(line))
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > self._line_bytes:
            self._joined(b"")
            self._skipping = True
        return happenings

    def end(self) -> list[Happening]:
        """Take the end of the stream: an unfinished line may be a record all the same."""
        return self._line(self._joined(b""))

    @abstractmethod
    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record; `line` is its text without the line's end."""

    def _joined(self, last: bytes) -> bytes:
        line = b"".join((*self._rest, last))
        self._rest, self._rest_bytes = [], 0
        return line

    def _line(self, line: bytes) -> list[Happening]:
        if self._skipping:
            self._skipping = False
            self.gathering.garbage_lines += 1
            return []
        if not line.strip():
            return []
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.gathering.garbage_lines += 1
            return []
        self.gathering.records += 1
        return self.record(found, line)
