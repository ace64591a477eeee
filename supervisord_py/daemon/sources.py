"""Reads the sources of settings, each into one layer: files, environment, flags. Judges only what has no place at all.

A source that cannot be read or parsed becomes a problem, never a half-read layer.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.daemon.merge import Key, Layer, Origin, OriginKind, Tree, nearest
from supervisord_py.daemon.problems import Problem
from supervisord_py.daemon.removed_settings import removed_words
from supervisord_py.daemon.schema import KEYS, SECRETS, typed
from supervisord_py.daemon.toml_lines import error_line, key_lines
from supervisord_py.kernels.choosing.legacy_environment import LEGACY_NAMES, legacy_settings
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PREFIX = "PX_"
NESTING = "__"

NOT_SETTINGS = frozenset({"PX_HOME", "PX_SOCKET", "PX_AUTOSTART", "PX_INSTANCE", "PX_UNIT", "PX_CONTROL"})
"""Variables that other parts read: places (CONTRACT §1), the client's switch, the marks of DESIGN D11."""

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


def parse_toml(where: str, text: str) -> Layer | Problem:
    """Turn the text of one file into a layer, or into the problem that it has. Pure."""
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        return Problem(Origin(OriginKind.FILE, where), "", "no valid TOML: nested too deeply")
    except tomllib.TOMLDecodeError as error:
        reason = str(error).split(" (at ", 1)[0]
        origin = Origin(OriginKind.FILE, where, error_line(error, text))
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
    legacy = legacy_settings(environ)
    tree: Tree = {}
    origins: dict[Key, Origin] = {}
    for each in legacy.values:
        section, name = _DOTTED[each.key]
        tree.setdefault(section, {})[name] = each.value
        origins[section, name] = Origin(OriginKind.ENVIRONMENT, each.variable)
    if tree:
        reading.layers.append(Layer(Origin(OriginKind.ENVIRONMENT), tree, origins))
    reading.warnings.extend(legacy.warnings)


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
