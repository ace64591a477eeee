"""Agents that only print text: their bytes are the answer, as they come."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.judging.gathering import Gathering
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Happening, Summary, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHITE = b" \t\r\n\v\f"


class TextStream:
    """One run of a program that prints its answer."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.gathering = Gathering() if state is None else Gathering.of_state(state["gathering"])
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def summary(self) -> Summary:
        """What is known now."""
        return self.gathering.summary()

    def state(self) -> dict[str, Any]:
        """Return JSON values with which another one goes on exactly here."""
        return {"gathering": self.gathering.state()}

    def feed(self, data: bytes) -> list[Happening]:
        """Take the next bytes."""
        if not data:
            return []
        gathering = self.gathering
        gathering.has_text = gathering.has_text or bool(data.strip(_WHITE))
        tail = self._decoder.decode(data[-4 * FINAL_TEXT_CHARS :])
        gathering.final_text = (gathering.final_text + tail)[-FINAL_TEXT_CHARS:]
        return [Text(data)]

    def end(self) -> list[Happening]:
        """Take the end of the stream."""
        return []
