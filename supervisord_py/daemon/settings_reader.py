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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, SettingsConfigDict

from supervisord_py.config import documents
from supervisord_py.config.documents import Document, DocumentError, nearest, read_bounded
from supervisord_py.config.settings import DEFAULTS, HIDDEN, KEYS, SECRETS, SECTIONS, Settings, value_of
from supervisord_py.daemon.boot import flag_parser, flags_of
from supervisord_py.daemon.removed_settings import removed_words
from supervisord_py.daemon.settings import (
    NOT_SETTINGS,
    PREFIX,
    Loaded,
    SettingsError,
    Sources,
    keep_valid,
    parse_listen,
)
from supervisord_py.kernels.exposure import LEGACY_NAMES, legacy_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_core import ErrorDetails

NESTING = "__"
_VARIABLES = [f"{PREFIX}{section}{NESTING}{name}".upper() for section, name in KEYS]
_DOTTED = [f"{section}.{name}" for section, name in KEYS]
_CHOICE = re.compile(r"'([^']*)'")
MOST_PROBLEMS = 500
"""So many are printed for whoever asked."""
_SHOWN = 60
"""Characters of a wrong value that an error quotes."""

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


def _section(kind: type[msgspec.Struct]) -> Any:
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    members: dict[str, Any] = {
        each.name: (_annotation(each.type), each.default) for each in msgspec.structs.fields(kind)
    }
    return create_model(kind.__name__, __config__=config, **members)


def _sections() -> dict[str, Any]:
    kinds = {name: _section(type(getattr(DEFAULTS, name))) for name in SECTIONS}
    return {name: (kind, kind()) for name, kind in kinds.items()}


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


class _Layer:
    """One source: what it says, and where each key of it stands.

    Args:
        tree: Sections and keys, as they were written.
        place: Returns `origin`, and `file` and `line` of a file, of a path of keys.
        is_text: Values are texts that become the type of their setting.
    """

    def __init__(
        self, tree: dict[str, Any], place: Callable[[tuple[str, ...]], dict[str, Any]], *, is_text: bool = False
    ) -> None:
        self.tree = tree
        self.place = place
        self.is_text = is_text

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
            return problem(self.place(path), key, f"unknown {noun} {key}", _meant(path))
        expected = details["msg"].removeprefix("Input should be ").partition(", unable")[0]
        if details["type"] in {"model_type", "model_attributes_type"}:
            expected = f"a table: [{key}]"
        choices = _CHOICE.findall(details["ctx"]["expected"]) if details["type"] == "literal_error" else []
        near = nearest(str(details["input"]), choices)
        message = f"{key}: expected {expected}, got {_quoted(path, details['input'])}"
        return problem(self.place(path), key, message, near)


def _fixed(place: dict[str, Any], _path: tuple[str, ...]) -> dict[str, Any]:
    return place


_NAMES = {name for _, name in KEYS}


def problem(place: dict[str, Any], key: str, message: str, near: str | None = None) -> dict[str, Any]:
    """Return one mistake as `config check --json` has it. `place` has `origin`, and `file` and `line` of a file."""
    return {"file": None, "line": None, **place, "key": key or None, "message": message, "nearest": near}


def _quoted(path: tuple[str, ...], value: Any) -> str:
    """Return a wrong value as an error may show it: cut, and not at all where a secret was meant."""
    if path[:2] in SECRETS:
        return HIDDEN
    quoted = repr(value)
    return quoted if len(quoted) <= _SHOWN else quoted[: _SHOWN - 1] + "…"


def _meant(path: tuple[str, ...]) -> str | None:
    """Guess: the same name in another section, else a like one in its own, else a section."""
    section, name = (path[0], path[-1]) if len(path) > 1 else ("", path[0])
    for home, key in KEYS:
        if key == name:
            return f"{home}.{name}"
    if close := nearest(name, [key for home, key in KEYS if home == section]):
        return f"{section}.{close}"
    return None if section else nearest(name, SECTIONS)


class _Reading:
    """The layers, weakest first; the mistakes; and what is odd but harmless."""

    def __init__(self, sources: Sources) -> None:
        self.layers: list[_Layer] = []
        self.problems: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        for path in sources.files():
            self._file(path)
        self._legacy(sources.environ)
        self._environment(sources.environ)
        self._flags(sources.flags)

    def _file(self, path: Path) -> None:
        def place(line: int | None) -> dict[str, Any]:
            return {"origin": str(path) if line is None else f"{path}:{line}", "file": str(path), "line": line}

        try:
            text = documents.decode(read_bounded(path).removeprefix(b"\xef\xbb\xbf"), str(path))
            document = documents.parse_toml(text, str(path))
        except OSError as error:
            self.problems.append(problem(place(None), "", f"cannot be read: {error.strerror}"))
        except DocumentError as error:
            self.problems.append(problem(place(error.problem.line), "", f"no valid TOML: {error.problem.message}"))
        else:

            def at(key: tuple[str, ...]) -> dict[str, Any]:
                return place(document.place(key, key=True)[0])

            self._drop_removed(document, lambda key: str(at(key)["origin"]))
            self.layers.append(_Layer(document.value, at))

    def _drop_removed(self, document: Document, origin: Callable[[tuple[str, ...]], str]) -> None:
        """Take settings that are gone out of what a file says: an old file is still a good one."""
        for section, values in list(document.value.items()):
            for name in list(values) if isinstance(values, dict) else ():
                if words := removed_words(section, name):
                    self.warnings.append(f"{origin((section, name))}: {words}")
                    del values[name]
            if values == {} and section not in SECTIONS:  # [ledger]
                del document.value[section]

    def _legacy(self, environ: Mapping[str, str]) -> None:
        """Read the variables of an earlier program that mean settings of ours: above files, below our own names."""
        values, warnings = legacy_settings(environ)
        tree: dict[str, Any] = {}
        places = {}
        for key, (value, variable) in values.items():
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = value
            places[section, name] = {"origin": f"env {variable}"}
        self.layers.append(_Layer(tree, lambda key: places[key[0], key[1]]))
        self.warnings.extend(warnings)

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
            elif words := removed_words(*key):
                self.warnings.append(f"env {variable}: {words}")
            else:
                dotted = ".".join(key).replace(NESTING, ".")
                self.problems.append(problem({"origin": f"env {variable}"}, dotted, f"unknown setting {dotted}", near))

        def place(key: tuple[str, ...]) -> dict[str, Any]:
            return {"origin": "env " + (PREFIX + NESTING.join(key[:2])).upper()}

        self.layers.append(_Layer(ours, place, is_text=True))

    def _flags(self, flags: tuple[str, ...]) -> None:
        for flag in flags:
            name, equals, text = flag.partition("=")
            place = {"origin": f"flag --set {name}"}
            if not equals:
                self.problems.append(problem(place, name, "expected section.key=value"))
            elif "." in name and (words := removed_words(*name.split(".", 1))):
                self.warnings.append(f"{place['origin']}: {words}")
            elif name not in _DOTTED:
                self.problems.append(problem(place, name, f"unknown setting {name}", nearest(name, _DOTTED)))
            elif tuple(name.split(".")) in SECRETS:
                message = f"{name} is a secret, which every process could read in a command line"
                near = f"{PREFIX}{name.replace('.', NESTING)}".upper()
                self.problems.append(problem(place, name, message, near))
            else:
                section, key = name.split(".")
                tree = {section: {key: text or None}}
                self.layers.append(_Layer(tree, partial(_fixed, place), is_text=True))


# -- all together -------------------------------------------------------------------------------------------------


def read_settings(sources: Sources) -> Loaded:
    """Read and validate all sources.

    Raises:
        SettingsError: With every mistake of every source.
    """
    stamp = sources.stamp()
    reading = _Reading(sources)
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


def _strength(each: dict[str, Any]) -> int:
    return 0 if each["file"] else 1 if each["origin"].startswith("env ") else 2


def _contradictions(settings: Settings, places: Mapping[tuple[str, str], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what is wrong only in combination, or beyond types and bounds."""
    default = {"origin": "default"}

    def blame(section: str, name: str, message: str) -> dict[str, Any]:
        return problem(places.get((section, name), default), f"{section}.{name}", f"{section}.{name} {message}")

    for section, low, high in _ORDERED:
        least, most = value_of(settings, section, low), value_of(settings, section, high)
        factor = 2 if section == "logs" else 1  # two segments are the least that can be rotated
        if least * factor <= most or (most == 0 and high == "hard_memory_mb"):
            continue
        of_low, of_high = (places.get((section, name), default) for name in (low, high))
        times = "twice " if factor == 2 else ""
        # The one that somebody wrote is blamed, the one that was written last.
        if _written(of_low) > _written(of_high):
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
    if pipes.timezone is not None and (fault := _zone_fault(pipes.timezone)):
        yield blame("pipes", "timezone", fault)
    for pattern in pipes.redact:
        try:
            re.compile(pattern.encode())
        except (re.error, UnicodeEncodeError) as error:
            yield blame("pipes", "redact", f"has {pattern!r}, which is no regular expression: {error}")


def _written(place: Mapping[str, Any]) -> int:
    return -1 if place["origin"] == "default" else _strength({"file": None, **place})


def _zone_fault(name: str) -> str | None:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        near = nearest(name, available_timezones())
        hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
        return f"has {name!r}: there is no such time zone; {hint}"
    return None


def main(argv: list[str]) -> int:
    """Read the settings as `pxd` with these flags does, and leave them in a folder; print what is wrong with them."""
    folder, flags = Path(argv[0]), flags_of(flag_parser("pxd-settings").parse_args(argv[1:]))
    try:
        keep_valid(folder, read_settings(flags.sources(flags.paths())))
    except SettingsError as error:
        sys.stdout.write(json.dumps(error.extra["problems"][:MOST_PROBLEMS]))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
