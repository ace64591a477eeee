"""How the prelude's helpers tell what they did, and `run`: a command that is ended with its whole group."""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .cell_writer import STATUS_MIME  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE = 2.0  # seconds between SIGINT and SIGKILL of a command's group
_PREVIEW, _LISTED, _SHOWN = 500, 20, 20_000


class Text(str):
    """A str that shows itself as it is when it is the value of a cell, without quotes and escapes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Lines(list):  # type: ignore[type-arg] # Python 3.8 cannot subscript it here
    """A list that shows one entry a line when it is the value of a cell."""

    def __repr__(self) -> str:
        return "\n".join(str(entry) for entry in self) or "(nothing)"


def tell(op: str, **fields: Any) -> None:
    """Emit a status event: which helper, and what it did, in a few words and numbers."""
    from IPython.display import publish_display_data

    publish_display_data({STATUS_MIME: {"op": op, **{name: _small(value) for name, value in fields.items()}}})


def clipped(text: str, limit: int = _PREVIEW) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _small(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [clipped(str(entry)) for entry in value[:_LISTED]]
    return value if isinstance(value, (int, float, bool, type(None))) else clipped(str(value))


class CommandResult(NamedTuple):
    """What came of a command; true where it went well. `returncode` -N: signal N; `duration` in seconds."""

    command: str
    returncode: int
    stdout: str
    stderr: str
    duration: float

    def __bool__(self) -> bool:
        return self.returncode == 0

    def __repr__(self) -> str:
        texts = [text.rstrip("\n") for text in (self.stdout, self.stderr) if text]
        if self.returncode or not texts:
            texts.append(f"[exit code {self.returncode}]")
        whole, half = "\n".join(texts), _SHOWN // 2
        if len(whole) <= _SHOWN:
            return whole
        return f"{whole[:half]}\n[… {len(whole) - 2 * half} characters …]\n{whole[-half:]}"


def run(
    command: str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | bytes | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> CommandResult:
    """Run a command with `bash -c`, wait for it, return its exit code and output; `env` is added to ours.

    It has a session of its own. When the cell is interrupted, or after `timeout` seconds, its group gets SIGINT, and
    SIGKILL two seconds later. What it leaves in the background (`server &`) goes on, and is not waited for.

    Raises subprocess.TimeoutExpired: with `stdout` and `stderr` up to then; subprocess.CalledProcessError: it
    failed, and `check` was set.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        # Files, not pipes: what is left in the background holds them open, and must not hold us.
        stdin.write(input.encode() if isinstance(input, str) else input or b"")
        stdin.seek(0)
        code, late = run_to_end(
            [shutil.which("bash") or "/bin/sh", "-c", command],
            timeout,
            cwd=None if cwd is None else os.path.expanduser(str(cwd)),
            env=None if env is None else {**os.environ, **env},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    done = CommandResult(command, code, texts[0], texts[1], round(time.monotonic() - began, 3))
    tell("run", command=command, returncode=code, duration=done.duration, timed_out=late, preview=repr(done))
    if late:
        raise subprocess.TimeoutExpired(command, timeout or 0, done.stdout, done.stderr)
    if check and not done:
        raise subprocess.CalledProcessError(code, command, done.stdout, done.stderr)
    return done


def run_to_end(arguments: Sequence[str], timeout: float | None = None, **options: Any) -> tuple[int, bool]:
    """Run a command in a session of its own to its end; any exception, also an interrupt, ends it.

    Returns its exit code, -N where signal N ended it, and whether it was ended because `timeout` seconds were over.
    """
    process = subprocess.Popen(arguments, start_new_session=True, **options)
    try:
        return process.wait(timeout), False
    except subprocess.TimeoutExpired:
        _end_group(process)
        return process.returncode, True
    except BaseException:
        if process.returncode is None:
            _end_group(process)
        raise


def _end_group(process: subprocess.Popen[Any]) -> None:
    """SIGINT to the group, SIGKILL when the leader is gone or two seconds have passed; a second interrupt hurries."""
    try:
        deadline = time.monotonic() + GRACE
        os.killpg(process.pid, signal.SIGINT)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM where only zombies are left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
