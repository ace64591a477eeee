"""Agents, presets and the means to start them, as the files stand at the moment somebody asks.

Law (A1): a file is read whole before it is used, and read again when it has changed; a run under way never notices.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.catalog import load_agents
from supervisord_py.pipes.agents.launching import Means
from supervisord_py.pipes.agents.local_zone import machine_zone
from supervisord_py.pipes.agents.presets import load_presets, read_presets
from supervisord_py.pipes.agents.programs import Programs
from supervisord_py.pipes.agents.versions import VersionCache
from supervisord_py.pipes.running.read_again import ReadAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.errors import ConfigError
    from supervisord_py.pipes.agents.catalog import AgentCatalog
    from supervisord_py.pipes.agents.presets import Presets
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.definition import ConfigProblem
    from supervisord_py.process.placement import Placement


class AgentShelf:
    """What is needed to start agents.

    Args:
        placement: Runs probes and `cmd:` keys.
        config: Settings in force.
        environ: The daemon's environment, to pick from.
    """

    def __init__(self, placement: Placement, config: Callable[[], PipesConfig], environ: Mapping[str, str]) -> None:
        self._placement = placement
        self._config = config
        self._environ = dict(environ)
        """Not the mapping of the process itself, which decodes every value at every look."""
        self._agents: ReadAgain[AgentCatalog] = ReadAgain(load_agents)
        self._presets: ReadAgain[Presets] = ReadAgain(load_presets)
        self._versions = VersionCache()
        self._programs: Programs | None = None
        self._zone: str | None = None

    async def open(self) -> None:
        """Stop what an earlier control plane left of probes."""
        self._programs = Programs(self._placement)
        await self._programs.open()
        self._zone = await asyncio.to_thread(machine_zone, self._environ)

    @property
    def zone(self) -> str:
        """The machine's time zone."""
        return self._zone or "UTC"

    async def catalog(self) -> AgentCatalog:
        """Return the agents that are known."""
        return await asyncio.to_thread(self.agents_now)

    def agents_now(self) -> AgentCatalog:
        """Return the agents that are known; their file is read only where it has changed (7 ms)."""
        return self._agents.now(self._config().agents_file)

    def presets_now(self) -> Presets:
        """Return the presets; their file is read only where it has changed."""
        return self._presets.now(self._config().presets_file)

    def problems(self) -> dict[str, tuple[ConfigProblem, ...]]:
        """Return everything that is wrong with the files of agents and presets."""
        return {"agents": self.agents_now().problems, "presets": self.presets_now().problems}

    async def presets(self) -> Presets:
        """Return the presets as their file stands."""
        return (await self.look())[1]

    async def look(self) -> tuple[AgentCatalog, Presets]:
        """Return agents and presets as their files stand; presets that make no sense are looked at twice (I3)."""
        agents, presets = await asyncio.to_thread(self._look_now)
        if presets.file_problem is not None:
            presets = await read_presets(self._config().presets_file)
        return agents, presets

    def _look_now(self) -> tuple[AgentCatalog, Presets]:
        return self.agents_now(), self.presets_now()

    async def means(self) -> Means:
        """Return what a start needs."""
        return await asyncio.to_thread(self.means_now)

    def means_now(self) -> Means:
        """Return what a start needs. Blocking."""
        assert self._programs is not None
        config = self._config()
        return Means(
            catalog=self.agents_now(),
            environ=self._environ,
            env_allow=config.env_allow,
            ask=self._programs.ask,
            versions=self._versions,
            presets_folder=config.presets_file.parent,
            preflight=config.preflight,
            preflight_seconds=config.preflight_seconds,
        )


def said(error: ConfigError) -> str:
    """Return what is wrong, and the cure, in one text."""
    return "; ".join(filter(None, (error.detail, error.hint)))
