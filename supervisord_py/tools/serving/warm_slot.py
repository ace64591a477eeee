"""What the warm set knows of one tool. Values and what follows from them; the warm set alone changes them.

Law: a failure is never sticky (DESIGN law 5). A start that failed only puts the next one off, for a moment that grows
with each failure up to a bound; a declaration that changed owes nothing to the failures of the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from supervisord_py.process.backoff import Backoff, BackoffPolicy
from supervisord_py.tools.serving.warm_events import Phase

if TYPE_CHECKING:
    from supervisord_py.tools.serving import warm_events as ev

LIVE = (Phase.STARTING, Phase.READY)
_MIDDLING = 0.5
"""Chance has no place here: requests are spread over time already."""


@dataclass(slots=True)
class Slot:
    """All that is known of one tool."""

    tool: str
    rules: ev.Rules
    phase: Phase = Phase.COLD
    serial: int = 0
    digest: str = ""
    in_flight: dict[int, ev.Asked] = field(default_factory=dict)
    line: dict[int, ev.Asked] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)
    last_used: float = 0.0
    keep_seconds: float = 0.0
    rss_bytes: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    failed_digest: str = ""
    is_known: bool = True

    @property
    def is_stale(self) -> bool:
        """True when the declaration changed or vanished since the start."""
        return not self.is_known or self.digest != self.rules.digest

    @property
    def is_idle(self) -> bool:
        """True when stopping it would disturb nobody."""
        return self.phase in LIVE and not self.in_flight and not self.line

    @property
    def free(self) -> int:
        """How many requests the instance can take now."""
        return self.rules.concurrency - len(self.in_flight) if self.phase is Phase.READY and not self.is_stale else 0

    @property
    def excess(self) -> int:
        """How many wait beyond what the present or coming instance takes at once."""
        room = 0 if self.phase is Phase.COLD and self.held_until is None else self.rules.concurrency
        return len(self.line) - max(0, room - len(self.in_flight))

    @property
    def held_until(self) -> float | None:
        """When the next start may begin, while earlier ones that failed put it off; None when nothing does."""
        return None if self.phase in LIVE else self.backoff.blocked_until

    def is_held(self, now: float) -> bool:
        """Say whether the next start has to wait still."""
        return self.held_until is not None and self.backoff.wait_seconds(now) > 0

    def declare(self, rules: ev.Rules) -> None:
        """Take a tool's rules. Another declaration starts with a clean slate."""
        self.rules, self.is_known = rules, True
        if self.backoff.failures and rules.digest != self.failed_digest:
            self.backoff = Backoff()

    def forget(self) -> None:
        """Note that the tool is not declared any more. Declared again, it starts with a clean slate."""
        self.is_known, self.backoff = False, Backoff()

    def count_failure(self, now: float, policy: BackoffPolicy) -> None:
        """Note that its start failed; a start that outlived its declaration says nothing of the next one."""
        if not self.is_known:
            return
        self.failed_digest = self.digest
        self.backoff = replace(self.backoff, policy=policy).failed(now, _MIDDLING)
