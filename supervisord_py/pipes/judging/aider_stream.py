"""aider's text: its bytes are the output as they come; what it means stands in aider's own lines among them.

Law: a line that begins with `litellm.` opens an error, which goes on to an empty line or the next try; "Tokens: … sent,
… received." ends an answer and takes back the errors before it, which were tried again; one of no tokens is none.
The first paragraph, in which aider says what it is, is no answer either. Nothing that is printed can raise.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging.gathering import Gathering
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Happening, Summary, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

LINE_BYTES = 64 * 1024
"""No line of aider's own is longer; of a longer one of the model's the end is looked at."""
ERROR_CHARS = 4000
_NAME = "Aider v"
_ERROR = "litellm."
_NEXT_TRY = "Retrying in "
_FULL = "has hit a token limit!"
_TOKENS = re.compile(
    r"Tokens: ([\d.]+k?) sent, (?:([\d.]+k?) cache write, )?(?:([\d.]+k?) cache hit, )?([\d.]+k?) received\."
)
_COST = re.compile(r"Cost: \$[\d.,]+ message, \$([\d.,]+) session\.")


class AiderStream:
    """One run of aider."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        known = {"rest": "", "answer": "", "named": False, "answering": False, "erring": False, **(state or {})}
        self.gathering = Gathering() if state is None else Gathering.of_state(state["gathering"])
        self._rest = base64.b64decode(known["rest"])
        self._answer: str = known["answer"]
        self._named: bool = known["named"]
        self._answering: bool = known["answering"]
        self._erring: bool = known["erring"]

    @property
    def summary(self) -> Summary:
        """What is known now."""
        return self.gathering.summary()

    def state(self) -> dict[str, Any]:
        """Return JSON values with which another one goes on exactly here."""
        return {
            "gathering": self.gathering.state(),
            "rest": base64.b64encode(self._rest).decode(),
            "answer": self._answer,
            "named": self._named,
            "answering": self._answering,
            "erring": self._erring,
        }

    def feed(self, data: bytes) -> list[Happening]:
        """Take the next bytes."""
        if not data:
            return []
        happenings: list[Happening] = [Text(data)]
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LINE_BYTES:]
        for line in lines:
            happenings += self._line(line)
        return happenings

    def end(self) -> list[Happening]:
        """Take the end of the stream; its last line may lack an end."""
        line, self._rest = self._rest, b""
        return self._line(line)

    def _line(self, raw: bytes) -> list[Happening]:
        line = raw[-LINE_BYTES:].decode("utf-8", "replace").rstrip("\r")
        if not self._answering:
            self._introduce(line)
            return []
        if tokens := _TOKENS.match(line):
            return self._answered(line, tokens)
        if line.startswith(_ERROR):
            self.gathering.error_message, self._erring = line[:ERROR_CHARS], True
        elif line.endswith(_FULL):
            self.gathering.error_message = line[:ERROR_CHARS]
        elif self._erring:
            self._err_on(line)
        else:
            self._answer = f"{self._answer}{line}\n"[-FINAL_TEXT_CHARS:]
        return []

    def _introduce(self, line: str) -> None:
        """Read on to the end of the paragraph that names aider."""
        self._named = self._named or line.startswith(_NAME)
        self._answering = self._named and not line

    def _err_on(self, line: str) -> None:
        """Take a further line of an error; its answer, which never came whole, is forgotten."""
        self._erring = bool(line) and not line.startswith(_NEXT_TRY)
        if self._erring:
            self.gathering.error_message = f"{self.gathering.error_message} {line}"[:ERROR_CHARS]
        else:
            self._answer = ""

    def _answered(self, line: str, tokens: re.Match[str]) -> list[Happening]:
        gathering = self.gathering
        gathering.error_message, self._erring = None, False
        sent, written, cached, received = map(_count, tokens.groups())
        if received and self._answer.strip():
            gathering.final_text, gathering.has_text, gathering.stop_reason = self._answer.strip(), True, "stop"
        self._answer = ""
        so_far, cost = gathering.usage, _COST.search(line)
        total = Usage(
            so_far.input_tokens + sent,
            so_far.output_tokens + received,
            so_far.cache_read_tokens + cached,
            so_far.cache_write_tokens + written,
            so_far.total_tokens + sent + received + cached + written,
            _number(cost[1]) if cost else so_far.cost,
            so_far.turns + 1,
        )
        return gathering.spent(total)


def _count(text: str | None) -> int:
    """Read `581` or `1.2k`."""
    return 0 if text is None else round(_number(text.removesuffix("k")) * (1000 if text.endswith("k") else 1))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0
