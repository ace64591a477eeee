"""A mistake in the settings: what, where, and what was probably meant. All of them are told at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.daemon.merge import Origin, OriginKind
from supervisord_py.errors import EXIT_BAD_SETTINGS, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `key` is dotted, or empty where no key can be named; `nearest` is what was probably meant."""

    origin: Origin
    key: str
    message: str
    nearest: str | None = None

    def __str__(self) -> str:
        meant = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.origin}: {self.message}{meant}"

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "origin": str(self.origin),
            "file": self.origin.where if self.origin.kind is OriginKind.FILE else None,
            "line": self.origin.line,
            "key": self.key or None,
            "message": self.message,
            "nearest": self.nearest,
        }


class SettingsError(ConfigError):
    """Settings are wrong. `problems` has every mistake of every source.

    `exit_code` is the word of `pxd` to whoever started it; the problem document speaks to the client, whose codes end
    at 9 (CONTRACT §3), and names the client's next step.
    """

    exit_code = EXIT_BAD_SETTINGS

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(
            "\n".join(str(problem) for problem in problems),
            hint="`pxd --check-config` checks again; `pxd --show-config` shows every key with its value and origin",
            problems=[problem.document() for problem in problems],
        )
        self.problems = tuple(problems)

    def problem(self) -> dict[str, Any]:
        """Return the problem document: to a client it is a broken file like every other."""
        return {**super().problem(), "hint": "pxctl config check", "exit_code": ConfigError.exit_code}
