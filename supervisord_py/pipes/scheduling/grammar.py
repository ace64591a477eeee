"""From text to schedule. Pure: text in, a value or an error with the nearest right form out.

Law: every text either becomes a schedule or a `ScheduleError` that says what is wrong and what to write; nothing is
silently `never`, and nothing silently means something else than what people read: `daily` stays an interval, as pipes
in the wild have it, and says so.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.clock_words import clock_cron
from supervisord_py.pipes.scheduling.config_map import read_config
from supervisord_py.pipes.scheduling.cron_fields import normalised
from supervisord_py.pipes.scheduling.cron_rule import CronRule
from supervisord_py.pipes.scheduling.instants import instant
from supervisord_py.pipes.scheduling.interval_words import interval
from supervisord_py.pipes.scheduling.nearest import nearest, nearest_name, shown
from supervisord_py.pipes.scheduling.schedule import At, Cron, Every, Manual, Schedule, ScheduleError
from supervisord_py.pipes.scheduling.zones import checked_zone

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SHORTEST_SECONDS", "ParsedSchedule", "ScheduleError", "parse_schedule"]

SHORTEST_SECONDS = 10.0
_LONGEST_TEXT = 200
_EPOCH = 0.0
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ZONE_BEFORE = re.compile(r"(?:CRON_TZ|TZ)=(\S+) (.+)")
_ZONE_AFTER = re.compile(r"(.+?)(?: in| \()? ?(?<=[ (])((?:[A-Za-z_]+/[A-Za-z][A-Za-z0-9_+/-]*)|UTC|GMT)\)?")
_TURNED = re.compile(r"(?:at )?([0-9:]+ ?(?:am|pm)?|noon|midnight) (?:on )?([a-z].*)")
_CRON_LIKE = re.compile(r"[0-9*?,/-]*[0-9*?][0-9*?,/-]*(?: [0-9A-Za-z*?,/#-]+)*")


@dataclass(frozen=True, slots=True)
class ParsedSchedule:
    """A schedule, and sentences for the one who wrote it."""

    schedule: Schedule
    warnings: tuple[str, ...] = ()


def parse_schedule(
    text: str,
    config: Mapping[str, object] | None = None,
    *,
    timezone: str | None = None,
    floor_seconds: float = SHORTEST_SECONDS,
) -> ParsedSchedule:
    """Read a schedule.

    Args:
        text: `schedule` of the front matter.
        config: `schedule_config`; one that is not empty takes the place of the text.
        timezone: Zone of what names none; None is the machine's.
        floor_seconds: Nothing denser is taken.

    Raises:
        ScheduleError: It is none; `detail` says why and `hint` names the nearest form.
    """
    zone = None if timezone is None else checked_zone(timezone)
    if config:
        return ParsedSchedule(*read_config(config, zone, floor_seconds))
    plain = " ".join(text.split())
    if len(plain) > _LONGEST_TEXT:
        raise ScheduleError(f"a schedule of {len(plain)} characters is too long: {shown(plain)}", hint=_hint(""))
    return _read(plain, zone, floor_seconds)


def _read(text: str, zone: str | None, floor: float) -> ParsedSchedule:
    lower = text.lower()
    if lower == "manual":
        return ParsedSchedule(Manual())
    if lower.startswith("at ") and (once := _once(text[3:], zone)):
        return ParsedSchedule(once)
    if lower.startswith("@every "):
        lower = lower[1:]
    if found := interval(lower, floor):
        return ParsedSchedule(Every(found.seconds), found.warnings)
    body, zone = _split_zone(text, zone)
    expression = _expression(body.lower(), floor)
    if CronRule(expression, UTC).after(_EPOCH) is None:
        raise ScheduleError(f"no calendar has a time for {shown(body)}", hint="write for example `0 9 28 2 *`")
    return ParsedSchedule(Cron(expression, zone))


def _once(text: str, zone: str | None) -> At | None:
    """Return what follows `at`, or None where it does not even begin like a date."""
    if not re.match(r"[0-9]{4}-", text):
        return None
    return At(instant(text, zone))


def _split_zone(text: str, zone: str | None) -> tuple[str, str | None]:
    """Take a zone off either end; an own one wins."""
    if before := _ZONE_BEFORE.fullmatch(text):
        return before[2], checked_zone(before[1])
    if after := _ZONE_AFTER.fullmatch(text):
        return after[1], checked_zone(after[2])
    return text, zone


def _expression(text: str, floor: float) -> str:
    if text.startswith("@"):
        return _macro(text)
    if words := clock_cron(text):
        return words
    if _CRON_LIKE.fullmatch(text) and (" " in text or "*" in text):
        return normalised(text, floor)
    raise ScheduleError(f"{shown(text)} is no schedule", hint=_hint(text))


def _macro(text: str) -> str:
    if text in _MACROS:
        return _MACROS[text]
    if text == "@reboot":
        raise ScheduleError(
            "'@reboot' is no time: a restart of the daemon would run it, too",
            hint="write `every 1d`, which is made good after a start, or start it by an event",
        )
    near = nearest_name(text, tuple(_MACROS)) or "@daily"
    raise ScheduleError(f"{shown(text)} is no schedule", hint=f"did you mean `{near}`?")


def _hint(text: str) -> str:
    return f"did you mean `{_reordered(text) or nearest(text)}`? pipe.md(5) lists the forms"


def _reordered(text: str) -> str | None:
    """Return days and time of day in the order, and with the word, that the grammar wants."""
    turned = _TURNED.fullmatch(text)
    tries = [f"{turned[2]} at {turned[1]}"] if turned else []
    days, _, time = text.rpartition(" ")
    for each in (*tries, f"{days} at {time}", f"{text} at 9:00"):
        with suppress(ScheduleError):
            if clock_cron(each):
                return each
    return None
