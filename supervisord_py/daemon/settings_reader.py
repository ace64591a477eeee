"""Reads and validates settings: defaults < pxd.toml < conf.d/*.toml < environment < flags, by pydantic-settings.

Each source is first checked by itself, so that a mistake is told where it stands, also when a stronger source hides it,
and all mistakes at once. As a program (`python -m supervisord_py.daemon.settings_reader FOLDER FLAG…`) it leaves what
it read in FOLDER, or prints what is wrong with it: so the control plane reloads without pydantic.
"""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Union, get_args, get_origin
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, SettingsConfigDict

from supervisord_py.config import documents
from supervisord_py.config.documents import DocumentError, nearest, read_bounded
from supervisord_py.config.settings import DEFAULTS, HIDDEN, KEYS, SECRETS, SECTIONS, Settings, value_of
from supervisord_py.daemon.boot import parse_flags
from supervisord_py.daemon.settings import (
    NOT_SETTINGS,
    PREFIX,
    Loaded,
    SettingsError,
    Sources,
    keep_valid,
)
from supervisord_py.daemon.sockets import parse_listen
from supervisord_py.kernels.exposure import LEGACY_NAMES, legacy_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_core import ErrorDetails

NESTING = "__"
_VARIABLES = [f"{PREFIX}{section}{NESTING}{name}".upper() for section, name in KEYS]
_CHOICE = re.compile(r"'([^']*)'")
MOST_PROBLEMS = 500  # so many are printed for whoever asked
_SHOWN = 60  # characters of a wrong value that an error quotes

_ORDERED = (
    ("daemon", "backoff_initial_seconds", "backoff_max_seconds"),
    ("logs", "segment_bytes", "total_bytes"),
    ("kernels", "timeout_min_seconds", "timeout_seconds"),
    ("kernels", "timeout_seconds", "timeout_max_seconds"),
    ("kernels", "ladder_again_seconds", "ladder_terminate_seconds"),
    ("kernels", "ladder_terminate_seconds", "ladder_kill_seconds"),
    ("kernels", "soft_memory_mb", "hard_memory_mb"),
)
"""(section, low, high): settings of one section that bound each other."""


# -- the model ----------------------------------------------------------------------------------------------------


def _items(value: Any, info: ValidationInfo) -> Any:
    """Make a list a tuple; a text is JSON (`["a", "b"]`), or its items joined by commas, folders as in PATH."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str) or not (info.context or {}).get("text"):
        return value
    if not value.startswith("["):
        separator = os.pathsep if info.field_name == "paths" else ","
        return tuple(item.strip() for item in value.split(separator) if item.strip())
    try:
        return tuple(json.loads(value))
    except ValueError:
        return value


def _annotation(kind: Any) -> Any:
    """Turn the type of a setting into what pydantic understands: msgspec's Meta becomes a Field."""
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        bounds = {name: getattr(meta, name) for meta in metas for name in ("ge", "gt", "le")}
        return Annotated[
            _annotation(bare), Field(**{name: bound for name, bound in bounds.items() if bound is not None})
        ]
    if get_origin(kind) in {Union, types.UnionType}:
        return Union[tuple(_annotation(each) for each in get_args(kind))]  # noqa: UP007  # of a tuple
    return Annotated[kind, NoDecode, BeforeValidator(_items)] if get_origin(kind) is tuple else kind


def _sections() -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        kind = type(getattr(DEFAULTS, name))
        members: Any = {each.name: (_annotation(each.type), each.default) for each in msgspec.structs.fields(kind)}
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        model: Any = create_model(kind.__name__, __config__=config, **members)
        sections[name] = (model, model())
    return sections


_Sections: Any = create_model("_Sections", __config__=ConfigDict(extra="forbid"), **_sections())
"""What one source may say."""


class _Merged(_Sections, BaseSettings):  # type: ignore[misc]  # made just above
    """All sources over each other; only `read_settings` says which."""

    model_config = SettingsConfigDict(extra="forbid")
    layers: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    def settings_customise_sources(cls, *_: Any, **__: Any) -> tuple[Any, ...]:
        return tuple(InitSettingsSource(cls, layer) for layer in reversed(cls.layers))


# -- layers -------------------------------------------------------------------------------------------------------

_NAMES = {name for _, name in KEYS}
_REMOVED = {
    "daemon": "watchdog_seconds control_hang_seconds backoff_reset_seconds stop_seconds platform cgroup",
    "logs": "spill_bytes",
    "api": "token_file stream_buffer_bytes stream_resume_seconds idempotency_body_bytes idempotency_seconds",
    "ledger": "keep_days events_keep runs_keep cells_keep sessions_keep",
    "tools": """
        start_timeout_seconds stop_timeout_seconds concurrency queue_timeout_seconds answer_buffer_bytes
        listen_backlog stderr_tail_bytes validate_timeout_seconds sync_timeout_seconds
    """,
    "kernels": """
        debug_startup prelude modules_dir stop_seconds spares spare_idle_seconds restarts start_failures
        start_failure_seconds env_allow_prefixes ladder_nudge_seconds output_preview_bytes output_head_bytes
        output_inline_bytes output_session_bytes output_total_bytes output_keep_days memory_grace_seconds
        open_files cpu_seconds gateway_token_file gateway_kernel_name gateway_dir gateway_cull_idle_seconds
        gateway_start_seconds gateway_lock_seconds gateway_ca_file gateway_cert_file gateway_key_file
        gateway_silent_start_seconds gateway_silent_output_seconds
    """,
    "pipes": """
        timeout_seconds preflight preflight_seconds retry_growth retry_max_seconds retry_jitter max_turns
        max_tokens max_cost max_memory_mb daily_tokens file_bytes_max output_row_bytes output_page_bytes
        keep_executions keep_bytes look_seconds catch_up_seconds wake_silence_seconds window_max_seconds
        window_default_seconds claim_days loop_seconds hook_seconds
    """,
}
"""Settings of the first edition that are gone, by section. Each is one warning: an old file is still a good one."""


def _removed(section: str, name: str) -> str | None:
    if name not in _REMOVED.get(section, "").split():
        return None
    instead = "a constant, or a key of the unit's own file, took its place; see CHANGELOG"
    instead = "daemon.zygotes took its place" if name == "spares" else instead
    return f"the setting {section}.{name} no longer exists and is ignored: {instead}"


class _Layer(NamedTuple):
    """One source: sections and keys as written, and `origin`, `file` and `line` of a path of keys.

    `is_text`: values are texts that become the type of their setting.
    """

    tree: dict[str, Any]
    place: Callable[[tuple[str, ...]], dict[str, Any]]
    is_text: bool = False

    def validated(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return what the source says in the types of the settings, and what is wrong with it."""
        try:
            model = _Sections.model_validate(self.tree, strict=not self.is_text, context={"text": self.is_text})
        except ValidationError as error:
            found = [self._problem(each) for each in error.errors(include_url=False)]
            return {}, sorted(found, key=lambda each: each["line"] or 0)
        said: dict[str, Any] = model.model_dump(exclude_unset=True)
        return said, []

    def _problem(self, details: ErrorDetails) -> dict[str, Any]:
        path = tuple(str(part) for part in details["loc"])
        key = ".".join(path)
        if details["type"] == "extra_forbidden":
            noun = "section" if len(path) == 1 and path[0] not in _NAMES else "setting"
            return _mistake(self.place(path), key, f"unknown {noun} {key}", _meant(path))
        expected = details["msg"].removeprefix("Input should be ").partition(", unable")[0]
        if details["type"] in {"model_type", "model_attributes_type"}:
            expected = f"a table: [{key}]"
        choices = _CHOICE.findall(details["ctx"]["expected"]) if details["type"] == "literal_error" else []
        got = HIDDEN if path[:2] in SECRETS else repr(details["input"])
        message = f"{key}: expected {expected}, got {got if len(got) <= _SHOWN else got[: _SHOWN - 1] + '…'}"
        return _mistake(self.place(path), key, message, nearest(str(details["input"]), choices))


def _mistake(place: dict[str, Any], key: str, message: str, near: str | None = None) -> dict[str, Any]:
    """Return one mistake as `config check --json` has it. `place` has `origin`, and `file` and `line` of a file."""
    return {"file": None, "line": None, **place, "key": key or None, "message": message, "nearest": near}


def _meant(path: tuple[str, ...]) -> str | None:
    """Guess: the same name in another section, else a like one in its own, else a section."""
    section, name = (path[0], path[-1]) if len(path) > 1 else ("", path[0])
    for home, key in KEYS:
        if key == name:
            return f"{home}.{name}"
    if close := nearest(name, [key for home, key in KEYS if home == section]):
        return f"{section}.{close}"
    return None if section else nearest(name, SECTIONS)


class _SettingsReading:
    """The layers, weakest first; the mistakes; and what is odd but harmless."""

    def __init__(self, sources: Sources) -> None:
        self.layers: list[_Layer] = []
        self.problems: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        for path in sources.files():
            self._file(path)
        # Variables of an earlier program that mean settings of ours: above files, below our own names.
        values, warnings = legacy_settings(sources.environ)
        tree: dict[str, Any] = {}
        for key, (value, _) in values.items():
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = value
        self.layers.append(_Layer(tree, lambda key: {"origin": f"env {values['.'.join(key[:2])][1]}"}))
        self.warnings.extend(warnings)
        self._environment(sources.environ)
        self._flags(sources.flags)

    def _file(self, path: Path) -> None:
        def place(line: int | None) -> dict[str, Any]:
            return {"origin": str(path) if line is None else f"{path}:{line}", "file": str(path), "line": line}

        def at(key: tuple[str, ...]) -> dict[str, Any]:
            return place(document.place(key, key=True)[0])

        try:
            text = documents.decode(read_bounded(path).removeprefix(b"\xef\xbb\xbf"), str(path))
            document = documents.parse_toml(text, str(path))
        except OSError as error:
            self.problems.append(_mistake(place(None), "", f"cannot be read: {error.strerror}"))
            return
        except DocumentError as error:
            self.problems.append(_mistake(place(error.problem.line), "", f"no valid TOML: {error.problem.message}"))
            return
        for section, values in list(document.value.items()):
            for name in list(values) if isinstance(values, dict) else ():
                if words := _removed(section, name):
                    self.warnings.append(f"{at((section, name))['origin']}: {words}")
                    del values[name]
            if values == {} and section not in SECTIONS:  # [ledger]
                del document.value[section]
        self.layers.append(_Layer(document.value, at))

    def _environment(self, environ: Mapping[str, str]) -> None:
        ours: dict[str, Any] = {}
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or variable in LEGACY_NAMES:
                continue
            key = tuple(variable.removeprefix(PREFIX).lower().split(NESTING, 1))
            if variable in _VARIABLES:
                ours.setdefault(key[0], {})[key[1]] = environ[variable] or None
                continue
            near = nearest(variable, _VARIABLES)
            if len(key) < 2:
                guess = f"; did you mean {near}?" if near else ""
                self.warnings.append(f"the variable {variable} is no setting and is ignored{guess}")
            elif words := _removed(*key):
                self.warnings.append(f"env {variable}: {words}")
            else:
                dotted = ".".join(key).replace(NESTING, ".")
                self.problems.append(_mistake({"origin": f"env {variable}"}, dotted, f"unknown setting {dotted}", near))

        def place(key: tuple[str, ...]) -> dict[str, Any]:
            return {"origin": "env " + (PREFIX + NESTING.join(key[:2])).upper()}

        self.layers.append(_Layer(ours, place, is_text=True))

    def _flags(self, flags: tuple[str, ...]) -> None:
        def flag_place(key: tuple[str, ...]) -> dict[str, Any]:
            return {"origin": f"flag --set {'.'.join(key[:2])}"}

        for flag in flags:
            name, equals, text = flag.partition("=")
            section, _, key = name.partition(".")
            place = flag_place((name,))
            if not equals:
                self.problems.append(_mistake(place, name, "expected section.key=value"))
            elif words := _removed(section, key):
                self.warnings.append(f"{place['origin']}: {words}")
            elif (section, key) not in KEYS:
                near = nearest(name, [".".join(each) for each in KEYS])
                self.problems.append(_mistake(place, name, f"unknown setting {name}", near))
            elif (section, key) in SECRETS:
                message = f"{name} is a secret, which every process could read in a command line"
                near = f"{PREFIX}{name.replace('.', NESTING)}".upper()
                self.problems.append(_mistake(place, name, message, near))
            else:
                self.layers.append(_Layer({section: {key: text or None}}, flag_place, is_text=True))


# -- all together -------------------------------------------------------------------------------------------------


def read_settings(sources: Sources) -> Loaded:
    """Read and validate all sources. Raises SettingsError: with every mistake of every source."""
    stamp = sources.stamp()
    reading = _SettingsReading(sources)
    problems, trees, places, folders = reading.problems, [], {}, ()
    for layer in reading.layers:
        tree, wrong = layer.validated()
        problems += wrong
        trees.append(tree)
        for section, values in tree.items():
            places.update({(section, name): layer.place((section, name)) for name in values})
        folders += tree.get("tools", {}).get("paths", ())
    if problems:
        raise SettingsError(sorted(problems, key=_strength))
    trees.append({"tools": {"paths": folders}})  # every source adds to these
    _Merged.layers = trees
    settings = msgspec.convert(_Merged().model_dump(), Settings)
    if contradictions := list(_contradictions(settings, places)):
        raise SettingsError(contradictions)
    origins = {".".join(key): str(place["origin"]) for key, place in places.items()}
    return Loaded(settings, origins, tuple(reading.warnings), stamp)


def _strength(place: Mapping[str, Any]) -> int:
    if place["origin"] == "default":
        return -1
    return 0 if place.get("file") else 1 if place["origin"].startswith("env ") else 2


def _contradictions(settings: Settings, places: Mapping[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what is wrong only in combination, or beyond types and bounds."""
    default = {"origin": "default"}

    def blame(section: str, name: str, message: str) -> dict[str, Any]:
        return _mistake(places.get((section, name), default), f"{section}.{name}", f"{section}.{name} {message}")

    for section, low, high in _ORDERED:
        least, most = value_of(settings, section, low), value_of(settings, section, high)
        factor = 2 if section == "logs" else 1  # two segments are the least that can be rotated
        if least * factor <= most or (most == 0 and high == "hard_memory_mb"):
            continue
        of_low, of_high = (places.get((section, name), default) for name in (low, high))
        times = "twice " if factor == 2 else ""
        # The one that somebody wrote is blamed, the one that was written last.
        if _strength(of_low) > _strength(of_high):
            yield blame(section, low, f"must {times}be within {section}.{high} ({most:.15g}, {of_high['origin']})")
        else:
            other = f"{section}.{low} ({least:.15g}, {of_low['origin']})"
            yield blame(section, high, f"must not be below {times}{other}")
    if settings.api.listen is not None:
        try:
            parse_listen(settings.api.listen)
        except ValueError as error:
            yield blame("api", "listen", str(error))
    kernels, pipes = settings.kernels, settings.pipes
    if kernels.backend == "gateway-external" and not kernels.gateway_url:
        yield blame("kernels", "backend", "is gateway-external, but kernels.gateway_url says no address")
    if kernels.gateway_url and not kernels.gateway_url.lower().startswith(("http://", "https://")):
        yield blame("kernels", "gateway_url", "must begin with http:// or https://")
    if pipes.timezone is not None:
        try:
            ZoneInfo(pipes.timezone)
        except (ValueError, OSError, LookupError):
            near = nearest(pipes.timezone, available_timezones())
            hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
            yield blame("pipes", "timezone", f"has {pipes.timezone!r}: there is no such time zone; {hint}")
    for pattern in pipes.redact:
        try:
            re.compile(pattern.encode())
        except (re.error, UnicodeEncodeError) as error:
            yield blame("pipes", "redact", f"has {pattern!r}, which is no regular expression: {error}")


def main(argv: list[str]) -> int:
    """Read the settings as `pxd` with these flags does, and leave them in a folder; print what is wrong with them."""
    folder, flags = Path(argv[0]), parse_flags("pxd-settings", argv[1:])[0]
    try:
        keep_valid(folder, read_settings(flags.sources(flags.paths())))
    except SettingsError as error:
        sys.stdout.write(json.dumps(error.extra["problems"][:MOST_PROBLEMS]))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
