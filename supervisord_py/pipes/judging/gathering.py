"""What a parser has understood so far: the mutable half of a Summary, which can be written down and taken up again."""

from __future__ import annotations

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
