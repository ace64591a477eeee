"""A stream of JSON records, one a line, read in whatever pieces it comes.

Law: a record ends at LF and nowhere else (U+2028 may stand inside). A line over LINE_BYTES is skipped to its end and
counted; so is one that is no JSON object. Nothing a stream says can raise.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Happening, Summary, Text

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Gathering:
    """The state of one stream; as in Summary.

    Attributes:
        told: How many characters of the present answer were told as text already.
        ends_line: The text told so far ends a line (or there is none).
        turn_id: Which turn of the model is present; None between two.
    """

    final_text: str = ""
    has_text: bool = False
    stop_reason: str | None = None
    error_message: str | None = None
    settled: bool = False
    records: int = 0
    garbage_lines: int = 0
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    told: int = 0
    ends_line: bool = True
    turn_id: str | None = None

    def summary(self) -> Summary:
        """Return what is known now."""
        return Summary(
            self.final_text,
            self.has_text,
            self.stop_reason,
            self.error_message,
            self.settled,
            self.records,
            self.garbage_lines,
            self.session_id,
            self.usage,
        )

    def say(self, words: str) -> list[Happening]:
        """Tell a piece of the present answer as it comes."""
        if not words:
            return []
        self.told += len(words)
        self.has_text = self.has_text or bool(words.strip())
        self.ends_line = words.endswith("\n")
        return [Text(words.encode("utf-8", "replace"))]

    def answer(self, words: str) -> list[Happening]:
        """Take the whole present answer: tell what was not told yet, and end its last line."""
        happenings = self.say(words[self.told :])
        self.told = 0
        if words.strip():
            self.final_text = words[-FINAL_TEXT_CHARS:]
        if not self.ends_line:
            self.ends_line = True
            happenings.append(Text(b"\n"))
        return happenings

    def spend(self, used: Usage) -> None:
        """Add to what was used, turns excepted."""
        so_far = self.usage
        self.usage = replace(
            so_far,
            input_tokens=so_far.input_tokens + used.input_tokens,
            output_tokens=so_far.output_tokens + used.output_tokens,
            cache_read_tokens=so_far.cache_read_tokens + used.cache_read_tokens,
            cache_write_tokens=so_far.cache_write_tokens + used.cache_write_tokens,
            total_tokens=so_far.total_tokens + used.total_tokens,
            cost=so_far.cost + used.cost,
        )

    def turn(self) -> None:
        """Count a turn of the model."""
        self.usage = replace(self.usage, turns=self.usage.turns + 1)

    def turn_of(self, name: str) -> bool:
        """Count a turn that is told in several records, once; say whether it is another one than the present."""
        if name == self.turn_id:
            return False
        self.turn_id = name
        self.turn()
        return True

    def state(self) -> dict[str, Any]:
        """Return JSON values, from which `of_state` makes the same again."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Gathering:
        """Take up what `state` wrote down."""
        return cls(**{**state, "usage": Usage(**state["usage"])})


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
