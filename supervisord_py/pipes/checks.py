"""What is wrong with a pipe: its file, its agent, its command's program, presets; for `list`, `validate`, doctor.

A pipe whose file reads well and which cannot run all the same is listed with the cause, like one whose file is broken,
until the cause is gone; a run of it is a row that failed at once, so that nothing happens in silence (A3). Nothing is
spawned for an answer: agents.toml and presets.toml are read when their stamp is another one, a program is looked for
once in a while. What a broken file hides is skipped, not guessed.
"""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.adapters import CannotRunError, placeholders_of
from supervisord_py.pipes.launch import DOTENV, find_executable
from supervisord_py.pipes.models import COMMAND, BrokenPipe
from supervisord_py.pipes.presets import PresetProblem, resolve
from supervisord_py.pipes.schedule import Manual
from supervisord_py.process.child_environment import DEFAULT_PATH, passed, read_dotenv

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.config.documents import Problem
    from supervisord_py.pipes.adapters import AgentSpec
    from supervisord_py.pipes.models import Declared, PipeDefinition
    from supervisord_py.pipes.room import Pipes

LOOK_SECONDS = 1.0  # so long it is believed that a program is there, or is not


class PipeFaults:
    """Finds what keeps pipes from running."""

    def __init__(self, room: Pipes) -> None:
        self._room = room
        self._shelf = room.shelf
        self._programs: dict[str, tuple[PipeDefinition, float, Problem | None]] = {}
        """By pipe: of which definition, until when it counts, what was found."""

    def find(self, definition: PipeDefinition) -> Problem | None:
        """Return the first thing that keeps a pipe from running; None where nothing is known to."""
        return next(self._each(definition), None)

    def afresh(self, definition: PipeDefinition) -> tuple[Problem, ...]:
        """Return all that keeps a pipe from running, or would; what is believed is not asked. Blocking."""
        self._programs.pop(definition.name, None)
        return tuple(self._each(definition))

    def _each(self, definition: PipeDefinition) -> Iterator[Problem]:
        spec: AgentSpec | None = None
        try:
            spec = self._shelf.adapters_now().get(definition.agent)
        except ConfigError as error:
            yield definition.problem("agent", error.detail, error.hint or "see agents.toml(5)")
        found = resolve(definition, self._shelf.presets_now())
        if isinstance(found, PresetProblem):
            yield definition.problem("preset", found.message, found.hint)
        if spec is not None and not spec.argv and (problem := self._program(definition, spec)) is not None:
            yield problem

    def missing_agent(self, definition: PipeDefinition) -> Problem | None:
        """Return why the program of a pipe's agent cannot be started: it is not installed, and may be at any time."""
        try:
            spec = self._shelf.adapters_now().get(definition.agent)
        except ConfigError:
            return None
        return self._program(definition, spec) if spec.argv else None

    def keep_only(self, pipes: Collection[str]) -> None:
        """Forget the pipes that are gone."""
        for name in self._programs.keys() - set(pipes):
            self._programs.pop(name, None)  # a validation, in its thread, may have forgotten it

    def _program(self, definition: PipeDefinition, spec: AgentSpec) -> Problem | None:
        """Return why a pipe's program cannot be started."""
        now = self._room.clocks.boot()
        known = self._programs.get(definition.name)
        if known is not None and known[0] is definition and now < known[1]:
            return known[2]
        found = self._looked_for(definition, spec)
        self._programs[definition.name] = (definition, now + LOOK_SECONDS, found)
        return found

    def _looked_for(self, definition: PipeDefinition, spec: AgentSpec) -> Problem | None:
        word = next(iter(spec.argv or definition.command), None)
        if not isinstance(word, str) or any(placeholders_of(word)):
            return None
        env = {"PATH": DEFAULT_PATH} | passed(self._shelf.environ, self._room.config.env_allow)
        why = _missing(word, spec, definition.folder, env)
        if why is None:
            return None
        own, _doubts = read_dotenv(definition.folder / DOTENV)
        why = _missing(word, spec, definition.folder, env | dict(own))
        key = "agent" if spec.argv else "command"
        return None if why is None else definition.problem(key, why.detail, why.hint or "mend the command")


def _missing(word: str, spec: AgentSpec, folder: Path, env: Mapping[str, str]) -> CannotRunError | None:
    try:
        find_executable(word, spec, folder, path=env["PATH"], home=env.get("HOME", "/"))
    except CannotRunError as error:
        return error
    return None


# -- pxctl pipe validate -----------------------------------------------------------------------------------------------

NAMES = ("front_matter", "schedule", "agent", "command", "presets", "env_file", "output_folder", "prompt", "keys")
"""The checks in their order."""

_CHECKS = {
    **dict.fromkeys(("schedule", "schedule_config", "timezone", "trigger"), "schedule"),
    **dict.fromkeys(("command", "agent"), "command"),
    "preset": "presets",
}
"""Of a broken file: by the key that is wrong."""


class CheckStatus(StrEnum):
    """How a check came out."""

    PASS = "pass"  # noqa: S105 - the word of the report, no password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Check(NamedTuple):
    """One check: a sentence, the line of `pipe.md` it is about, and what to do; None where there is none."""

    name: str
    status: CheckStatus
    message: str
    line: int | None = None
    hint: str | None = None


def validate(
    declared: Declared,
    troubles: Mapping[str, Problem] | None = None,
    doubts: Mapping[str, Sequence[str]] | None = None,
    presets: str | None = None,
) -> tuple[Check, ...]:
    """Check a pipe, broken or not; one or more checks for each of NAMES, in that order. Blocking.

    What only others know comes in: by the name of the check, why it cannot run and what is odd; which presets it has.
    """
    if isinstance(declared, BrokenPipe):
        return _broken(declared)
    passed = {
        "front_matter": "reads",
        "schedule": _schedule_text(declared),
        "agent": f"{declared.agent} is known",
        "command": " ".join(declared.command),
        "presets": presets or ", ".join(declared.presets) or declared.model or "none is needed",
        "keys": "each has its effect",
    }
    folder = declared.folder
    env_doubts = read_dotenv(folder / ".env")[1] if os.path.isfile(folder / ".env") else ()
    doubts = {"keys": declared.warnings, **(doubts or {}), "env_file": env_doubts}
    own = {check.name: check for check in (_env_file(folder), _output_folder(folder), _prompt(declared))}
    if declared.agent != COMMAND:
        own["command"] = Check("command", CheckStatus.SKIP, f"the agent is {declared.agent}")
    checks: list[Check] = []
    for name in NAMES:
        warned = [Check(name, CheckStatus.WARN, each) for each in doubts.get(name, ())]
        check = own.get(name) or Check(name, CheckStatus.PASS, passed.get(name, ""))
        if troubles and name in troubles:
            check = _failed(name, troubles[name])
        checks += warned if warned and check.status is CheckStatus.PASS else [check, *warned]
    return tuple(checks)


def _failed(name: str, problem: Problem) -> Check:
    return Check(name, CheckStatus.FAIL, problem.message.removeprefix(f"{name}: "), problem.line, problem.hint)


def _broken(pipe: BrokenPipe) -> tuple[Check, ...]:
    """Sort the problems of a broken file to the checks that they belong to; the other checks are skipped."""
    failed = [_failed(_check_of(each), each) for each in (pipe.problem, *pipe.more)]
    found = {each.name for each in failed}
    rest = [Check(name, CheckStatus.SKIP, "pipe.md must be mended first") for name in NAMES[1:] if name not in found]
    if "front_matter" not in found:
        rest.append(Check("front_matter", CheckStatus.PASS, "reads"))
    return tuple(sorted([*failed, *rest], key=lambda each: NAMES.index(each.name)))


def _check_of(problem: Problem) -> str:
    key = problem.pointer[1:].partition("/")[0]
    return _CHECKS.get(key, "keys" if key else "front_matter")


def _schedule_text(pipe: PipeDefinition) -> str:
    if not isinstance(pipe.schedule, Manual):
        return pipe.schedule_text
    return f"on {', '.join(each.text for each in pipe.events)}" if pipe.events else "manual: it runs by hand"


def _env_file(folder: Path) -> Check:
    name, path = "env_file", folder / ".env"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Check(name, CheckStatus.PASS, "there is none")
    except OSError as error:
        return Check(name, CheckStatus.FAIL, f"{path}: {error.strerror}", None, f"ls -l {path}")
    if not stat.S_ISREG(mode) or not os.access(path, os.R_OK):
        return Check(name, CheckStatus.FAIL, f"{path} is no readable file", None, f"chmod 600 {path}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = f"{path} holds secrets, and others may read it"
        return Check(name, CheckStatus.WARN, said, None, f"chmod 600 {path}")
    return Check(name, CheckStatus.PASS, "nobody else may read it")


def _output_folder(folder: Path) -> Check:
    path = folder / "output"
    place = path if os.path.lexists(path) else folder
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        return Check("output_folder", CheckStatus.PASS, f"{path} can be written")
    return Check("output_folder", CheckStatus.FAIL, f"{place} cannot be written", None, f"ls -ld {place}")


def _prompt(pipe: PipeDefinition) -> Check:
    if pipe.body or pipe.agent == COMMAND:
        return Check("prompt", CheckStatus.PASS, f"{len(pipe.body)} characters")
    hint = "say below the closing --- what the agent is to do"
    return Check("prompt", CheckStatus.FAIL, "there is no text below the front matter", None, hint)
