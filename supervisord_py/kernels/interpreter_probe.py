"""Asks interpreters what they are: each is run once, with a deadline, and what it said holds until its files change.

Only what was said is remembered, never a failure: the next request asks a dead interpreter again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.choice import Verdict
from supervisord_py.kernels.environment import Activation, PrefixKind
from supervisord_py.kernels.inside import self_report
from supervisord_py.kernels.installs import UNITS, run
from supervisord_py.kernels.interpreters import Stamps, Trouble, stamps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.process.keeper_client import KeeperClient

PROBE_SECONDS = 10.0
SHIM_SECONDS = 30.0
"""How long a program that only leads to another one (pyenv's) is believed: its answer depends on files nobody knows."""
REMEMBERED = 64
_SCRIPT = os.path.abspath(self_report.__file__)


class Interpreter(msgspec.Struct, frozen=True):
    """What an interpreter said of itself; `path` is where it was found, `overlay` the folder of one for it."""

    path: str
    executable: str
    version: tuple[int, ...]
    activation: Activation
    ipykernel: str | None
    lacking: tuple[str, ...]
    overlay: str
    pip: bool
    packages: tuple[str, ...]

    @property
    def shim(self) -> bool:
        """Whether the program that was found is only a way to another one."""
        return os.path.realpath(self.path) != os.path.realpath(self.executable)

    def watched(self) -> Stamps:
        """Return what the answer depends on, as it is now."""
        prefix = os.path.join(self.activation.prefix, "pyvenv.cfg")
        return stamps((self.path, os.path.realpath(self.path), prefix, *self.packages))


def read_report(path: str, text: str, overlays: str) -> Interpreter | Trouble:
    """Turn the report among what an interpreter printed into a value: start-up files may print, too."""
    lines = [line for line in text.splitlines() if line.startswith(self_report.MARK)]
    if not lines:
        return Trouble(Verdict.FAILED, "exits with 0 without an answer")
    try:
        said = json.loads(lines[-1].removeprefix(self_report.MARK))
        executable = said["executable"] or path
        kind = PrefixKind.VENV if said["venv"] else PrefixKind.CONDA if said["conda"] else PrefixKind.PLAIN
        return Interpreter(
            path=path,
            executable=executable,
            version=tuple(said["version"]),
            activation=Activation(os.path.dirname(executable), said["prefix"], kind),
            ipykernel=None if said["lacking"] else said["ipykernel"],
            lacking=tuple(said["lacking"]),
            overlay=os.path.join(overlays, said["tag"]),
            pip=said["pip"],
            packages=tuple(said["packages"]),
        )
    except (ValueError, KeyError, TypeError):
        return Trouble(Verdict.FAILED, "gives an answer that makes no sense")


class InterpreterProbe:
    """Asks and remembers; one for a control plane."""

    def __init__(self, placement: KeeperClient) -> None:
        self._placement = placement
        self._answers: dict[tuple[str, str], tuple[Interpreter, Stamps, float]] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def seen(self, path: str) -> Stamps:
        """Return what the last answer of an interpreter depended on; () where it was not asked."""
        said = self._answers.get((path, ""))
        return said[1] if said else ()

    def recall(self, path: str, cwd: str, overlays: str) -> Interpreter | None:
        """Return what an interpreter said if it still holds. File I/O."""
        for key in ((path, ""), (path, cwd)):
            said = self._answers.get(key)
            if said is None:
                continue
            interpreter, seen, until = said
            same = os.path.dirname(interpreter.overlay) == overlays and time.monotonic() < until
            if same and interpreter.watched() == seen:
                return interpreter
        return None

    async def ask(self, path: str, cwd: str, env: Mapping[str, str], overlays: str) -> Interpreter | Trouble:
        """Ask an interpreter what it is; who asks meanwhile waits for the same answer. `cwd` matters to shims."""
        lock = self._asking.setdefault(path, asyncio.Lock())
        async with lock:
            known = await asyncio.to_thread(self.recall, path, cwd, overlays)
            if known is not None:
                return known
            unit = f"{UNITS}ask-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
            argv = (path, "-I", _SCRIPT)
            try:
                ended = await run(self._placement, argv, unit=unit, cwd=cwd, env=env, timeout=PROBE_SECONDS)
            except TimeoutError:
                return Trouble(Verdict.TIMED_OUT, f"does not answer within {PROBE_SECONDS:g} s")
            except StartFailedError as error:
                return Trouble(Verdict.FAILED, f"cannot be started: {error.detail}")
            if ended.code != 0:
                return Trouble(Verdict.FAILED, ended.words)
            said = read_report(path, ended.stdout, overlays)
            if isinstance(said, Interpreter):
                seen = await asyncio.to_thread(said.watched)
                until = time.monotonic() + (SHIM_SECONDS if said.shim else float("inf"))
                while len(self._answers) >= REMEMBERED:
                    del self._answers[next(iter(self._answers))]
                self._answers[path, cwd if said.shim else ""] = (said, seen, until)
            return said
