"""Validates settings and says of each value whence it came.

Defaults < pxd.toml < conf.d/*.toml in the order of their names < PX_<SECTION>__<KEY> < `--set`. A setting read is a
setting validated (DESIGN §4.9): each source is checked by itself, so that a mistake is reported where it stands, also
when a stronger source hides it; and all mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationError

from supervisord_py.daemon.schema import HIDDEN, KEYS, SECRETS, Settings
from supervisord_py.daemon.sources import (
    Layer,
    Origin,
    OriginKind,
    Problem,
    SettingsError,
    Sources,
    merge,
    nearest,
    read_sources,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from supervisord_py.daemon.schema import KernelsSection, PipesSection
    from supervisord_py.daemon.sources import Key

VALID_NAME = "settings.valid.json"
_CHOICE = re.compile(r"'([^']*)'")
"""A choice in pydantic's words for all of them: `'a', 'b' or 'c'`."""
_SHOWN = 60
"""Characters of a wrong value that an error quotes."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two settings of one section that bound each other, with what is said of each; `{}` is the other one.

    Attributes:
        factor: So many times `low` must fit into `high`.
    """

    section: str
    low: str
    high: str
    low_words: str = "must not be above {}"
    high_words: str = "must not be below {}"
    factor: int = 1

    def holds(self, low: float, high: float) -> bool:
        """Say whether values of the two agree."""
        return low * self.factor <= high


_PAIRS = (
    _Pair("daemon", "backoff_initial_seconds", "backoff_max_seconds"),
    _Pair("logs", "segment_bytes", "total_bytes", "must fit twice into {}", "must hold at least two segments of {}", 2),
    _Pair("kernels", "timeout_min_seconds", "timeout_seconds"),
    _Pair("kernels", "timeout_seconds", "timeout_max_seconds"),
    _Pair("kernels", "ladder_nudge_seconds", "ladder_again_seconds"),
    _Pair("kernels", "ladder_again_seconds", "ladder_terminate_seconds"),
    _Pair("kernels", "ladder_terminate_seconds", "ladder_kill_seconds"),
    _Pair("kernels", "output_head_bytes", "output_preview_bytes"),
    _Pair("kernels", "output_cell_bytes", "output_total_bytes"),
    _Pair("kernels", "soft_memory_mb", "hard_memory_mb"),
)
_OFF = {"kernels.hard_memory_mb"}
"""Of these 0 means none: it bounds nothing."""


@dataclass(frozen=True, slots=True)
class Effective:
    """One dotted key with its value in force and its origin."""

    key: str
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid settings, every key with its origin, and what is odd but harmless."""

    settings: Settings
    effective: tuple[Effective, ...]
    warnings: tuple[str, ...] = ()


def load_settings(sources: Sources) -> Loaded:
    """Read and validate all sources.

    Raises:
        SettingsError: With every mistake of every source.
    """
    reading = read_sources(sources)
    problems = reading.problems + [each for layer in reading.layers for each in layer_problems(layer)]
    if problems:
        raise SettingsError(sorted(problems, key=lambda problem: problem.origin.kind.value))
    merged = merge(reading.layers)
    settings = Settings.model_validate(merged.tree)
    if disagreements := list(contradictions(settings, merged.origins)):
        raise SettingsError(disagreements)
    return Loaded(settings, _effective(settings, merged.origins, Origin()), tuple(reading.warnings))


def _effective(settings: Settings, origins: Mapping[Key, Origin], otherwise: Origin) -> tuple[Effective, ...]:
    return tuple(
        Effective(".".join(key), getattr(getattr(settings, key[0]), key[1]), origins.get(key, otherwise))
        for key in KEYS
    )


def keep_valid(folder: Path, loaded: Loaded) -> None:
    """Write down settings that are in force, for a control plane that starts again while pxd.toml is broken.

    A crash at such a moment must not end the children. Secrets are among them: the file is ours alone. A disk that
    refuses costs only this.
    """
    fresh = folder / f"{VALID_NAME}.{os.getpid()}"
    with contextlib.suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(loaded.settings.model_dump(), file, default=SecretStr.get_secret_value)
        fresh.replace(folder / VALID_NAME)


def recall_valid(folder: Path) -> Loaded | None:
    """Return what `keep_valid` wrote, or None when there is nothing that this version understands."""
    try:
        settings = Settings.model_validate_json((folder / VALID_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    return Loaded(settings, _effective(settings, {}, Origin(OriginKind.FILE, str(folder / VALID_NAME))))


def layer_problems(layer: Layer) -> list[Problem]:
    """Validate one layer by itself. Pure."""
    try:
        Settings.model_validate(layer.tree)
    except ValidationError as error:
        problems = [_problem(layer, details) for details in error.errors(include_url=False)]
        return sorted(problems, key=lambda problem: problem.origin.line or 0)
    return []


def contradictions(settings: Settings, origins: Mapping[Key, Origin]) -> Iterator[Problem]:
    """Yield what is wrong only in combination, or beyond types and bounds. Pure."""

    def blame(section: str, name: str, message: str) -> Problem:
        return Problem(origins.get((section, name), Origin()), f"{section}.{name}", f"{section}.{name} {message}")

    for pair in _PAIRS:
        if problem := _out_of_order(pair, settings, origins):
            yield problem
    if settings.api.listen is not None and (reason := _listen_problem(settings.api.listen)):
        yield blame("api", "listen", reason)
    for name, message in _kernel_contradictions(settings.kernels):
        yield blame("kernels", name, message)
    for name, message in _pipe_contradictions(settings.pipes):
        yield blame("pipes", name, message)


def _out_of_order(pair: _Pair, settings: Settings, origins: Mapping[Key, Origin]) -> Problem | None:
    """Return what is wrong with a pair. The setting that somebody wrote is blamed, the one that was written last."""
    section = getattr(settings, pair.section)
    low, high = getattr(section, pair.low), getattr(section, pair.high)
    if pair.holds(low, high) or (high == 0 and f"{pair.section}.{pair.high}" in _OFF):
        return None
    of_low, of_high = (origins.get((pair.section, name), Origin()) for name in (pair.low, pair.high))
    if of_low.kind.value > of_high.kind.value:
        name, origin, words = pair.low, of_low, pair.low_words
        other = f"{pair.section}.{pair.high} ({high:.15g}, {of_high})"
    else:
        name, origin, words = pair.high, of_high, pair.high_words
        other = f"{pair.section}.{pair.low} ({low:.15g}, {of_low})"
    key = f"{pair.section}.{name}"
    return Problem(origin, key, f"{key} {words.format(other)}")


def _kernel_contradictions(kernels: KernelsSection) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong with it) of `[kernels]`."""
    if kernels.backend == "gateway-external" and not kernels.gateway_url:
        yield "backend", "is gateway-external, but kernels.gateway_url says no address"
    if kernels.gateway_url and not kernels.gateway_url.lower().startswith(("http://", "https://")):
        yield "gateway_url", "must begin with http:// or https://"


def _pipe_contradictions(pipes: PipesSection) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong with it) of `[pipes]`."""
    if pipes.timezone is not None and (reason := _zone_problem(pipes.timezone)):
        yield "timezone", reason
    for pattern in pipes.redact:
        try:
            re.compile(pattern.encode())
        except (re.error, UnicodeEncodeError) as error:
            yield "redact", f"has {pattern!r}, which is no regular expression: {error}"


def _zone_problem(name: str) -> str | None:
    # Names and files of zones: 3 ms that a start without this setting does not pay.
    from supervisord_py.pipes.schedule import ScheduleError, checked_zone

    try:
        checked_zone(name)
    except ScheduleError as error:
        return f"has {name!r}: {error.detail}; {error.hint}"
    return None


def parse_listen(text: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:7860` for IPv6). The host must be a loopback address.

    Raises:
        ValueError: It is no such pair; the message says why.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be address:port, like 127.0.0.1:7860")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        raise ValueError(f"has {bare!r}, which is no address") from None
    if not address.is_loopback:
        raise ValueError(f"has {bare}, which is no loopback address; use 127.0.0.1 and a tunnel from outside")
    return str(address), int(port)


def _listen_problem(text: str) -> str | None:
    try:
        parse_listen(text)
    except ValueError as error:
        return str(error)
    return None


def _problem(layer: Layer, details: ErrorDetails) -> Problem:
    path = tuple(str(part) for part in details["loc"])
    key = ".".join(path)
    origin = layer.origin(path)
    if details["type"] == "extra_forbidden":
        return Problem(origin, key, f"unknown {_noun(path)} {key}", _meant(path))
    expected = details["msg"].removeprefix("Input should be ")
    if details["type"] == "model_type":
        expected = f"a table: [{key}]"
    message = f"{key}: expected {expected}, got {_quoted(path, details['input'])}"
    return Problem(origin, key, message, _choice_meant(details))


def _choice_meant(details: ErrorDetails) -> str | None:
    """Return the choice that a wrong word is nearest to; None where no choice was to be made, or none is near."""
    if details["type"] != "literal_error" or not isinstance(details["input"], str):
        return None
    return nearest(details["input"].lower(), _CHOICE.findall(details["ctx"]["expected"]))


def _quoted(path: tuple[str, ...], value: Any) -> str:
    """Return a wrong value as an error may show it: cut, and not at all where a secret was meant."""
    if path[:2] in SECRETS:
        return HIDDEN
    quoted = repr(value)
    return quoted if len(quoted) <= _SHOWN else quoted[: _SHOWN - 1] + "…"


def _noun(path: tuple[str, ...]) -> str:
    return "section" if len(path) == 1 and path[0] not in _NAMES else "setting"


_NAMES = {name for _, name in KEYS}
_SECTIONS = {section for section, _ in KEYS}


def _meant(path: tuple[str, ...]) -> str | None:
    """Guess: the same name in another section, else a like one in its own, else a section."""
    section, name = (path[0], path[-1]) if len(path) > 1 else ("", path[0])
    for home, key in KEYS:
        if key == name:
            return f"{home}.{name}"
    if close := nearest(name, {key for home, key in KEYS if home == section}):
        return f"{section}.{close}"
    return None if section else nearest(name, _SECTIONS)
