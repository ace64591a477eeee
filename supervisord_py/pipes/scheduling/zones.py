"""Names of time zones: checked, and the nearest one for a name that is none. Pure but for the machine's zone files."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from supervisord_py.pipes.scheduling.nearest import nearest_name, shown
from supervisord_py.pipes.scheduling.schedule import ScheduleError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


def checked_zone(name: str) -> str:
    """Return the name of a zone that exists.

    Raises:
        ScheduleError: There is none of that name; the hint has the nearest.
    """
    if _NAME.fullmatch(name) and _exists(name):
        return name
    near = nearest_name(name, available_timezones())
    hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
    raise ScheduleError(f"there is no time zone {shown(name)}", hint=hint)


def _exists(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False  # OSError: a folder of zones, such as `Europe`
    return True
