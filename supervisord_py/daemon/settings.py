"""Settings in force: defaults < pxd.toml < conf.d/*.toml < environment < flags, read and validated; kept for later.

Each source is checked by itself, so that a mistake is told where it stands, also when a stronger source hides it, and
all mistakes at once. What was valid last lies in the runtime directory: a control plane that finds pxd.toml broken
starts with that, so that a mistake in a file ends no children.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.config import documents
from supervisord_py.config.documents import Document, DocumentError, nearest, read_bounded
from supervisord_py.config.settings import DEFAULTS, KEYS, SECRETS, SECTIONS, Settings, shown_value, value_of
from supervisord_py.daemon.sockets import parse_listen
from supervisord_py.errors import EXIT_BAD_SETTINGS, ConfigError
from supervisord_py.kernels.exposure import LEGACY_NAMES, legacy_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PREFIX = "PX_"
NESTING = "__"
NOT_SETTINGS = frozenset({"PX_HOME", "PX_SOCKET", "PX_AUTOSTART", "PX_INSTANCE", "PX_UNIT", "PX_CONTROL"})
"""Variables that other parts read: places (CONTRACT §1), the client's switch, the marks of children."""
VALID_NAME = "settings.valid.json"
_SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
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


class SettingsError(ConfigError):
    """Settings are wrong: `problems` has every mistake of every source, as JSON objects.

    `exit_code` is the word of `pxd` to whoever started it; the problem document speaks to the client, whose codes end
    at 9 (CONTRACT §3), and names the client's next step.
    """

    exit_code = EXIT_BAD_SETTINGS

    def __init__(self, problems: Sequence[dict[str, Any]]) -> None:
        def sentence(problem: dict[str, Any]) -> str:
            meant = f"; did you mean {problem['nearest']}?" if problem["nearest"] else ""
            return f"{problem['origin']}: {problem['message']}{meant}"

        super().__init__(
            "\n".join(map(sentence, problems)),
            hint="`pxd --check-config` checks again; `pxd --show-config` shows every key with its value and origin",
            problems=list(problems),
        )

    def problem(self) -> dict[str, Any]:
        """Return the problem document: to a client it is a broken file like every other."""
        return {**super().problem(), "hint": "pxctl config check", "exit_code": ConfigError.exit_code}


class Sources(msgspec.Struct, frozen=True):
    """Whence settings are read."""

    config_file: Path
    conf_dir: Path
    named: bool  # the user named the file (`--config`): then it must exist
    environ: Mapping[str, str]
    flags: tuple[str, ...] = ()  # `section.key=value` of `--set`, in their order

    def files(self) -> list[Path]:
        """Return the files to read, weakest first."""
        dropins = sorted(path for path in self.conf_dir.glob("*.toml") if not path.name.startswith("."))
        first = self.named or os.path.lexists(self.config_file)
        return [self.config_file, *dropins] if first else dropins


class Loaded(msgspec.Struct, frozen=True):
    """Valid settings, where each key that somebody set stands, and what is odd but harmless."""

    settings: Settings = DEFAULTS
    origins: dict[str, str] = {}
    warnings: tuple[str, ...] = ()

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (dotted key, value as it may be shown, origin) of every setting."""
        for section, name in KEYS:
            value = shown_value(section, name, value_of(self.settings, section, name))
            yield f"{section}.{name}", value, self.origin(f"{section}.{name}")

    def origin(self, key: str) -> str:
        """Say where a key was set."""
        return self.origins.get(key, "default")


def read_settings(sources: Sources) -> Loaded:
    """Read and validate all sources. Raises SettingsError: with every mistake of every source."""
    reading = _Reading()
    for path in sources.files():
        reading.read_file(path)
    # Variables of an earlier program that mean settings of ours: above files, below our own names.
    values, warnings = legacy_settings(sources.environ)
    reading.warnings += warnings
    legacy = {tuple(key.split(".")): value for key, (value, _) in values.items()}
    reading.take(legacy, lambda key: {"origin": f"env {values['.'.join(key)][1]}"})
    reading.read_environment(sources.environ)
    reading.read_flags(sources.flags)
    if reading.problems:
        raise SettingsError(reading.problems)
    settings = msgspec.convert(reading.values, Settings)
    if contradictions := list(_contradictions(settings, reading.places)):
        raise SettingsError(contradictions)
    origins = {".".join(key): str(place["origin"]) for key, place in reading.places.items()}
    return Loaded(settings, origins, tuple(reading.warnings))


class _Reading:
    """What the sources read so far say, weakest first, and what is wrong with them or odd."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.places: dict[tuple[str, ...], dict[str, Any]] = {}  # `origin`, and `file` and `line` of a file
        self.problems: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def take(
        self,
        said: Mapping[tuple[str, ...], Any],
        place: Callable[[tuple[str, ...]], dict[str, Any]],
        *,
        strict: bool = True,
    ) -> None:
        """Take what one source says of known settings; not `strict`: as texts."""
        for section in dict.fromkeys(key[0] for key in said):
            values = {key[1]: value for key, value in said.items() if key[0] == section}
            kind = type(getattr(DEFAULTS, section))
            read, problems = documents.convert(Document(values, "", "", "toml"), kind, strict=strict)
            for problem in problems:
                name = problem.pointer.split("/")[1]
                message, _, near = problem.message.partition("; did you mean ")
                key = f"{section}.{name}"
                place_of = place((section, name))
                self.problems.append(_mistake(place_of, key, f"{key} {message}", near.strip("'?") or None))
            for name in values if read is not None else ():
                self.places[section, name] = place((section, name))
                kept = self.values.setdefault(section, {})
                # Every source adds to the folders of tools; of all else the strongest counts.
                before = kept.get(name, ()) if (section, name) == ("tools", "paths") else ()
                kept[name] = (*before, *getattr(read, name)) if before else getattr(read, name)

    def read_file(self, path: Path) -> None:
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
        said: dict[tuple[str, ...], Any] = {}
        first = len(self.problems)
        for section, values in document.value.items():
            for name in values if isinstance(values, dict) else ():
                key = (section, name)
                if words := _removed(section, name):
                    self.warnings.append(f"{at(key)['origin']}: {words}")
                elif key in KEYS:
                    said[key] = values[name]
                elif section in SECTIONS:
                    dotted = ".".join(key)
                    self.problems.append(_mistake(at(key), dotted, f"unknown setting {dotted}", _meant(key)))
            if section in SECTIONS and not isinstance(values, dict):
                self.problems.append(_mistake(at((section,)), section, f"{section} must be a table: [{section}]"))
            elif section not in {*SECTIONS, *_REMOVED}:
                noun = "setting" if any(name == section for _, name in KEYS) else "section"
                self.problems.append(_mistake(at((section,)), section, f"unknown {noun} {section}", _meant((section,))))
        self.take(said, at)
        self.problems[first:] = sorted(self.problems[first:], key=lambda each: each["line"] or 0)

    def read_environment(self, environ: Mapping[str, str]) -> None:
        said: dict[tuple[str, ...], Any] = {}
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or variable in LEGACY_NAMES:
                continue
            key = tuple(variable.removeprefix(PREFIX).lower().split(NESTING, 1))
            if key in KEYS:
                said[key] = _meaning(key, environ[variable])
                continue
            near = nearest(variable, map(_variable, KEYS))
            if len(key) < 2:
                guess = f"; did you mean {near}?" if near else ""
                self.warnings.append(f"the variable {variable} is no setting and is ignored{guess}")
            elif words := _removed(*key):
                self.warnings.append(f"env {variable}: {words}")
            else:
                dotted = ".".join(key).replace(NESTING, ".")
                self.problems.append(_mistake({"origin": f"env {variable}"}, dotted, f"unknown setting {dotted}", near))
        self.take(said, lambda key: {"origin": f"env {_variable(key)}"}, strict=False)

    def read_flags(self, flags: tuple[str, ...]) -> None:
        for flag in flags:
            name, equals, text = flag.partition("=")
            section, _, key = name.partition(".")
            place = _flag_place((name,))
            if not equals:
                self.problems.append(_mistake(place, name, "expected section.key=value"))
            elif words := _removed(section, key):
                self.warnings.append(f"{place['origin']}: {words}")
            elif (section, key) not in KEYS:
                near = nearest(name, [".".join(each) for each in KEYS])
                self.problems.append(_mistake(place, name, f"unknown setting {name}", near))
            elif (section, key) in SECRETS:
                message = f"{name} is a secret, which every process could read in a command line"
                self.problems.append(_mistake(place, name, message, _variable((section, key))))
            else:
                self.take({(section, key): _meaning((section, key), text)}, _flag_place, strict=False)


def _flag_place(key: tuple[str, ...]) -> dict[str, Any]:
    return {"origin": f"flag --set {'.'.join(key)}"}


def _variable(key: tuple[str, ...]) -> str:
    return f"{PREFIX}{NESTING.join(key)}".upper()


def _meaning(key: tuple[str, ...], text: str) -> Any:
    """Return what a text means for a setting: its type decides. An empty one is nothing.

    Lists are JSON (`["a", "b"]`), or their items joined by commas, folders as in PATH.
    """
    default = value_of(DEFAULTS, *key)
    if isinstance(default, bool):
        return _SWITCH.get(text.lower(), text)
    if not isinstance(default, tuple) or not text:
        return text or None
    if not text.startswith("["):
        separator = os.pathsep if key == ("tools", "paths") else ","
        return tuple(item.strip() for item in text.split(separator) if item.strip())
    try:
        return json.loads(text)
    except ValueError:
        return text


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


def _removed(section: str, name: str) -> str | None:
    if name not in _REMOVED.get(section, "").split():
        return None
    instead = "a constant, or a key of the unit's own file, took its place; see CHANGELOG"
    instead = "daemon.zygotes took its place" if name == "spares" else instead
    return f"the setting {section}.{name} no longer exists and is ignored: {instead}"


def _contradictions(settings: Settings, places: Mapping[tuple[str, ...], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what is wrong only in combination, or beyond types and bounds."""
    default = {"origin": "default"}

    def blame(section: str, name: str, message: str) -> dict[str, Any]:
        return _mistake(places.get((section, name), default), f"{section}.{name}", f"{section}.{name} {message}")

    for section, name in KEYS:
        if isinstance(value := value_of(settings, section, name), float) and not math.isfinite(value):
            yield blame(section, name, "must be a finite number")
    for section, low, high in _ORDERED:
        least, most = value_of(settings, section, low), value_of(settings, section, high)
        factor = 2 if section == "logs" else 1  # two segments are the least that can be rotated
        if least * factor <= most or (most == 0 and high == "hard_memory_mb"):
            continue
        times = "twice " if factor == 2 else ""
        if (section, high) in places or (section, low) not in places:
            other = f"{section}.{low} ({least:.15g}, {places.get((section, low), default)['origin']})"
            yield blame(section, high, f"must not be below {times}{other}")
        else:
            yield blame(section, low, f"must {times}be within {section}.{high} ({most:.15g}, default)")
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
        from zoneinfo import ZoneInfo, available_timezones

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


def keep_valid(folder: Path, loaded: Loaded) -> None:
    """Leave settings for the control planes to come. Secrets are among them: the file is ours alone."""
    fresh = folder / f"{VALID_NAME}.{os.getpid()}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(loaded))
        fresh.replace(folder / VALID_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def recall_valid(folder: Path) -> Loaded | None:
    """Return what `keep_valid` left, or None when there is nothing that this version understands."""
    try:
        return msgspec.json.decode((folder / VALID_NAME).read_bytes(), type=Loaded)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """Return the keys whose values differ."""
    return tuple(".".join(key) for key in KEYS if value_of(old, *key) != value_of(new, *key))


def restart_needed(key: str) -> str | None:
    """Return the command that puts a changed setting in force, or None when a reload does."""
    section = key.split(".", 1)[0]
    if key == "daemon.log_level" or (section in {"tools", "kernels", "pipes"} and key != "tools.max_body_bytes"):
        return None
    # The keeper was told at its birth.
    return "pxctl daemon restart --all" if section in {"daemon", "logs"} else "pxctl daemon restart"
