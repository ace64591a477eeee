"""Circuit breakers: a preset that failed for a cause that lasts is passed over for a while. Pure: `now` is given.

Law: a breaker only reorders; it never keeps a pipe from running. Each further failure doubles the rest, up to an hour;
after the rest the next execution tries again. One success closes the breaker, SUCCESSES in a row forget the doubling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import ErrorType, Preset

if TYPE_CHECKING:
    from collections.abc import Mapping

COOLDOWNS: Mapping[ErrorType, float] = {
    ErrorType.RATE_LIMITED: 60.0,
    ErrorType.QUOTA_EXHAUSTED: 1800.0,
    ErrorType.AUTH_FAILED: 120.0,
    ErrorType.MODEL_NOT_FOUND: 120.0,
    ErrorType.PREFLIGHT_FAILED: 30.0,
    ErrorType.PROVIDER_ERROR: 30.0,
    ErrorType.NETWORK: 30.0,
    ErrorType.TIMEOUT: 30.0,
}
"""Seconds of the first rest, by cause. Other failures are the pipe's, not the preset's, and open nothing."""
LONGEST = 3600.0
SUCCESSES = 5


@dataclass(frozen=True, slots=True)
class Breaker:
    """One preset's: how often it opened in a row, until when it rests (Unix seconds), successes since."""

    opened: int = 0
    until: float = 0.0
    successes: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The preset to try now, what remains to fall back on, and the names that were passed over."""

    preset: Preset
    fallbacks: tuple[Preset, ...]
    skipped: tuple[str, ...] = ()


class Breakers:
    """All breakers, by the id of the preset. `state` is what `state()` gave; unreadable rows count as closed."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        read = ((name, _breaker(value)) for name, value in (state or {}).items())
        self._breakers: dict[str, Breaker] = {name: breaker for name, breaker in read if breaker is not None}

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {name: [each.opened, each.until, each.successes] for name, each in sorted(self._breakers.items())}

    def failed(
        self, preset_id: str | None, error_type: ErrorType | None, now: float, retry_after: float | None = None
    ) -> None:
        """Take a failure; `retry_after` is what the provider asked for."""
        rest = COOLDOWNS.get(error_type) if error_type is not None else None
        if preset_id is None or rest is None:
            return
        before = self._breakers.get(preset_id, Breaker())
        seconds = min(LONGEST, max(rest * 2**before.opened, retry_after or 0.0))
        opened = before.opened + 1 if rest * 2**before.opened < LONGEST else before.opened
        self._breakers[preset_id] = Breaker(opened, max(before.until, now + seconds))

    def succeeded(self, preset_id: str | None) -> None:
        """Take a success."""
        if preset_id is None or preset_id not in self._breakers:
            return
        before = self._breakers[preset_id]
        if before.successes + 1 >= SUCCESSES:
            del self._breakers[preset_id]
        else:
            self._breakers[preset_id] = replace(before, until=0.0, successes=before.successes + 1)

    def open_until(self, preset_id: str | None, now: float) -> float | None:
        """Return until when a preset rests; None when it does not. A clock that was set back shortens a rest."""
        breaker = self._breakers.get(preset_id or "")
        if breaker is None or not now < breaker.until <= now + LONGEST:
            return None
        return breaker.until

    def choose(self, preset: Preset, fallbacks: tuple[Preset, ...], now: float) -> Chosen:
        """Choose the first that does not rest; when all do, the one whose rest ends first."""
        chain = (preset, *fallbacks)
        rests = [self.open_until(each.id, now) for each in chain]
        awake = [place for place, until in enumerate(rests) if until is None]
        place = awake[0] if awake else min(range(len(chain)), key=lambda at: rests[at] or 0.0)
        skipped = tuple(each.id or "" for each in chain[:place])
        return Chosen(chain[place], chain[place + 1 :], skipped)


def _breaker(value: Any) -> Breaker | None:
    match value:
        case [int(opened), int() | float() as until, int(successes)] if opened >= 0 and successes >= 0:
            return Breaker(opened, float(until), successes)
        case _:
            return None
