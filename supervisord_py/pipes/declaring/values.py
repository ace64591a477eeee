"""Texts of single values, read by the type that their key has. Pure; each refusal says what to write instead."""

from __future__ import annotations

import re

from supervisord_py.pipes.declaring.problems import shown

_YES = frozenset({"true", "yes", "on"})
_NO = frozenset({"false", "no", "off"})
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?")
_LEADING_ZERO = re.compile(r"0+[0-9]+")
_CLOCK = re.compile(r"[0-9]+:[0-9]+(?::[0-9]+)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]+)[ ,]*")
_COUNTED = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)")

_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_COUNTS = {"": 1, "k": 1000, "m": 1_000_000, "b": 1_000_000_000}
_SIZES = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1024),
    **dict.fromkeys(("m", "mb", "mib"), 1024**2),
    **dict.fromkeys(("g", "gb", "gib"), 1024**3),
}
MAX_SECONDS = 366 * 86400.0


class WrongValueError(ValueError):
    """A text that is no value of its type: what is wrong, and what to write."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


def flag_of(text: str) -> bool:
    """Read yes or no, in any of the usual words."""
    word = text.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise WrongValueError(f"{shown(text)} is neither true nor false", "write true or false")


def whole_of(text: str, least: int, most: int) -> int:
    """Read a whole number."""
    found = text.strip()
    if _LEADING_ZERO.fullmatch(found):
        plain = found.lstrip("0") or "0"
        raise WrongValueError(f"{shown(text)} is read as an octal number by other programs", f"write {plain}")
    if not _WHOLE.fullmatch(found):
        raise WrongValueError(f"{shown(text)} is no whole number", f"write a number from {least} to {most}")
    value = int(found)
    if not least <= value <= most:
        raise WrongValueError(f"{value} is out of range", f"write a number from {least} to {most}")
    return value


def money_of(text: str) -> float:
    """Read an amount of US dollars, more than nothing; a $ in front is allowed."""
    found = text.strip().removeprefix("$")
    if not _NUMBER.fullmatch(found) or float(found) <= 0:
        raise WrongValueError(f"{shown(text)} is no amount of dollars", "write an amount above 0, such as 0.50")
    return float(found)


def count_of(text: str) -> int:
    """Read a number above 0, which may end in k (thousand), M (million) or B."""
    return _scaled(text, _COUNTS, "write a number above 0, such as 200000, 200k or 1.5M")


def size_of(text: str) -> int:
    """Read bytes: `512MB`, `2GiB`; a unit is a power of 1024."""
    return _scaled(text, _SIZES, "write a size such as 512MB or 2GB")


def _scaled(text: str, units: dict[str, int], hint: str) -> int:
    found = _COUNTED.fullmatch(text.strip().lower().replace("_", ""))
    value = float(found[1]) * units.get(found[2], 0) if found else 0
    if not 1 <= value < 2**53:
        raise WrongValueError(f"{shown(text)} is not understood", hint)
    return int(value)


def seconds_of(text: str) -> float:
    """Read a time span: seconds, or `90s`, `10m`, `1h30m`, `2 hours`; more than 0, at most a year."""
    found = text.strip().lower()
    if _CLOCK.fullmatch(found):
        detail = f"{shown(text)} looks like a time of day, and is {_sexagesimal(found)} to other YAML readers"
        raise WrongValueError(detail, "write seconds (600), or 90s, 10m, 1h30m")
    value = _plain_seconds(found) if found[-1:].isdigit() else _spelled_seconds(found)
    if value is None:
        raise WrongValueError(f"{shown(text)} is no time span", "write seconds (600), or 90s, 10m, 1h30m")
    if not 0 < value <= MAX_SECONDS:
        raise WrongValueError(f"{shown(text)} is out of range", "write a time above 0 and up to 366 days")
    return value


def _plain_seconds(text: str) -> float | None:
    if _LEADING_ZERO.fullmatch(text):
        whole_of(text, 0, 0)
    return float(text) if _NUMBER.fullmatch(text) else None


def _spelled_seconds(text: str) -> float | None:
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _SECONDS:
            return None
        total += float(part[1]) * _SECONDS[part[2]]
        at = part.end()
    return total if at else None


def _sexagesimal(text: str) -> int:
    value = 0
    for each in text.split(":"):
        value = value * 60 + int(each)
    return value
