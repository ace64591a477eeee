"""Which time zone is this machine in, by its IANA name? File I/O, small."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCALTIME = "/etc/localtime"
TIMEZONE = "/etc/timezone"


def machine_zone(environ: Mapping[str, str], *, localtime: str = LOCALTIME, timezone: str = TIMEZONE) -> str:
    """Return `TZ` where it names a zone, else what /etc/localtime points to, else what /etc/timezone says, else UTC."""
    linked = os.path.realpath(localtime).rpartition("zoneinfo/")[2]
    for name in (environ.get("TZ", "").lstrip(":"), linked, _first_line(timezone)):
        if _is_zone(name):
            return name
    return "UTC"


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
