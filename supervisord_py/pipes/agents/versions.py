"""Which version of an agent is this: `--version`, asked once for each file; and ranges of versions (`>=0.74,<2`).

An unknown version is a warning; one that cannot work is `agent_incompatible`, with both versions and the cure. Some
programs print their version on stderr: both streams are read.
"""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.pipes.agents.programs import Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.judging.classify import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.pipes.agents.programs import Ask
    from supervisord_py.pipes.agents.spec import AgentSpec

Version = tuple[int, ...]
PROBE_SECONDS = 30.0
"""`pi --version` was seen to take nine seconds on a busy machine."""

_NUMBER = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class VersionRange:
    """What a version must satisfy: all bounds. `text` is as it was written."""

    text: str
    bounds: tuple[tuple[str, Version], ...]

    def __contains__(self, version: Version) -> bool:
        return all(_OPERATORS[sign](_compare(version, bound), 0) for sign, bound in self.bounds)

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Version | None:
    """Return the first version number in what a program printed, or None: `v20.20.2`, `codex-cli 0.169.0`."""
    found = _NUMBER.search(text)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def version_text(version: Version) -> str:
    """Return `0.74.2`."""
    return ".".join(str(part) for part in version)


def parse_range(text: str) -> VersionRange:
    """Read a range.

    Raises:
        ValueError: It is none; the message says how one looks.
    """
    bounds = []
    for part in text.split(","):
        found = _BOUND.fullmatch(part.strip())
        if found is None:
            raise ValueError(f'{part.strip()!r} is no bound of a version; write for example ">=0.74,<2"')
        bounds.append((found[1], tuple(int(number) for number in found[2].split("."))))
    return VersionRange(text, tuple(bounds))


def _compare(one: Version, other: Version) -> int:
    """Return a negative number, 0 or a positive one; what is not said counts as 0."""
    for mine, its in zip_longest(one, other, fillvalue=0):
        if mine != its:
            return mine - its
    return 0


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What was found. `version` None is unknown."""

    version: Version | None = None
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """`0.74.2`, or None."""
        return None if self.version is None else version_text(self.version)


class VersionCache:
    """Finds versions and remembers them while the file of the program stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[tuple[int, int], Version]] = {}

    async def probe(
        self, spec: AgentSpec, executable: str, cwd: Path, env: Mapping[str, str], ask: Ask
    ) -> AgentVersion:
        """Return the version of an agent's program, in the folder and environment that it would run with.

        Raises:
            CannotRunError: `agent_incompatible`.
        """
        rule = spec.version
        if not rule.argv:
            return AgentVersion()
        if not spec.argv or rule.argv[0] != spec.argv[0].words[0]:
            return AgentVersion(warnings=(f"nobody can say which version of {spec.name} this is",))
        command, stamp = (executable, *rule.argv[1:]), _stamp(executable)
        known = self._known.get(command)
        if known is not None and known[0] == stamp:
            return _judged(spec, known[1])
        try:
            answer = await ask(Program(command, str(cwd), env), seconds=PROBE_SECONDS)
            text, code = f"{answer.stdout}\n{answer.stderr}", answer.code
        except TimeoutError:
            text, code = f"it did not answer within {PROBE_SECONDS:g} s", None
        except PxError as error:
            text, code = error.detail, None
        version = parse_version(text) if code == 0 else None
        if version is None:
            return _unknown(spec, executable, text)
        self._known[command] = stamp, version
        return _judged(spec, version)


def _judged(spec: AgentSpec, version: Version) -> AgentVersion:
    rule, found = spec.version, AgentVersion(version)
    if rule.want is not None and version not in rule.want:
        raise _incompatible(spec, f"{spec.name} is {found.text}, and this adapter needs {rule.want}")
    if rule.tested is not None and version not in rule.tested:
        return replace(found, warnings=(f"{spec.name} is {found.text}; this adapter was tested with {rule.tested}",))
    return found


def _unknown(spec: AgentSpec, executable: str, text: str) -> AgentVersion:
    """Take an answer without a version: a crash under a wrong runtime, or a program that nobody knows."""
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")[:300]
    if classify(text) is ErrorType.AGENT_INCOMPATIBLE:
        raise _incompatible(spec, f"{executable} does not start under what is there to run it: {last}")
    return AgentVersion(warnings=(f"the version of {spec.name} could not be found: {last}",))


def _incompatible(spec: AgentSpec, detail: str) -> CannotRunError:
    return CannotRunError(ErrorType.AGENT_INCOMPATIBLE, detail, hint=spec.version.cure)


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)
