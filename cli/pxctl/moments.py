"""Moments as people read them: their own clock on a terminal, RFC 3339 elsewhere."""

from __future__ import annotations

import time

from pxctl import wording


def local(text: object, *, terminal: bool) -> str:
    """Return "Mon 2026-11-23 08:00:00 CET" of an RFC 3339 time on a terminal; elsewhere the time as it came."""
    moment = wording.epoch(text)
    if moment is None or not terminal:
        return wording.ABSENT if text is None else str(text)
    return time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(moment))
