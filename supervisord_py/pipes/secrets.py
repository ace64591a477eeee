"""Keys by reference (`$ENV`, `file:PATH`, `cmd:ARGV`), and how they are taken out of output before it is stored.

A key itself is in no log, no argv and no message. A key file must be its owner's alone (0600 or stricter). A
command is split as a shell splits words, and run without one.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from supervisord_py.config.documents import read_bounded
from supervisord_py.errors import PxError
from supervisord_py.ledger.pipe_executions import ErrorType
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.preflight import ProgramRunner

COMMAND_SECONDS = 30.0  # a password store may ask its owner first
_MAX_KEY_BYTES = 64 * 1024
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


async def resolve_key(
    reference: str, environ: Mapping[str, str], *, cwd: Path, run: ProgramRunner, seconds: float = COMMAND_SECONDS
) -> str:
    """Return the key that a reference leads to. The reference is never quoted in a message: it may be a key.

    Args:
        reference: As it stands in presets.toml.
        environ: Where `$ENV` is looked up; a command gets it as its environment.
        cwd: Relative paths and commands start there: the folder of presets.toml.
        run, seconds: Runs commands, with this deadline.

    Raises CannotRunError: `config_error` for what is no reference, `auth_failed` for a key that cannot be had.
    """
    if variable := _VARIABLE.fullmatch(reference):
        name = variable[1] or variable[2]
        if key := environ.get(name, "").strip():
            return key
        raise _no_key(f"the variable {name} is not set", f"set {name} in the .env beside pipe.md, or for the daemon")
    kind, _, rest = reference.partition(":")
    try:
        words = shlex.split(rest) if kind == "cmd" else rest.split()
    except ValueError:
        words = []
    if kind == "file" and words:
        return await asyncio.to_thread(_from_file, rest.strip(), environ, cwd)
    if kind != "cmd" or not words:
        hint = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'
        raise CannotRunError(ErrorType.CONFIG_ERROR, "an api_key is no reference to a key", hint=hint)
    try:
        done = await run(words, name="key", timeout=seconds, cwd=str(cwd), env=environ)
        key, why = done.stdout.strip(), done.words if done.code != 0 else "must print one line, and nothing else"
        if done.code == 0 and key and "\n" not in key:
            return key
    except TimeoutError:
        why = f"did not end within {seconds:g} s"
    except PxError as error:
        why = f"cannot be started: {error.detail}"
    # What it printed is not quoted: stderr of a password store may hold anything.
    raise _no_key(f"the command of the key ({words[0]}) {why}", "run the command by hand to see what it says")


def _from_file(text: str, environ: Mapping[str, str], cwd: Path) -> str:
    path = Path(environ.get("HOME") or Path.home(), text[2:]) if text.startswith("~/") else cwd / text
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise _no_key(f"others may read the key file {path} (mode {mode:o})", f"chmod 600 {path}")
        key = read_bounded(path, _MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise _no_key(f"the key file {path} cannot be read: {why}", "mend api_key") from error
    if not key:
        raise _no_key(f"the key file {path} is empty", "write the key alone into it")
    return key


def _no_key(detail: str, hint: str) -> CannotRunError:
    return CannotRunError(ErrorType.AUTH_FAILED, detail, hint=hint)


# -- redaction ---------------------------------------------------------------------------------------------------------

MARK = b"[redacted]"
SHORTEST_VALUE = 6  # shorter ones are left alone: `test` as a key would black out half of an answer
LINE_BYTES = 16 * 1024 * 1024


class Redactor:
    """Takes secrets out of one stream, line by line; what comes out does not depend on where its pieces were cut.

    A line is held back until it is whole; one over LINE_BYTES is let go in pieces of that size.

    Args:
        values: Known secrets; of one of several lines, each line is one.
        patterns: Regular expressions, matched line by line against the UTF-8 bytes; all of them must compile.
    """

    def __init__(self, values: Iterable[str], patterns: Iterable[str] = ()) -> None:
        known = sorted(_printed_forms(values), key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, known))) if known else None
        self._patterns = [re.compile(pattern.encode()) for pattern in patterns]
        self._line = b""  # not whole yet

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that are certain."""
        if self._known is None and not self._patterns:
            return data
        whole, newline, rest = (self._line + data).rpartition(b"\n")
        done = [self._clean(whole), newline] if newline else []
        while len(rest) > LINE_BYTES:
            done.append(self._clean(rest[:LINE_BYTES]))
            rest = rest[LINE_BYTES:]
        self._line = rest
        return b"".join(done)

    def end(self) -> bytes:
        """Return the rest; once, at the end of the stream."""
        return self._clean(self._line)

    def _clean(self, text: bytes) -> bytes:
        if self._known is not None:
            text = self._known.sub(MARK, text)
        for pattern in self._patterns:
            lines = text.split(b"\n")
            text = b"\n".join(pattern.sub(lambda found: MARK if found[0] else b"", line) for line in lines)
        return text


def redact(text: str, values: Iterable[str], patterns: Iterable[str] = ()) -> str:
    redactor = Redactor(values, patterns)
    done = redactor.feed(text.encode("utf-8", "surrogatepass")) + redactor.end()
    return done.decode("utf-8", "surrogatepass")


def _printed_forms(values: Iterable[str]) -> set[bytes]:
    """Return every form in which a value may be printed: as it is, and as a JSON string holds it."""
    forms = set()
    for value in {line.strip() for each in values for line in (each.strip(), *each.split("\n"))}:
        if len(value) >= SHORTEST_VALUE:
            plain = {value} if "\n" not in value else set()
            forms |= plain | {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {form.encode("utf-8", "surrogatepass") for form in forms}
