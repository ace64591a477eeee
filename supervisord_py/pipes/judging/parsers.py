"""Which parser reads which agent: the names that an adapter's `output` may have."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.judging.claude_stream import ClaudeStream
from supervisord_py.pipes.judging.codex_stream import CodexStream
from supervisord_py.pipes.judging.gemini_stream import GeminiStream
from supervisord_py.pipes.judging.line_stream import Gathering
from supervisord_py.pipes.judging.opencode_stream import OpencodeStream
from supervisord_py.pipes.judging.pi_stream import PiStream
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Happening, Summary, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


class StreamParser(Protocol):
    """Reads an agent's stdout in whatever pieces it comes; nothing it reads can raise."""

    @property
    def summary(self) -> Summary:
        """What is known now."""

    def feed(self, data: bytes) -> list[Happening]:
        """Take the next bytes."""

    def end(self) -> list[Happening]:
        """Take the end of the stream; once."""

    def state(self) -> dict[str, Any]:
        """Return JSON values with which `parser_for` goes on exactly here."""


_MAKERS: Mapping[str, Callable[[Mapping[str, Any] | None], StreamParser]] = {
    "text": TextStream,
    "pi-jsonl": PiStream,
    "claude-json": ClaudeStream,
    "codex-jsonl": CodexStream,
    "gemini-json": GeminiStream,
    "opencode-jsonl": OpencodeStream,
}
PARSERS = tuple(_MAKERS)
"""All names."""


def parser_for(name: str, state: Mapping[str, Any] | None = None) -> StreamParser:
    """Return a parser for an agent's output format, at the beginning or where `state` was taken.

    Raises:
        ConfigError: There is no such format.
    """
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(
            f"there is no output format {name!r}", hint=f"write one of {', '.join(PARSERS)}", pointer="output.format"
        )
    return maker(state)
