"""Reads and validates settings: defaults < pxd.toml < conf.d/*.toml < environment < flags, by
pydantic-settings.

A mistake is told where the strongest source that says the key has it, all of them at once.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, SettingsConfigDict

from supervisord_py.api.auth import parse_listen
from supervisord_py.config import documents
from supervisord_py.config.documents import DocumentError, nearest, read_bounded
from supervisord_py.config.settings import (
    DEFAULTS,
    HIDDEN,
    KEYS,
    SECRETS,
    SECTIONS,
    Settings,
    value_of,
)
from supervisord_py.daemon.settings import NOT_SETTINGS, PREFIX, Flags, Loaded, SettingsError
from supervisord_py.kernels.config import LEGACY_NAMES, legacy_settings

NESTING = "__"
_VARIABLES = [f"{PREFIX}{section}{NESTING}{name}".upper() for section, name in KEYS]
_CHOICE = re.compile(r"'([^']*)'")
DEFAULT: dict[str, Any] = {"origin": "default"}
_SHOWN = 60  # characters of a wrong value that an error quotes

_ORDERED = (
    ("daemon", "backoff_initial_seconds", "backoff_max_seconds"),
    ("kernels", "timeout_min_seconds", "timeout_seconds"),
    ("kernels", "timeout_seconds", "timeout_max_seconds"),
    ("kernels", "ladder_terminate_seconds", "ladder_kill_seconds"),
    ("kernels", "soft_memory_mb", "hard_memory_mb"),
)
"""(section, low, high): settings of one section that bound each other."""


def _items(value: Any, separator: str = ",") -> Any:
    """Make a list a tuple; a text is JSON (`["a", "b"]`), or its items joined by a separator."""
    if isinstance(value, str) and not value.startswith("["):
        return tuple(item.strip() for item in value.split(separator) if item.strip())
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return tuple(value) if isinstance(value, list) else value


def _annotation(kind: Any) -> Any:
    """Turn the type of a setting into what pydantic understands: msgspec's Meta becomes a Field."""
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        bounds = {
            name: getattr(meta, name) for meta in metas for name in ("ge", "gt", "le", "pattern")
        }
        field: Any = Field(**{name: bound for name, bound in bounds.items() if bound is not None})
        return Annotated[_annotation(bare), field]
    if get_origin(kind) in {Union, types.UnionType}:
        return Union[tuple(_annotation(each) for each in get_args(kind))]  # noqa: UP007  # of a tuple
    return Annotated[kind, NoDecode, BeforeValidator(_items)] if get_origin(kind) is tuple else kind


def _sections() -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        kind = type(getattr(DEFAULTS, name))
        members: Any = {
            each.name: (_annotation(each.type), each.default)
            for each in msgspec.structs.fields(kind)
        }
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        model: Any = create_model(kind.__name__, __config__=config, **members)
        sections[name] = (model, model())
    return sections


class _Layered(BaseSettings):
    """Sources over each other: `layers` are trees of sections and keys, the weakest first."""

    model_config = SettingsConfigDict(extra="forbid")

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls, _: Any, init_settings: Any, *others: Any, **more: Any
    ) -> tuple[Any, ...]:
        return tuple(
            InitSettingsSource(cls, layer)
            for layer in reversed(init_settings.init_kwargs["layers"])
        )


_Merged: Any = create_model("_Merged", __base__=_Layered, **_sections())

_REMOVED = {
    "daemon": """watchdog_seconds: 10 s; control_hang_seconds: 30 s; backoff_reset_seconds: 60 s; stop_seconds: 10 s;
        platform cgroup: the best that the system has, see `pxctl doctor`""",
    "logs": "segment_bytes: an eighth of `logs.total_bytes`; spill_bytes: 1 MiB",
    "api": """token_file: `api.token` beside the ledger; stream_buffer_bytes: 1 MiB; stream_resume_seconds: 5 s;
        idempotency_seconds: 24 h; idempotency_body_bytes: 256 KiB of a run's answer""",
    "ledger": """keep_days: 90 days; events_keep runs_keep: 100,000 events, runs among them; cells_keep: 20,000;
        sessions_keep: 1,000""",
    "tools": """start_timeout_seconds stop_timeout_seconds concurrency: the key of that name in `tool.json`;
        queue_timeout_seconds: the `--timeout` of a run, else 60 s; answer_buffer_bytes: 256 KiB; listen_backlog: 128;
        stderr_tail_bytes: 64 KiB; validate_timeout_seconds: 30 s; sync_timeout_seconds: 30 min""",
    "kernels": """debug_startup: `kernels.trace`; prelude: it is loaded, see `pxctl help px-prelude`; stop_seconds: 5 s;
        modules_dir: the folder `modules` beside pxd.toml; spares: `daemon.zygotes`; spare_idle_seconds: 10 min;
        restarts: 1; start_failures start_failure_seconds: each `pxctl exec` tries again; memory_grace_seconds: 2 s;
        env_allow_prefixes: `kernels.env_allow` and `kernels.env_deny`, where a last `*` makes a prefix;
        ladder_nudge_seconds: 0.02 s; ladder_again_seconds: a third of `kernels.ladder_terminate_seconds`;
        output_preview_bytes: 64 KiB; output_head_bytes: 16 KiB; output_inline_bytes: 256 KiB; output_keep_days: 7 days;
        output_session_bytes output_total_bytes: 16 GiB of all cells; shared_gateway: `kernels.backend`;
        open_files cpu_seconds: `resource.setrlimit` in a cell; gateway_token_file: `kernels.gateway_token`;
        gateway_kernel_name: `--kernelspec` of a session, else python3; gateway_dir: folder `gateway` beside the ledger;
        gateway_cull_idle_seconds: 1 h; gateway_start_seconds: 30 s; gateway_silent_output_seconds: 5 s;
        gateway_lock_seconds: no lock, each daemon has its own `kernel:gateway`;
        gateway_ca_file: `SSL_CERT_FILE` in pxd's environment; gateway_silent_start_seconds: `kernels.start_seconds`;
        gateway_cert_file gateway_key_file: a proxy that has them, as `kernels.gateway_url`""",
    "pipes": """timeout_seconds: `timeout` in pipe.md; daily_tokens: `budget.daily_tokens` in pipe.md; retry_growth: 3;
        retry_max_seconds: 600 s; retry_jitter: 0 to 20 %; preflight preflight_seconds: providers are asked, up to 5 s;
        max_turns max_tokens max_cost max_memory_mb: `limits` (turns, tokens, cost, memory) in pipe.md;
        file_bytes_max: 1 MiB; output_row_bytes: 256 KiB; output_page_bytes: the `limit` of a request, else 64 KiB;
        keep_executions: 10,000 of a pipe; keep_bytes: 4 GiB; look_seconds: 1 s; wake_silence_seconds: 60 s;
        catch_up_seconds: 12 h; window_max_seconds: 8 h; window_default_seconds: 1 h; claim_days: 7 days;
        hook_seconds: no hooks, but pipes like `example:tell-failure`;
        loop_seconds: no event comes back to a pipe of its `chain`""",
}
"""Settings of 0.1 that are gone, by section, and what 0.2 has instead.

An old file is good: each is one warning.
"""


def _mistake(
    place: dict[str, Any], key: str, message: str, near: str | None = None
) -> dict[str, Any]:
    """Return one mistake as `config check --json` has it.

    `place` has `origin`, and `file` and `line` of a file.
    """
    return {
        "file": None,
        "line": None,
        **place,
        "key": key or None,
        "message": message,
        "nearest": near,
    }


class _SettingsReading:
    """The sources as trees, weakest first; where each key stands; the mistakes; and what is odd
    but harmless.
    """

    def __init__(self, flags: Flags) -> None:
        self.layers: list[dict[str, Any]] = []
        self.places: dict[tuple[str, ...], dict[str, Any]] = {}
        self.problems: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self._folders: tuple[Any, ...] = ()
        for path in flags.files():
            self._file(path)
        # Variables of an earlier program that mean settings of ours: above files, below our own
        # names.
        values, warnings = legacy_settings(os.environ)
        self.warnings += warnings
        for key, (value, variable) in values.items():
            self._text(f"env {variable}", key, value)
        for variable in sorted(os.environ):
            if not variable.startswith(PREFIX) or variable in NOT_SETTINGS | LEGACY_NAMES:
                continue
            name = variable.removeprefix(PREFIX).lower()
            if NESTING in name:
                self._text(f"env {variable}", name.replace(NESTING, ".", 1), os.environ[variable])
            else:
                near = nearest(variable, _VARIABLES)
                guess = f"; did you mean {near}?" if near else ""
                self.warnings.append(f"the variable {variable} is no setting and is ignored{guess}")
        for flag in flags.settings:
            name, equals, text = flag.partition("=")
            origin = f"flag --set {name}"
            if tuple(name.split(".")) in SECRETS:
                message = f"{name} is a secret, which every process could read in a command line"
                near = f"{PREFIX}{name.replace('.', NESTING)}".upper()
                self.problems.append(_mistake({"origin": origin}, name, message, near))
            elif equals and "." in name:
                self._text(origin, name, text)
            else:
                self.problems.append(
                    _mistake({"origin": origin}, name, "expected section.key=value")
                )

    def _text(self, origin: str, key: str, text: str | bool) -> None:
        """Take one key of the environment or a flag; an empty text is none."""
        section, _, name = key.partition(".")
        value = _items(text, os.pathsep) if key == "tools.paths" else text
        self._take({"origin": origin}, section, name, None if text == "" else value)

    def _take(self, place: dict[str, Any], section: str, name: str, value: Any) -> None:
        for names, _, instead in (
            entry.partition(":") for entry in _REMOVED.get(section, "").split(";")
        ):
            if name in names.split():
                said = (
                    f"the setting {section}.{name} no longer exists and is ignored; 0.2 has "
                    "instead:"
                )
                self.warnings.append(" ".join([f"{place['origin']}: {said}", *instead.split()]))
                return
        if (section, name) == ("tools", "paths") and isinstance(value, list | tuple):
            value = self._folders = (*self._folders, *value)  # every source adds to these
        self.layers.append({section: {name: value}})
        self.places[section, name] = self.places[section,] = place

    def _file(self, path: Path) -> None:
        def at(line: int | None) -> dict[str, Any]:
            return {
                "origin": str(path) if line is None else f"{path}:{line}",
                "file": str(path),
                "line": line,
            }

        try:
            document = documents.parse_toml(
                documents.decode(read_bounded(path), str(path)), str(path)
            )
        except OSError as error:
            self.problems.append(_mistake(at(None), "", f"cannot be read: {error.strerror}"))
            return
        except DocumentError as error:
            self.problems.append(
                _mistake(at(error.problem.line), "", f"no valid TOML: {error.problem.message}")
            )
            return
        for section, values in document.value.items():
            place = at(document.place((section,), key=True)[0])
            for name, value in values.items() if isinstance(values, dict) else ():
                self._take(at(document.place((section, name), key=True)[0]), section, name, value)
            # which a stronger source would hide
            if not isinstance(values, dict) and section in SECTIONS:
                message = f"{section}: expected a table: [{section}], got {values!r}"
                self.problems.append(_mistake(place, section, message))
            elif not isinstance(values, dict):
                self.layers.append({section: values})
            self.places[section,] = place

    def problem(self, details: ErrorDetails) -> dict[str, Any]:
        path = tuple(str(part) for part in details["loc"])
        key, place = ".".join(path), self.places.get(path[:2], self.places.get(path[:1], DEFAULT))
        if details["type"] == "extra_forbidden":
            # By the name alone, since any two keys of a section are alike; of equal ones first the
            # section's own.
            keys = [*reversed(KEYS), *(it for it in KEYS if it[0] == path[0])]
            known = {it[1]: ".".join(it) for it in keys}
            known |= {} if len(path) > 1 else dict(zip(SECTIONS, SECTIONS, strict=True))
            near = known.get(nearest(path[-1], known) or "")
            noun = "setting" if len(path) > 1 or "." in (near or "") else "section"
            return _mistake(place, key, f"unknown {noun} {key}", near)
        expected = details["msg"].removeprefix("Input should be ").partition(", unable")[0]
        choices = (
            _CHOICE.findall(details["ctx"]["expected"])
            if details["type"] == "literal_error"
            else []
        )
        got = HIDDEN if path[:2] in SECRETS else repr(details["input"])
        message = (
            f"{key}: expected {expected}, got "
            f"{got if len(got) <= _SHOWN else got[: _SHOWN - 1] + '…'}"
        )
        return _mistake(place, key, message, nearest(str(details["input"]), choices))


def read_settings(flags: Flags) -> Loaded:
    """Read and validate all sources.

    Raises SettingsError: with every mistake of what would be in force.
    """
    stamp, reading = flags.stamp(), _SettingsReading(flags)
    problems, places = reading.problems, reading.places
    try:
        settings = msgspec.convert(_Merged(layers=reading.layers).model_dump(), Settings)
    except ValidationError as error:
        problems += map(reading.problem, error.errors(include_url=False))
    else:
        problems += _contradictions(settings, places)
    if problems:
        rank = {str(path): index for index, path in enumerate(flags.files())}
        raise SettingsError(
            sorted(problems, key=lambda it: (rank.get(it["file"], len(rank)), it["line"] or 0))
        )
    origins = {".".join(key): places[key]["origin"] for key in KEYS if key in places}
    return Loaded(settings, origins, tuple(reading.warnings), stamp)


def _zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        near = nearest(name, available_timezones()) or "Europe/Berlin"
        raise ValueError(f"is no time zone of the IANA list, like {near}") from None


def _patterns(patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern.encode())
        except (re.error, UnicodeEncodeError) as error:
            raise ValueError(f"has {pattern!r}, which is no regular expression: {error}") from None


_CHECKS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("api", "listen"): parse_listen,
    ("pipes", "timezone"): _zone,
    ("pipes", "redact"): _patterns,
}
"""What is wrong beyond types and bounds is a ValueError."""


def _contradictions(
    settings: Settings, places: Mapping[tuple[str, ...], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield what is wrong beyond types and bounds, or only in combination: the place is one that
    somebody wrote.
    """

    def blame(section: str, name: str, message: str, other: str = "") -> dict[str, Any]:
        place = places.get((section, name)) or places.get((section, other), DEFAULT)
        return _mistake(place, f"{section}.{name}", f"{section}.{name} {message}")

    for section, low, high in _ORDERED:
        least, most = value_of(settings, section, low), value_of(settings, section, high)
        if least is not None and least > most and (most, high) != (0, "hard_memory_mb"):
            yield blame(section, high, f"must not be below {section}.{low} ({least:.15g})", low)
    for (section, name), check in _CHECKS.items():
        if value := value_of(settings, section, name):
            try:
                check(value)
            except ValueError as error:
                yield blame(section, name, str(error))
    if settings.kernels.backend == "gateway-external" and not settings.kernels.gateway_url:
        yield blame(
            "kernels", "backend", "is gateway-external, but kernels.gateway_url says no address"
        )
