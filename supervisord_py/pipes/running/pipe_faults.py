"""Why a pipe whose file reads well cannot run all the same: its agent, the program of that, its presets.

Law: such a pipe is listed with it, like one whose file is broken, until the cause is gone; a run of it, by hand or when
it is due, is a row that failed at once, so that nothing happens in silence (A3). Nothing is spawned for an answer:
agents.toml and presets.toml are read when their stamp is another one, a program is looked for once in a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.adapters import CannotRunError, placeholders_of
from supervisord_py.pipes.definition import ConfigProblem
from supervisord_py.pipes.launch import DOTENV, find_executable
from supervisord_py.pipes.presets import PresetProblem, resolve
from supervisord_py.process.child_environment import DEFAULT_PATH, passed, read_dotenv

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from supervisord_py.pipes.adapters import AgentSpec
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.running.agent_shelf import AgentShelf

    Look = Callable[[PipeDefinition, AgentSpec], ConfigProblem | None]

LOOK_SECONDS = 1.0
"""So long it is believed that a program is there, or is not."""
_AGENT, _COMMAND, _PRESET = "agent", "command", "preset"


class PipeFaults:
    """Finds what keeps pipes from running.

    Args:
        shelf: Agents and presets.
        config: Settings in force.
        environ: The daemon's environment.
        boot: A clock that only goes forward, in seconds.
    """

    def __init__(
        self,
        shelf: AgentShelf,
        config: Callable[[], PipesConfig],
        environ: Mapping[str, str],
        boot: Callable[[], float],
    ) -> None:
        self._shelf = shelf
        self._config = config
        self._environ = environ
        self._boot = boot
        self._programs: dict[str, tuple[PipeDefinition, float, ConfigProblem | None]] = {}
        """By pipe: of which definition, until when it counts, what was found."""

    def find(self, definition: PipeDefinition) -> ConfigProblem | None:
        """Return the first thing that keeps a pipe from running; None where nothing is known to."""
        return next(self._each(definition, self._program), None)

    def afresh(self, definition: PipeDefinition) -> tuple[ConfigProblem, ...]:
        """Return all that keeps a pipe from running, or would; what is believed is not asked. Blocking."""
        return tuple(self._each(definition, self._looked_for))

    def _each(self, definition: PipeDefinition, program: Look) -> Iterator[ConfigProblem]:
        spec: AgentSpec | None = None
        try:
            spec = self._shelf.adapters_now().get(definition.agent)
        except ConfigError as error:
            yield _problem(definition, _AGENT, error.detail, error.hint or "see agents.toml(5)")
        found = resolve(definition, self._shelf.presets_now())
        if isinstance(found, PresetProblem):
            yield _problem(definition, _PRESET, found.message, found.hint)
        if spec is not None and not spec.argv and (problem := program(definition, spec)) is not None:
            yield problem

    def missing_agent(self, definition: PipeDefinition) -> ConfigProblem | None:
        """Return why the program of a pipe's agent cannot be started: it is not installed, and may be at any time."""
        try:
            spec = self._shelf.adapters_now().get(definition.agent)
        except ConfigError:
            return None
        return self._program(definition, spec) if spec.argv else None

    def keep_only(self, pipes: Collection[str]) -> None:
        """Forget the pipes that are gone."""
        for name in self._programs.keys() - set(pipes):
            del self._programs[name]

    def _program(self, definition: PipeDefinition, spec: AgentSpec) -> ConfigProblem | None:
        """Return why a pipe's program cannot be started."""
        now = self._boot()
        known = self._programs.get(definition.name)
        if known is not None and known[0] is definition and now < known[1]:
            return known[2]
        found = self._looked_for(definition, spec)
        self._programs[definition.name] = (definition, now + LOOK_SECONDS, found)
        return found

    def _looked_for(self, definition: PipeDefinition, spec: AgentSpec) -> ConfigProblem | None:
        word = next(iter(spec.argv or definition.command), None)
        if not isinstance(word, str) or any(placeholders_of(word)):
            return None
        env = {"PATH": DEFAULT_PATH} | passed(self._environ, self._config().env_allow)
        why = _missing(word, spec, definition.folder, env)
        if why is None:
            return None
        own, _doubts = read_dotenv(definition.folder / DOTENV)
        why = _missing(word, spec, definition.folder, env | dict(own))
        key = _AGENT if spec.argv else _COMMAND
        return None if why is None else _problem(definition, key, why.detail, why.hint or "mend the command")


def _missing(word: str, spec: AgentSpec, folder: Path, env: Mapping[str, str]) -> CannotRunError | None:
    try:
        find_executable(word, spec, folder, path=env["PATH"], home=env.get("HOME", "/"))
    except CannotRunError as error:
        return error
    return None


def _problem(definition: PipeDefinition, key: str, detail: str, hint: str) -> ConfigProblem:
    return ConfigProblem(detail, hint, str(definition.file), definition.lines.get(key), key=key)
