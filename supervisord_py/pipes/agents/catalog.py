"""All adapters: those that come with the package, and over them what users say in agents.toml. Blocking file I/O.

Law: a broken table of the user's takes only its own agent away, and a broken file only the user's tables: who names
such an agent is told why. A table of a known name overrides single keys of ours, in tables below it as well.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.agents.spec_reading import read_spec
from supervisord_py.pipes.agents.toml_table import TomlTable, line_of, nearest
from supervisord_py.pipes.models import ConfigProblem
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.agents.spec import AgentSpec

BUILTIN = Path(__file__).with_name("builtin.toml")


@dataclass(frozen=True, slots=True)
class AgentCatalog:
    """Adapters by name.

    Attributes:
        broken: Of agents that cannot be used, every problem.
        file: The user's file; None where there is none.
        file_problem: Why the user's file as a whole cannot be read.
    """

    agents: Mapping[str, AgentSpec]
    broken: Mapping[str, tuple[ConfigProblem, ...]] = field(default_factory=dict)
    file: Path | None = None
    file_problem: ConfigProblem | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the agents that can be used, sorted."""
        return tuple(sorted(self.agents))

    @property
    def problems(self) -> tuple[ConfigProblem, ...]:
        """Everything that is wrong with the user's file."""
        whole = () if self.file_problem is None else (self.file_problem,)
        return whole + tuple(problem for found in self.broken.values() for problem in found)

    def get(self, name: str) -> AgentSpec:
        """Return the adapter.

        Raises:
            ConfigError: There is none of that name (the nearest is named), or it is broken (why).
        """
        if name in self.broken:
            first = self.broken[name][0]
            raise ConfigError(f"the agent {name!r} is broken: {first.text}", hint=first.hint, agent=name)
        if name in self.agents:
            return self.agents[name]
        meant = nearest(name, [*self.agents, *self.broken])
        also = f"; and {self.file_problem.text}" if self.file_problem else ""
        raise ConfigError(
            f"there is no agent {name!r}{also}",
            hint=f"did you mean {meant!r}?" if meant else f"known are {', '.join(self.names)}; see agents.toml(5)",
            agent=name,
        )


def load_agents(user_file: Path | None) -> AgentCatalog:
    """Read all adapters; a user's file that is not there is no problem. Never raises for what users wrote."""
    builtin = BUILTIN.read_text(encoding="utf-8")
    tables: dict[str, Any] = tomllib.loads(builtin)["agents"]
    ours = {name: read_spec(name, _table(name, tables[name], str(BUILTIN), builtin)) for name in tables}
    if user_file is None:
        return AgentCatalog(ours)
    try:
        found = _read(user_file)
        if not isinstance(found, ConfigProblem):
            return _laid_over(ours, tables, user_file, found)
    except Exception as error:  # whatever breaks the reader is the file's fault: nesting that is too deep, …
        detail, hint = f"cannot be understood: {type(error).__name__}: {error}", "mend or remove the file"
        found = ConfigProblem(detail, hint, str(user_file))
    return AgentCatalog(ours, {}, user_file, found)


def _read(file: Path) -> tuple[str, dict[str, Any]] | ConfigProblem:
    """Return a file's text and its `[agents]`, or why there are none."""
    try:
        text = read_bounded(file).decode("utf-8-sig")
        document = tomllib.loads(text)
    except FileNotFoundError:
        return "", {}
    except OSError as error:
        return ConfigProblem(f"cannot be read: {error.strerror or error}", "mend or remove the file", str(file))
    except ValueError as error:
        return ConfigProblem(f"is no TOML: {error}", "mend the syntax; its agents are away until then", str(file))
    agents = document.pop("agents", {})
    if document or not isinstance(agents, dict):
        key = next(iter(document), "agents")
        hint = f"write [agents.{key}]" if document else "write [agents.NAME]"
        return ConfigProblem(f"{key!r} has no place here", hint, str(file), line_of(text, (key,)), key=key)
    return text, agents


def _laid_over(
    ours: Mapping[str, AgentSpec], tables: Mapping[str, Any], file: Path, found: tuple[str, dict[str, Any]]
) -> AgentCatalog:
    agents = dict(ours)
    broken: dict[str, tuple[ConfigProblem, ...]] = {}
    text, wanted = found
    for name, members in wanted.items():
        if not isinstance(members, dict):
            hint = f"write [agents.{name}]"
            broken[name] = (ConfigProblem(f"{name!r} is no table", hint, str(file), line_of(text, ("agents",), name)),)
        else:
            table = _table(name, _merged(tables.get(name, {}), members), str(file), text)
            spec = read_spec(name, table)
            if table.problems:
                broken[name] = tuple(table.problems)
            else:
                agents[name] = spec
        if name in broken:
            agents.pop(name, None)
    return AgentCatalog(agents, broken, file)


def _table(name: str, members: Mapping[str, Any], file: str, text: str) -> TomlTable:
    return TomlTable(members, file=file, text=text, path=("agents", name), problems=[])


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        held = merged.get(key)
        merged[key] = _merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return merged
