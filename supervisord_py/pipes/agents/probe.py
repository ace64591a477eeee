"""Which version of an agent is this, and does what runs it suit it? Asked once for each file, by path, time and inode.

Law: only what was found is remembered. Where the program belongs to an npm package, its package.json answers at once,
also under a node that is too old to start the program at all. An unknown version is a warning; one that cannot work is
`agent_incompatible`, in a sentence with both versions and the cure. Some print their version on stderr: both are read.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.pipes.agents.executable import candidates
from supervisord_py.pipes.agents.programs import Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.agents.versions import VersionRange, parse_range, parse_version, version_text
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.classify import classify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.agents.programs import Ask
    from supervisord_py.pipes.agents.spec import AgentSpec, Runtime
    from supervisord_py.pipes.agents.versions import Version

PROBE_SECONDS = 30.0
"""`pi --version` was seen to take nine seconds on a busy machine."""
MAX_REMEMBERED = 64
_LEVELS = 6
_SHEBANG_BYTES = 256

Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What was found. `version` None is unknown. `engine` is what the package says of its runtime."""

    version: Version | None = None
    runtime: Version | None = None
    engine: VersionRange | None = None
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """`0.74.2`, or None."""
        return None if self.version is None else version_text(self.version)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is asked: its program, and the folder and environment that it would run with."""

    executable: str
    cwd: Path
    env: Mapping[str, str]


class VersionCache:
    """Finds versions and remembers them; made for one control plane."""

    def __init__(self) -> None:
        self._known: dict[tuple[Stamp, tuple[str, ...]], AgentVersion] = {}

    async def probe(self, spec: AgentSpec, place: Place, ask: Ask) -> AgentVersion:
        """Return the version of an agent and of what runs it.

        Raises:
            CannotRunError: `agent_incompatible`, or `agent_not_found` where its runtime is missing.
        """
        rule = spec.version
        if not rule.argv and not rule.packages:
            return AgentVersion()
        found = await asyncio.to_thread(_package, place.executable, rule.packages)
        if found is None:
            found = await self._asked(spec, place, ask)
        runtime = await self._runtime(spec, place, ask)
        return judged(spec, AgentVersion(found.version, runtime, found.engine, found.warnings))

    async def _asked(self, spec: AgentSpec, place: Place, ask: Ask) -> AgentVersion:
        name, *words = spec.version.argv or ("",)
        if not spec.version.argv or not spec.argv or name != spec.argv[0].words[0]:
            return AgentVersion(warnings=(f"nobody can say which version of {spec.name} this is",))
        key = (_stamp(place.executable), (name, *words))
        if key in self._known:
            return self._known[key]
        answer = await _answer(Program((place.executable, *words), str(place.cwd), place.env), ask)
        version = parse_version(answer[0]) if answer[1] == 0 else None
        if version is None:
            return _unanswered(spec, place, answer)
        return self._remember(key, AgentVersion(version))

    async def _runtime(self, spec: AgentSpec, place: Place, ask: Ask) -> Version | None:
        runtime = spec.version.runtime
        if runtime is None or not await asyncio.to_thread(_is_run_by, place.executable, runtime.name):
            return None
        program = await asyncio.to_thread(_runtime_program, spec, runtime, place)
        key = (_stamp(program), runtime.argv)
        if key in self._known:
            return self._known[key].version
        text, _ = await _answer(Program((program, *runtime.argv[1:]), str(place.cwd), place.env), ask)
        version = parse_version(text)
        return None if version is None else self._remember(key, AgentVersion(version)).version

    def _remember(self, key: tuple[Stamp, tuple[str, ...]], found: AgentVersion) -> AgentVersion:
        while len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = found
        return found


def judged(spec: AgentSpec, found: AgentVersion) -> AgentVersion:
    """Return what was found, with warnings. Pure.

    Raises:
        CannotRunError: `agent_incompatible`.
    """
    rule, version = spec.version, found.version
    if version is None:
        return found
    if rule.want is not None and version not in rule.want:
        raise _incompatible(spec, f"{spec.name} is {found.text}, and this adapter needs {rule.want}")
    wanted = found.engine or _wanted(rule.runtime, version)
    if rule.runtime is not None and wanted is not None and found.runtime is not None and found.runtime not in wanted:
        name = rule.runtime.name
        raise _incompatible(
            spec, f"{spec.name} {found.text} needs {name} {wanted}, and {name} is {version_text(found.runtime)}"
        )
    if rule.tested is not None and version not in rule.tested:
        warning = f"{spec.name} is {found.text}; this adapter was tested with {rule.tested}"
        return AgentVersion(version, found.runtime, found.engine, (*found.warnings, warning))
    return found


def _wanted(runtime: Runtime | None, version: Version) -> VersionRange | None:
    rows = () if runtime is None else runtime.wants
    return next((want for agent, want in rows if agent is None or version in agent), None)


def _incompatible(spec: AgentSpec, detail: str) -> CannotRunError:
    return CannotRunError(ErrorType.AGENT_INCOMPATIBLE, detail, hint=spec.version.cure)


async def _answer(program: Program, ask: Ask) -> tuple[str, int | None]:
    """Return all that a program printed, and its exit code; None where it did not end by itself."""
    try:
        answer = await ask(program, seconds=PROBE_SECONDS)
    except TimeoutError:
        return f"it did not answer within {PROBE_SECONDS:g} s", None
    except PxError as error:
        return error.detail, None
    return f"{answer.stdout}\n{answer.stderr}", answer.code


def _unanswered(spec: AgentSpec, place: Place, answer: tuple[str, int | None]) -> AgentVersion:
    """Take an answer without a version: a crash under a wrong runtime, or a program that nobody knows."""
    last = next((line.strip() for line in reversed(answer[0].splitlines()) if line.strip()), "it printed nothing")
    if classify(answer[0]) is ErrorType.AGENT_INCOMPATIBLE:
        raise _incompatible(spec, f"{place.executable} does not start under what is there to run it: {last[:300]}")
    return AgentVersion(warnings=(f"the version of {spec.name} could not be found: {last[:300]}",))


def _package(executable: str, names: tuple[str, ...]) -> AgentVersion | None:
    """Return what the npm package says in which a program lies, if it is one of those. Blocking."""
    folder = os.path.dirname(os.path.realpath(executable))
    for _ in range(_LEVELS if names else 0):
        try:
            with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError):
            document = None
        found = _described(document, names)
        if found is not None:
            return found
        folder = os.path.dirname(folder)
    return None


def _described(document: object, names: tuple[str, ...]) -> AgentVersion | None:
    match document:
        case {"name": str(name), "version": str(text)} if name in names:
            version = parse_version(text)
        case _:
            return None
    match document:
        case {"engines": {"node": str(engine)}}:
            return AgentVersion(version, engine=_range_or_none(engine))
        case _:
            return AgentVersion(version)


def _range_or_none(text: str) -> VersionRange | None:
    """Read what npm calls a range; of its many forms only bounds are understood, the others say nothing."""
    try:
        return parse_range(text)
    except ValueError:
        return None


def _is_run_by(executable: str, runtime: str) -> bool:
    """Say whether a program is a script of that runtime; a binary brings its own. Blocking."""
    try:
        with open(executable, "rb") as file:
            first = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    except OSError:
        return False
    return first.startswith(b"#!") and runtime.encode() in first


def _runtime_program(spec: AgentSpec, runtime: Runtime, place: Place) -> str:
    path, home = place.env.get("PATH", ""), place.env.get("HOME", "/")
    tried = candidates(runtime.argv[0], path=path, home=home, folder=place.cwd)
    # `#!/usr/bin/env node` looks on the PATH alone, so nothing else is asked.
    on_path = [each for each in tried if os.path.dirname(each) in path.split(os.pathsep)]
    for each in on_path:
        if os.access(each, os.X_OK):
            return each
    raise CannotRunError(
        ErrorType.AGENT_NOT_FOUND,
        f"{spec.name} is run by {runtime.name}, which was not found; tried {', '.join(on_path) or 'nothing'}",
        hint=f"install {runtime.name}, or put it on the daemon's PATH",
    )


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return (path, 0, 0)
    return (path, found.st_mtime_ns, found.st_ino)
