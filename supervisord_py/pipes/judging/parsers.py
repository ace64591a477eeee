"""Which parser reads which agent: the names that an adapter's `output` may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.judging.claude_stream import ClaudeStream
from supervisord_py.pipes.judging.codex_stream import CodexStream
from supervisord_py.pipes.judging.gemini_stream import GeminiStream
from supervisord_py.pipes.judging.opencode_stream import OpencodeStream
from supervisord_py.pipes.judging.pi_stream import PiStream
from supervisord_py.pipes.judging.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.pipes.judging.values import Happening, Summary


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
