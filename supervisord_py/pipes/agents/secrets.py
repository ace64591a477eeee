"""Keys by reference: `$ENV`, `file:PATH`, `cmd:ARGV`. A key itself is in no repr, no log, no argv and no message.

A file must be its owner's alone (0600 or stricter). A command is split as a shell splits words, and run without one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import stat
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, PxError
from supervisord_py.pipes.agents.programs import Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.agents.programs import Answer, Ask

CMD_SECONDS = 30.0
"""A password store may ask its owner first."""
MAX_KEY_BYTES = 64 * 1024
_ENV = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class Secret:
    """A key. Only `reveal` shows it."""

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the key, for the environment of the child that needs it."""
        return self._value

    def __str__(self) -> str:
        return "[hidden]"


class KeySource(Enum):
    """Where a key is."""

    VARIABLE = auto()
    FILE = auto()
    COMMAND = auto()


@dataclass(frozen=True, slots=True)
class KeyReference:
    """Where a key is. `words`: the variable, the path, or the command's words."""

    source: KeySource
    words: tuple[str, ...]


def parse_reference(text: str) -> KeyReference:
    """Read a reference. The text is never quoted in a message: it may be a key.

    Raises:
        ConfigError: It is none.
    """
    variable = _ENV.fullmatch(text)
    if variable is not None:
        return KeyReference(KeySource.VARIABLE, (variable[1] or variable[2],))
    if text.startswith("file:") and text[5:].strip():
        return KeyReference(KeySource.FILE, (text[5:].strip(),))
    if text.startswith("cmd:"):
        try:
            words = tuple(shlex.split(text[4:]))
        except ValueError as error:
            raise ConfigError(f"the command of an api_key cannot be split: {error}", hint=_HINT) from error
        if words:
            return KeyReference(KeySource.COMMAND, words)
    raise ConfigError("an api_key is no reference to a key", hint=_HINT)


_HINT = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'


async def resolve_key(
    reference: str, environ: Mapping[str, str], *, cwd: Path, ask: Ask, seconds: float = CMD_SECONDS
) -> Secret:
    """Return the key that a reference leads to.

    Args:
        reference: As it stands in presets.toml.
        environ: Where `$ENV` is looked up; a command gets it as its environment.
        cwd: Relative paths and commands start there: the folder of presets.toml.
        ask: Runs commands.
        seconds: Deadline of a command.

    Raises:
        CannotRunError: `config_error` for what is no reference, `auth_failed` for a key that cannot be had.
    """
    try:
        parsed = parse_reference(reference)
    except ConfigError as error:
        raise CannotRunError(ErrorType.CONFIG_ERROR, error.detail, hint=error.hint) from error
    match parsed.source:
        case KeySource.VARIABLE:
            key = _from_variable(parsed.words[0], environ)
        case KeySource.FILE:
            key = await asyncio.to_thread(_from_file, parsed.words[0], environ, cwd)
        case KeySource.COMMAND:
            key = await _from_command(Program(parsed.words, str(cwd), environ), ask, seconds)
    return Secret(key)


def _from_variable(name: str, environ: Mapping[str, str]) -> str:
    key = environ.get(name, "").strip()
    if not key:
        raise _no_key(f"the variable {name} is not set", f"set {name} in the .env beside pipe.md, or for the daemon")
    return key


def _from_file(text: str, environ: Mapping[str, str], cwd: Path) -> str:
    path = cwd / _expanded(text, environ)
    try:
        mode = os.stat(path).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _no_key(f"others may read the key file {path} (mode {stat.S_IMODE(mode):o})", f"chmod 600 {path}")
        key = read_bounded(path, MAX_KEY_BYTES).decode().strip()
    except UnicodeDecodeError as error:
        raise _no_key(f"the key file {path} is no text", "write the key alone into it") from error
    except OSError as error:
        raise _no_key(f"the key file {path} cannot be read: {error.strerror or error}", "mend api_key") from error
    if not key:
        raise _no_key(f"the key file {path} is empty", "write the key into it")
    return key


def _expanded(text: str, environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home, text[2:]) if text.startswith("~/") else Path(text)


async def _from_command(program: Program, ask: Ask, seconds: float) -> str:
    name = program.argv[0]
    hint = "run the command by hand to see what it says"
    try:
        answer = await ask(program, seconds=seconds)
    except TimeoutError as error:
        raise _no_key(f"the command of the key ({name}) did not end within {seconds:g} s", hint) from error
    except PxError as error:
        raise _no_key(f"the command of the key ({name}) cannot be started: {error.detail}", hint) from error
    return _only_line(name, answer, hint)


def _only_line(name: str, answer: Answer, hint: str) -> str:
    if answer.code != 0:
        # What it printed is not quoted: stderr of a password store may hold anything.
        raise _no_key(f"the command of the key ({name}) {answer.words}", hint)
    key = answer.stdout.strip()
    if not key or "\n" in key:
        raise _no_key(f"the command of the key ({name}) must print one line, and nothing else", hint)
    return key


def _no_key(detail: str, hint: str) -> CannotRunError:
    return CannotRunError(ErrorType.AUTH_FAILED, detail, hint=hint)
