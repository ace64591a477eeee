"""The time zone of the machine, by its IANA name; people and programs change it while the daemon
runs.
"""

from __future__ import annotations

import os
import zoneinfo
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

import structlog

LOCALTIME, TIMEZONE = "/etc/localtime", "/etc/timezone"
UTC = "UTC"
_MAX_ZONE_BYTES = 64 * 1024
_log = structlog.get_logger(__name__)


class MachineZone:
    """The name of the machine's zone, looked up again when its files have changed."""

    def __init__(
        self, environ: Mapping[str, str], localtime: str | None = None, timezone: str | None = None
    ) -> None:
        self._environ = environ
        self._localtime = localtime or LOCALTIME
        self._timezone = timezone or TIMEZONE
        self._stamp: tuple[object, ...] | None = None
        self._name = UTC

    def name(self) -> str:
        """Return the name as the files stand. A few looks at files."""
        stamp = (os.path.realpath(self._localtime), _stamp(self._localtime), _stamp(self._timezone))
        if stamp != self._stamp:
            self._name = machine_zone(
                self._environ, localtime=self._localtime, timezone=self._timezone
            )
            self._stamp = stamp
        return self._name


def _stamp(path: str) -> tuple[int, ...]:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def machine_zone(
    environ: Mapping[str, str], *, localtime: str = LOCALTIME, timezone: str = TIMEZONE
) -> str:
    """Return `TZ` where it names a zone, else the zone of /etc/localtime, else what
    /etc/timezone says, else UTC.
    """
    wanted = environ.get("TZ", "").lstrip(":")
    # which means "as if TZ were not set", and saves the C library a look
    if wanted and wanted != LOCALTIME:
        if _is_zone(wanted):
            return wanted
        _log.warning(
            "time_zone_unknown", wanted=wanted, hint="write TZ=Area/City, or pipes.timezone"
        )
    linked = os.path.realpath(localtime).rpartition("zoneinfo/")[2]
    if _is_zone(linked):
        return linked
    written = ""
    with suppress(OSError):
        written = Path(timezone).read_text("utf-8", "replace")[:256].strip()
    # A copy, as some installers make one and as a container has it mounted: /etc/timezone may be of
    # another time.
    copied = _zone_of_copy(localtime, written)
    if copied is not None:
        return copied
    return written if _is_zone(written) else UTC


def _is_zone(name: str) -> bool:
    with suppress(KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return ZoneInfo(name).key == name
    return False


def _zone_of_copy(localtime: str, written: str) -> str | None:
    """Return the zone whose rules a file holds, None where it is none; where several are the
    same, `written` is one.
    """
    try:
        rules = Path(localtime).read_bytes()[:_MAX_ZONE_BYTES]
    except OSError:
        return None
    if not rules.startswith(b"TZif"):
        return None
    for name in _candidates(written):
        for folder in zoneinfo.TZPATH:
            with suppress(OSError, ValueError):
                if Path(folder, name).read_bytes() == rules and _is_zone(name):
                    return name
    return None


def _candidates(written: str) -> Iterator[str]:
    """Yield names of zones, the likely ones first: many are other names of the same rules."""
    if written:
        yield written
    yield UTC
    for folder in zoneinfo.TZPATH:
        with suppress(OSError):
            lines = Path(folder, "zone1970.tab").read_text("utf-8").splitlines()
            yield from (
                line.split("\t")[2]
                for line in lines
                if line.count("\t") >= 2 and not line.startswith("#")
            )
    yield from sorted(zoneinfo.available_timezones())
