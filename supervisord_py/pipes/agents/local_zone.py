"""Which time zone is this machine in, by its IANA name? File I/O, small."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCALTIME = "/etc/localtime"
TIMEZONE = "/etc/timezone"
_OFFSET = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)(?P<sign>[+-]?)0?(?P<hours>[0-9]{1,2})(?::00)?")
"""`TZ` of POSIX without daylight saving, as tzset(3) reads it: west of Greenwich counts positive."""
_log = structlog.get_logger(__name__)


def machine_zone(environ: Mapping[str, str], *, localtime: str = LOCALTIME, timezone: str = TIMEZONE) -> str:
    """Return `TZ` where it names a zone, else what /etc/localtime points to, else what /etc/timezone says, else UTC.

    A `TZ` that is none of the known zones, nor whole hours from Greenwich, is told in the log.
    """
    wanted = environ.get("TZ", "").lstrip(":")
    linked = os.path.realpath(localtime).rpartition("zoneinfo/")[2]
    found = next(filter(_is_zone, (wanted, _by_offset(wanted), linked, _first_line(timezone))), "UTC")
    if wanted and found not in {wanted, _by_offset(wanted)}:
        _log.warning("time_zone_unknown", wanted=wanted, taken=found, hint="write TZ=Area/City, or pipes.timezone")
    return found


def _by_offset(wanted: str) -> str:
    """Return the zone of `UTC-3`, which is three hours east: `Etc/GMT-3`; "" where it is no such text."""
    found = _OFFSET.fullmatch(wanted)
    return "" if found is None else f"Etc/GMT{found['sign'] or '+'}{int(found['hours'])}"


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline(256).strip()
    except OSError:
        return ""


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return bool(name)
