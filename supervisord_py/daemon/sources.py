"""Reads the sources of settings, each into one layer, and lays them over each other.

A layer is a tree `{section: {key: value}}` with the origin of each key in it; later layers win, key by key. A source
that cannot be read or parsed becomes a problem, never a half-read layer.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from supervisord_py.daemon.removed_settings import removed_words
from supervisord_py.daemon.schema import KEYS, SECRETS, typed
from supervisord_py.errors import EXIT_BAD_SETTINGS, ConfigError
from supervisord_py.kernels.exposure import LEGACY_NAMES, legacy_settings
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

Key = tuple[str, ...]
Tree = dict[str, Any]

ADDITIVE = frozenset({("tools", "paths")})
"""Lists that every source adds to instead of replacing what the sources below said."""


class OriginKind(Enum):
    """The sorts of places a setting may come from, weakest first."""

    DEFAULT = auto()
    FILE = auto()
    ENVIRONMENT = auto()
    FLAG = auto()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stands: a file (and line), a variable, a flag, or nowhere (the default)."""

    kind: OriginKind = OriginKind.DEFAULT
    where: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.DEFAULT:
                return "default"
            case OriginKind.FILE:
                return self.where if self.line is None else f"{self.where}:{self.line}"
            case OriginKind.ENVIRONMENT:
                return f"env {self.where}"
            case OriginKind.FLAG:
                return f"flag {self.where}"


@dataclass(frozen=True, slots=True)
class Layer:
    """One source: what it says, and where each key of it stands; `whole` is the source itself."""

    whole: Origin
    tree: Tree
    origins: Mapping[Key, Origin] = field(default_factory=dict)

    def origin(self, key: Key) -> Origin:
        """Return where `key`, or else the nearest thing around it, stands."""
        for length in range(len(key), 0, -1):
            if (found := self.origins.get(key[:length])) is not None:
                return found
        return self.whole


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome: one tree, and the origin of every key that any layer set."""

    tree: Tree
    origins: dict[Key, Origin]


def merge(layers: Sequence[Layer]) -> Merged:
    """Lay `layers` over each other, weakest first. Sections are tables here: layers were validated before."""
    tree: Tree = {}
    origins: dict[Key, Origin] = {}
    for layer in layers:
        for section, values in layer.tree.items():
            into = tree.setdefault(section, {})
            for name, value in values.items():
                key = (section, name)
                into[name] = (*into.get(name, ()), *value) if key in ADDITIVE else value
                origins[key] = layer.origin(key)
    return Merged(tree, origins)


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return what was probably meant by `word`, or None when nothing is close."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `key` is dotted, or empty where no key can be named; `nearest` is what was probably meant."""

    origin: Origin
    key: str
    message: str
    nearest: str | None = None

    def __str__(self) -> str:
        meant = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{self.origin}: {self.message}{meant}"

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "origin": str(self.origin),
            "file": self.origin.where if self.origin.kind is OriginKind.FILE else None,
            "line": self.origin.line,
            "key": self.key or None,
            "message": self.message,
            "nearest": self.nearest,
        }


class SettingsError(ConfigError):
    """Settings are wrong. `problems` has every mistake of every source.

    `exit_code` is the word of `pxd` to whoever started it; the problem document speaks to the client, whose codes end
    at 9 (CONTRACT §3), and names the client's next step.
    """

    exit_code = EXIT_BAD_SETTINGS

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(
            "\n".join(str(problem) for problem in problems),
            hint="`pxd --check-config` checks again; `pxd --show-config` shows every key with its value and origin",
            problems=[problem.document() for problem in problems],
        )
        self.problems = tuple(problems)

    def problem(self) -> dict[str, Any]:
        """Return the problem document: to a client it is a broken file like every other."""
        return {**super().problem(), "hint": "pxctl config check", "exit_code": ConfigError.exit_code}


PREFIX = "PX_"
NESTING = "__"

NOT_SETTINGS = frozenset({"PX_HOME", "PX_SOCKET", "PX_AUTOSTART", "PX_INSTANCE", "PX_UNIT", "PX_CONTROL"})
"""Variables that other parts read: places (CONTRACT §1), the client's switch, the marks of DESIGN D11."""

_HEADER = re.compile(r"\s*\[\[?([^\[\]#]+)\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")

_VARIABLES = {f"{PREFIX}{section}{NESTING}{name}".upper(): (section, name) for section, name in KEYS}
_DOTTED = {f"{section}.{name}": (section, name) for section, name in KEYS}


@dataclass(frozen=True, slots=True)
class Sources:
    """Whence settings are read.

    Attributes:
        config_file: `pxd.toml`.
        conf_dir: Folder of drop-ins.
        named: True when the user named the file (`--config`): then it must exist.
        environ: The environment.
        flags: Texts `section.key=value` of `--set`, in their order.
    """

    config_file: Path
    conf_dir: Path
    named: bool
    environ: Mapping[str, str]
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Reading:
    """What came out: layers, weakest first; mistakes; and what is odd but harmless."""

    layers: list[Layer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_sources(sources: Sources) -> Reading:
    """Read everything; never raises for what a user wrote."""
    reading = Reading()
    if sources.named or os.path.lexists(sources.config_file):
        _read_file(sources.config_file, reading)
    for path in _dropins(sources.conf_dir):
        _read_file(path, reading)
    _read_legacy(sources.environ, reading)
    _read_environment(sources.environ, reading)
    for flag in sources.flags:
        _read_flag(flag, reading)
    return reading


def key_lines(text: str) -> dict[Key, int]:
    """Return the line (from 1) on which each table and each key of a document begins, as far as lines tell.

    tomllib keeps no positions. A line within a long text may look like a key; it then names one that is nowhere.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = _dotted(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table + _dotted(key[1])
            for length in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:length], number)
    return lines


def _dotted(text: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _error_line(error: tomllib.TOMLDecodeError, text: str) -> int:
    """Return the line that a syntax error is about; the last one when the document ends too early."""
    found = _SYNTAX_LINE.search(str(error))
    return int(found[1]) if found else text.rstrip("\n").count("\n") + 1


def parse_toml(where: str, text: str) -> Layer | Problem:
    """Turn the text of one file into a layer, or into the problem that it has. Pure."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        return Problem(Origin(OriginKind.FILE, where), "", "no valid TOML: nested too deeply")
    except tomllib.TOMLDecodeError as error:
        reason = str(error).split(" (at ", 1)[0]
        origin = Origin(OriginKind.FILE, where, _error_line(error, text))
        return Problem(origin, "", f"no valid TOML: {reason[:1].lower()}{reason[1:]}")
    origins: dict[Key, Origin] = {path: Origin(OriginKind.FILE, where, line) for path, line in key_lines(text).items()}
    return Layer(Origin(OriginKind.FILE, where), _tuples(tree), origins)


def _tuples(tree: Tree) -> Tree:
    """Make lists tuples, as the frozen models have them."""

    def frozen(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return {
        section: {name: frozen(value) for name, value in values.items()} if isinstance(values, dict) else values
        for section, values in tree.items()
    }


def _dropins(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.glob("*.toml") if not path.name.startswith("."))


def _read_file(path: Path, reading: Reading) -> None:
    whole = Origin(OriginKind.FILE, str(path))
    try:
        content = read_bounded(path)
    except OSError as error:
        reading.problems.append(Problem(whole, "", f"cannot be read: {error.strerror}"))
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        reading.problems.append(
            Problem(Origin(OriginKind.FILE, str(path), line), "", f"byte 0x{content[error.start]:02x} is not UTF-8")
        )
        return
    match parse_toml(str(path), text):
        case Problem() as problem:
            reading.problems.append(problem)
        case Layer() as layer:
            _drop_removed(layer, reading)
            reading.layers.append(layer)


def _drop_removed(layer: Layer, reading: Reading) -> None:
    """Take settings that are gone out of what a file says, each with a warning: an old file is still a good one."""
    for section, values in layer.tree.items():
        for name in list(values) if isinstance(values, dict) else ():
            if words := removed_words(section, name):
                del values[name]
                reading.warnings.append(f"{layer.origin((section, name))}: {words}")


def _read_legacy(environ: Mapping[str, str], reading: Reading) -> None:
    """Read the variables of an earlier program that mean settings of ours: above files, below our own names."""
    values, warnings = legacy_settings(environ)
    tree: Tree = {}
    origins: dict[Key, Origin] = {}
    for each in values:
        section, name = _DOTTED[each.key]
        tree.setdefault(section, {})[name] = each.value
        origins[section, name] = Origin(OriginKind.ENVIRONMENT, each.variable)
    if tree:
        reading.layers.append(Layer(Origin(OriginKind.ENVIRONMENT), tree, origins))
    reading.warnings.extend(warnings)


def _read_environment(environ: Mapping[str, str], reading: Reading) -> None:
    tree: Tree = {}
    origins: dict[Key, Origin] = {}
    for variable in sorted(environ):
        key = _VARIABLES.get(variable)
        if key is not None:
            origins[key] = Origin(OriginKind.ENVIRONMENT, variable)
            tree.setdefault(key[0], {})[key[1]] = typed(*key, environ[variable])
        elif variable.startswith(PREFIX) and variable not in NOT_SETTINGS and variable not in LEGACY_NAMES:
            _stray(variable, reading)
    if tree:
        reading.layers.append(Layer(Origin(OriginKind.ENVIRONMENT), tree, origins))


def _stray(variable: str, reading: Reading) -> None:
    """Judge a variable of ours by its looks: two underscores mean a setting; anything else may be somebody else's."""
    meant = nearest(variable, _VARIABLES)
    if NESTING in variable:
        origin = Origin(OriginKind.ENVIRONMENT, variable)
        key = variable.removeprefix(PREFIX).lower().replace(NESTING, ".")
        if words := removed_words(*key.split(".", 1)):
            reading.warnings.append(f"{origin}: {words}")
            return
        reading.problems.append(Problem(origin, key, f"unknown setting {key}", meant))
        return
    guess = f"; did you mean {meant}?" if meant else ""
    reading.warnings.append(f"the variable {variable} is no setting and is ignored{guess}")


def _read_flag(flag: str, reading: Reading) -> None:
    name, equals, text = flag.partition("=")
    origin = Origin(OriginKind.FLAG, f"--set {name}")
    key = _DOTTED.get(name)
    if not equals:
        reading.problems.append(Problem(origin, name, "expected section.key=value"))
    elif key is None and "." in name and (words := removed_words(*name.split(".", 1))):
        reading.warnings.append(f"{origin}: {words}")
    elif key is None:
        reading.problems.append(Problem(origin, name, f"unknown setting {name}", nearest(name, _DOTTED)))
    elif key in SECRETS:
        message = f"{name} is a secret, which every process could read in a command line"
        reading.problems.append(Problem(origin, name, message, f"{PREFIX}{NESTING.join(key)}".upper()))
    else:
        reading.layers.append(Layer(origin, {key[0]: {key[1]: typed(*key, text)}}, {key: origin}))
