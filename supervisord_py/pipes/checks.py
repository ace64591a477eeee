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
from supervisord_py.pipes.presets import resolve
from supervisord_py.pipes.schedule import Manual
from supervisord_py.process.child_environment import DEFAULT_PATH, passed, read_dotenv

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.config.documents import Problem
    from supervisord_py.pipes.adapters import AgentSpec
    from supervisord_py.pipes.clocks import Clocks
    from supervisord_py.pipes.models import Declared, PipeDefinition
    from supervisord_py.pipes.shelf import AgentShelf

LOOK_SECONDS = 1.0  # so long it is believed that a program is there, or is not


class PipeFaults:
    def __init__(self, shelf: AgentShelf, clocks: Clocks) -> None:
        self._shelf = shelf
        self._clocks = clocks
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
        try:
            resolve(definition, self._shelf.presets_now())
        except CannotRunError as error:
            yield definition.problem("preset", error.detail, error.hint or "see presets.toml(5)")
        if spec is not None and not spec.argv and (problem := self._program(definition, spec)) is not None:
            yield problem

    def missing_agent(self, definition: PipeDefinition) -> Problem | None:
        """Return why the program of a pipe's agent cannot be started: it is not installed, and may be at any time."""
        spec = self._shelf.adapters_now().agents.get(definition.agent)
        return self._program(definition, spec) if spec is not None and spec.argv else None

    def keep_only(self, pipes: Collection[str]) -> None:
        """Forget the pipes that are gone."""
        for name in self._programs.keys() - set(pipes):
            self._programs.pop(name, None)  # a validation, in its thread, may have forgotten it

    def _program(self, definition: PipeDefinition, spec: AgentSpec) -> Problem | None:
        """Return why a pipe's program cannot be started; looked for once in a while."""
        now = self._clocks.boot()
        known = self._programs.get(definition.name)
        if known is not None and known[0] is definition and now < known[1]:
            return known[2]
        word = next(iter(spec.argv or definition.command), None)
        found = None
        if isinstance(word, str) and not any(placeholders_of(word)):
            env = {"PATH": DEFAULT_PATH} | passed(self._shelf.environ, self._shelf.config.env_allow)
            env |= dict(read_dotenv(definition.folder / DOTENV)[0])
            try:
                find_executable(word, spec, definition.folder, path=env["PATH"], home=env.get("HOME", "/"))
            except CannotRunError as error:
                found = definition.problem(
                    "agent" if spec.argv else "command", error.detail, error.hint or "mend the command"
                )
        self._programs[definition.name] = (definition, now + LOOK_SECONDS, found)
        return found


# -- pxctl pipe validate -----------------------------------------------------------------------------------------------

NAMES = ("front_matter", "schedule", "agent", "command", "presets", "env_file", "output_folder", "prompt", "keys")
"""The checks in their order."""

_CHECKS = {
    **dict.fromkeys(("schedule", "schedule_config", "timezone", "trigger"), "schedule"),
    **dict.fromkeys(("command", "agent"), "command"),
    "preset": "presets",
    "": "front_matter",
}
"""Of a broken file: by the key that is wrong; `keys` for all others."""


class CheckStatus(StrEnum):
    PASS = "pass"  # noqa: S105 - the word of the report, no password
    WARN = "warn"
    FAIL = "fail"


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
    """Check a pipe: one or more checks for each of NAMES, in that order; of a broken one only what is wrong. Blocking.

    What only others know comes in: by the name of the check, why it cannot run and what is odd; which presets it has.
    """
    if isinstance(declared, BrokenPipe):
        problems = (declared.problem, *declared.more)
        return tuple(_failed(_CHECKS.get(each.pointer[1:].partition("/")[0], "keys"), each) for each in problems)
    folder = declared.folder
    passed = {
        "front_matter": "reads",
        "schedule": _schedule_text(declared),
        "agent": f"{declared.agent} is known",
        "command": " ".join(declared.command) or f"the agent is {declared.agent}",
        "presets": presets or ", ".join(declared.presets) or declared.model or "none is needed",
        "env_file": "nobody else may read it" if os.path.lexists(folder / DOTENV) else "there is none",
        "output_folder": f"{folder / 'output'} can be written",
        "prompt": f"{len(declared.body)} characters",
        "keys": "each has its effect",
    }
    doubts = {"keys": declared.warnings, **(doubts or {})}
    own = [*_env_file(folder), *_output_folder(folder), *_prompt(declared)]
    checks: list[Check] = []
    for name in NAMES:
        found = [each for each in own if each.name == name]
        found += [Check(name, CheckStatus.WARN, each) for each in doubts.get(name, ())]
        if troubles and name in troubles:
            found.insert(0, _failed(name, troubles[name]))
        checks += found or [Check(name, CheckStatus.PASS, passed[name])]
    return tuple(checks)


def _failed(name: str, problem: Problem) -> Check:
    return Check(name, CheckStatus.FAIL, problem.message.removeprefix(f"{name}: "), problem.line, problem.hint)


def _schedule_text(pipe: PipeDefinition) -> str:
    if not isinstance(pipe.schedule, Manual):
        return pipe.schedule_text
    return f"on {', '.join(each.text for each in pipe.events)}" if pipe.events else "manual: it runs by hand"


def _env_file(folder: Path) -> Iterator[Check]:
    path = folder / DOTENV
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        yield Check("env_file", CheckStatus.FAIL, f"{path} is no readable file", None, f"chmod 600 {path}")
        return
    if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = f"{path} holds secrets, and others may read it"
        yield Check("env_file", CheckStatus.WARN, said, None, f"chmod 600 {path}")
    for doubt in read_dotenv(path)[1]:
        yield Check("env_file", CheckStatus.WARN, doubt)


def _output_folder(folder: Path) -> Iterator[Check]:
    path = folder / "output"
    place = path if os.path.lexists(path) else folder
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        yield Check("output_folder", CheckStatus.FAIL, f"{place} cannot be written", None, f"ls -ld {place}")


def _prompt(pipe: PipeDefinition) -> Iterator[Check]:
    if not pipe.body and pipe.agent != COMMAND:
        hint = "say below the closing --- what the agent is to do"
        yield Check("prompt", CheckStatus.FAIL, "there is no text below the front matter", None, hint)
