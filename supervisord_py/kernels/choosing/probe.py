"""Asks interpreters what they are: each is run once, with a deadline, and what it said holds until it changes.

Law: only what was said is remembered, never a failure: the next request asks a dead interpreter again. An answer holds
as long as the program, its `pyvenv.cfg`, its folders of packages and the overlay for it are what they were. A program
that answers for another one (a shim, whose answer depends on the directory and on files that nobody knows) is
remembered for its directory and a few seconds only.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.choosing import self_report
from supervisord_py.kernels.choosing.choice import OLDEST, Verdict
from supervisord_py.kernels.choosing.environment import Activation, PrefixKind
from supervisord_py.kernels.choosing.steps import Program, join

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.choosing.candidates import Candidate
    from supervisord_py.kernels.choosing.steps import Answer, Steps
    from supervisord_py.process.child_environment import Environment

PROBE_SECONDS = 10.0
SHIM_SECONDS = 30.0
MAX_REMEMBERED = 64
_SCRIPT = os.path.abspath(self_report.__file__)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an interpreter said of itself.

    Attributes:
        path: As it was found.
        executable: As it calls itself.
        ipykernel: Version; None where there is none, or where packages that it needs are lacking.
        lacking: Packages without which no kernel runs.
        overlay: Folder of the overlay for it, there or not.
        overlay_trouble: None when the overlay works, `missing` when there is none, else why it does not fit.
    """

    path: str
    executable: str
    version: tuple[int, ...]
    activation: Activation
    ipykernel: str | None
    lacking: tuple[str, ...]
    overlay: str
    pip: bool
    packages: tuple[str, ...]
    overlay_trouble: str | None = None

    @property
    def shim(self) -> bool:
        """Whether the program that was found is only a way to another one."""
        return os.path.realpath(self.path) != os.path.realpath(self.executable)

    @property
    def too_old(self) -> bool:
        """Whether no kernel of ours can run in it."""
        return self.version[:2] < OLDEST

    @property
    def version_text(self) -> str:
        """`3.11.7`."""
        return ".".join(str(part) for part in self.version)

    @property
    def overlay_works(self) -> bool:
        """Whether it needs an overlay, and the one that is there was tried and works."""
        return bool(self.lacking) and not self.too_old and self.overlay_trouble is None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an interpreter cannot be asked, or did not answer. `detail` follows its name: "is not there"."""

    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class Question:
    """How an interpreter is asked.

    Attributes:
        cwd: A shim's answer depends on it.
        env: Makes the environment, complete and filtered; called only when an interpreter is really asked.
        overlays: Folder of the overlays.
    """

    cwd: str
    env: Callable[[], Environment]
    overlays: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """An answer and what it depends on: (path, time of its last change) pairs; loop time after which it is stale."""

    interpreter: Interpreter
    watched: tuple[tuple[str, int], ...]
    until: float

    def holds(self, question: Question, now: float) -> bool:
        """Say whether the same answer would be given now. File I/O."""
        same = os.path.dirname(self.interpreter.overlay) == question.overlays
        return same and now < self.until and self.watched == _watched(self.interpreter)


def find(candidate: Candidate) -> str | Trouble:
    """Return the program of a candidate, or why there is none. File I/O: call it in a thread."""
    trouble: Trouble | None = None
    for path in candidate.paths:
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            trouble = trouble or Trouble(Verdict.NOT_EXECUTABLE, "is not executable")
        elif os.path.islink(path) and trouble is None:
            trouble = Trouble(Verdict.MISSING, f"is a link to {os.readlink(path)}, which is not there")
    return trouble or Trouble(Verdict.MISSING, _missing(candidate))


def _missing(candidate: Candidate) -> str:
    if candidate.root is not None:
        there = os.path.isdir(candidate.root)
        return "is not there: the environment has no bin/python" if there else "is not there"
    return "is not there" if candidate.name is None else "is not on PATH"


def activation_of(python: str) -> Activation:
    """Return what activating the environment of an interpreter would say, by its path alone. File I/O."""
    folder = os.path.dirname(python)
    prefix = os.path.dirname(folder)
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        return Activation(folder, prefix, PrefixKind.VENV)
    conda = os.path.isdir(os.path.join(prefix, "conda-meta"))
    return Activation(folder, prefix, PrefixKind.CONDA if conda else PrefixKind.PLAIN)


class Probe:
    """Asks and remembers; one for a control plane."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._remembered: dict[str, Remembered] = {}
        self._asking: dict[tuple[str, str, bool], asyncio.Task[Interpreter | Trouble]] = {}

    def recall(self, path: str, question: Question, now: float) -> Interpreter | None:
        """Return what an interpreter said if it still holds. File I/O, quick: call it in a thread.

        Args:
            path: As found.
            question: As it would be asked.
            now: Loop time.
        """
        for key in (path, f"{path}\0{question.cwd}"):
            found = self._remembered.get(key)
            if found is not None and found.holds(question, now):
                return found.interpreter
        return None

    async def ask(self, path: str, question: Question, *, anew: bool = False) -> Interpreter | Trouble:
        """Ask an interpreter; who asks meanwhile, waits for the same answer.

        Args:
            path: As found.
            question: How it is asked.
            anew: It was changed just now: what it said before is no answer.
        """
        key = (path, question.cwd, anew)
        task = self._asking.get(key)
        if task is None:
            asking = self._ask(path, question) if anew else self._recall_or_ask(path, question)
            task = self._asking[key] = asyncio.create_task(asking, name=f"ask {path}")
            task.add_done_callback(lambda done: self._asked(key, done))
        return await join(task, f"asking {path}")

    def _asked(self, key: tuple[str, str, bool], done: asyncio.Task[Interpreter | Trouble]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever still waits gets it; where nobody does, it is no news

    async def close(self) -> None:
        """End what is being asked."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _recall_or_ask(self, path: str, question: Question) -> Interpreter | Trouble:
        """Ask, unless it has said so since the caller looked: somebody else's question may just have been answered."""
        now = asyncio.get_running_loop().time()
        return await asyncio.to_thread(self.recall, path, question, now) or await self._ask(path, question)

    async def _ask(self, path: str, question: Question) -> Interpreter | Trouble:
        argv = (path, "-I", _SCRIPT, question.overlays)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answer = await self._steps.ask(Program(argv, question.cwd, question.env()))
        except TimeoutError:
            return Trouble(Verdict.TIMED_OUT, f"does not answer within {PROBE_SECONDS:g} s")
        except StartFailedError as error:
            return Trouble(Verdict.FAILED, f"cannot be started: {error.detail}")
        said = _said(answer)
        if said is None:
            return Trouble(Verdict.FAILED, _failure(answer))
        interpreter = read_report(path, said, question.overlays)
        if isinstance(interpreter, Interpreter):
            await self._remember(interpreter, question.cwd)
        return interpreter

    async def _remember(self, interpreter: Interpreter, cwd: str) -> None:
        watched = await asyncio.to_thread(_watched, interpreter)
        shim = interpreter.shim
        until = asyncio.get_running_loop().time() + SHIM_SECONDS if shim else float("inf")
        key = f"{interpreter.path}\0{cwd}" if shim else interpreter.path
        self._remembered.pop(key, None)
        self._remembered[key] = Remembered(interpreter, watched, until)
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


def _watched(interpreter: Interpreter) -> tuple[tuple[str, int], ...]:
    """Return what an answer depends on, with the time of its last change; -1 for what is not there."""
    paths: Sequence[str] = (
        interpreter.path,
        os.path.realpath(interpreter.path),
        os.path.join(interpreter.activation.prefix, "pyvenv.cfg"),
        *interpreter.packages,
        interpreter.overlay,
    )
    return tuple((path, _changed(path)) for path in paths)


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def _failure(answer: Answer) -> str:
    words = answer.words if answer.code != 0 else "exits with 0 without an answer"
    return f"{words}: {answer.last_line}" if answer.last_line else words


def _said(answer: Answer) -> str | None:
    """Return the report among what was printed: start-up files of an environment may print, too."""
    lines = [line for line in answer.stdout.splitlines() if line.startswith(self_report.MARK)]
    return lines[-1].removeprefix(self_report.MARK) if lines and answer.code == 0 else None


def read_report(path: str, text: str, overlays: str) -> Interpreter | Trouble:
    """Turn the report of an interpreter into a value; what is not one is a trouble."""
    try:
        said: dict[str, Any] = json.loads(text)
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
            overlay_trouble=said["overlay_trouble"],
        )
    except (ValueError, KeyError, TypeError):
        return Trouble(Verdict.FAILED, "gives an answer that makes no sense")
