"""Validates settings and says of each value whence it came.

Defaults < pxd.toml < conf.d/*.toml in the order of their names < PX_<SECTION>__<KEY> < `--set`. A setting read is a
setting validated (DESIGN §4.9): each source is checked by itself, so that a mistake is reported where it stands, also
when a stronger source hides it; and all mistakes are reported at once.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from supervisord_py.daemon.merge import Layer, Origin, merge, nearest
from supervisord_py.daemon.problems import Problem, SettingsError
from supervisord_py.daemon.schema import HIDDEN, KEYS, SECRETS, Settings
from supervisord_py.daemon.sources import Sources, read_sources
from supervisord_py.pipes.agents.redaction import pattern_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

    from supervisord_py.daemon.merge import Key
    from supervisord_py.daemon.schema import KernelsSection, PipesSection

_SHOWN = 60
"""Characters of a wrong value that an error quotes."""

_ASCENDING = (
    ("timeout_min_seconds", "timeout_seconds"),
    ("timeout_seconds", "timeout_max_seconds"),
    ("ladder_nudge_seconds", "ladder_again_seconds"),
    ("ladder_again_seconds", "ladder_terminate_seconds"),
    ("ladder_terminate_seconds", "ladder_kill_seconds"),
    ("output_head_bytes", "output_preview_bytes"),
    ("output_cell_bytes", "output_total_bytes"),
)
"""Pairs of `[kernels]` of which the second must not be below the first."""


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
    effective = tuple(
        Effective(".".join(key), getattr(getattr(settings, key[0]), key[1]), merged.origins.get(key, Origin()))
        for key in KEYS
    )
    return Loaded(settings, effective, tuple(reading.warnings))


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
    daemon, logs = settings.daemon, settings.logs

    def blame(section: str, name: str, message: str) -> Problem:
        return Problem(origins.get((section, name), Origin()), f"{section}.{name}", f"{section}.{name} {message}")

    if daemon.backoff_max_seconds < daemon.backoff_initial_seconds:
        yield blame("daemon", "backoff_max_seconds", "must not be below daemon.backoff_initial_seconds")
    if daemon.control_hang_seconds <= daemon.watchdog_seconds:
        yield blame("daemon", "control_hang_seconds", "must be above daemon.watchdog_seconds")
    if logs.total_bytes < 2 * logs.segment_bytes:
        yield blame("logs", "total_bytes", "must hold at least two segments (logs.segment_bytes)")
    if settings.api.listen is not None and (reason := _listen_problem(settings.api.listen)):
        yield blame("api", "listen", reason)
    for name, message in _kernel_contradictions(settings.kernels):
        yield blame("kernels", name, message)
    for name, message in _pipe_contradictions(settings.pipes):
        yield blame("pipes", name, message)


def _kernel_contradictions(kernels: KernelsSection) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong with it) of `[kernels]`."""
    for least, most in _ASCENDING:
        if getattr(kernels, least) > getattr(kernels, most):
            yield most, f"must not be below kernels.{least}"
    if kernels.hard_memory_mb and kernels.soft_memory_mb > kernels.hard_memory_mb:
        yield "hard_memory_mb", "must not be below kernels.soft_memory_mb"
    if kernels.backend == "gateway-external" and not kernels.gateway_url:
        yield "backend", "is gateway-external, but kernels.gateway_url says no address"
    if kernels.gateway_url and not kernels.gateway_url.lower().startswith(("http://", "https://")):
        yield "gateway_url", "must begin with http:// or https://"
    if kernels.gateway_key_file and not kernels.gateway_cert_file:
        yield "gateway_key_file", "is the key of a certificate, but kernels.gateway_cert_file names none"


def _pipe_contradictions(pipes: PipesSection) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong with it) of `[pipes]`."""
    if pipes.timezone is not None and (reason := _zone_problem(pipes.timezone)):
        yield "timezone", reason
    for pattern in pipes.redact:
        if trouble := pattern_trouble(pattern):
            yield "redact", f"has {pattern!r}, which is no regular expression: {trouble}"


def _zone_problem(name: str) -> str | None:
    # Names and files of zones: 3 ms that a start without this setting does not pay.
    from supervisord_py.pipes.scheduling.schedule import ScheduleError  # noqa: PLC0415 - lazy on purpose
    from supervisord_py.pipes.scheduling.zones import checked_zone  # noqa: PLC0415 - as above

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
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - a port has 16 bits
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
    return Problem(origin, key, f"{key}: expected {expected}, got {_quoted(path, details['input'])}")


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
