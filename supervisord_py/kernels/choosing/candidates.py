"""In which order interpreters are thought of. Pure: nothing is looked up here, so nobody's environment serves others.

Law: the order follows from the request alone: what the caller named, what the settings name, what the caller has
activated, what lies in the working directory, the managed environment, PATH. The daemon's own VIRTUAL_ENV and
CONDA_PREFIX are not in it: they say how the daemon was started, not what a project wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.process.child_environment import DEFAULT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MANAGED = "managed"
"""The word by which a request asks for the managed environment."""


class Source(StrEnum):
    """Where a candidate comes from, in the words that people are shown."""

    REQUEST = "request"
    SETTING = "kernels.python"
    KERNELSPEC = "kernelspec"
    VIRTUAL_ENV = "VIRTUAL_ENV"
    CONDA_PREFIX = "CONDA_PREFIX"
    DOT_VENV = ".venv"
    VENV = "venv"
    MANAGED = "managed"
    PATH = "PATH"

    @property
    def decisive(self) -> bool:
        """Whether somebody named it: then nothing else is taken in its place."""
        return self in {Source.REQUEST, Source.SETTING, Source.KERNELSPEC}

    @property
    def environment(self) -> bool:
        """Whether it is the root of an environment that may well not be there."""
        return not self.decisive and self is not Source.PATH


@dataclass(frozen=True, slots=True)
class Candidate:
    """An interpreter to be tried.

    Attributes:
        source: See there.
        paths: Places, in order; the first that exists is it. Bare names were put together with PATH.
        root: Of the environment whose python it is; None where it is just a program. Of what was named, only the
            managed environment has one.
        name: Looked for on PATH; None where the places were said.
    """

    source: Source
    paths: tuple[str, ...]
    root: str | None = None
    name: str | None = None

    @property
    def shown(self) -> str:
        """How people are told of it before a place was found."""
        return self.name or self.paths[0]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the order depends on.

    Attributes:
        cwd: Real path of the working directory.
        environ: What the caller sent: VIRTUAL_ENV, CONDA_PREFIX, PATH.
        path: PATH where the caller sent none.
        request: Interpreter by the request: a path, a name, `managed`.
        setting: Interpreter by the settings, likewise.
        managed: Root of the managed environment; None where the settings turn it off.
        home: For `~`.
    """

    cwd: str
    environ: Mapping[str, str]
    path: str = DEFAULT_PATH
    request: str | None = None
    setting: str | None = None
    managed: str | None = None
    home: str = "/"


def candidates(around: Surroundings) -> tuple[Candidate, ...]:
    """Return the candidates in their order. What was named decides alone; else nothing is left out, nothing twice."""
    for source, named in ((Source.REQUEST, around.request), (Source.SETTING, around.setting)):
        if named is not None:
            return (_named(source, named, around),)
    seen: set[str] = set()
    found = []
    for each in _unnamed(around):
        if each.paths[0] not in seen:
            found.append(each)
            seen.update(each.paths[:1])
    return tuple(found)


def environments(around: Surroundings) -> tuple[Candidate, ...]:
    """Return only those that are environments: what shell cells in this directory have on their PATH, if it exists."""
    return tuple(each for each in _unnamed(around) if each.source.environment and each.source is not Source.MANAGED)


def _unnamed(around: Surroundings) -> Iterator[Candidate]:
    for source in (Source.VIRTUAL_ENV, Source.CONDA_PREFIX):
        root = around.environ.get(source.value, "")
        if root:
            yield _environment(source, _absolute(root, around))
    for source in (Source.DOT_VENV, Source.VENV):
        yield _environment(source, f"{around.cwd.rstrip('/')}/{source.value}")
    if around.managed is not None:
        yield _environment(Source.MANAGED, around.managed)
    for name in ("python3", "python"):
        yield Candidate(Source.PATH, _on_path(name, around), name=name)


def _environment(source: Source, root: str) -> Candidate:
    bare = root.rstrip("/") or "/"
    python = f"{bare}/bin/python"
    return Candidate(source, (python, f"{python}3"), root=bare)


def _named(source: Source, named: str, around: Surroundings) -> Candidate:
    if named == MANAGED and around.managed is not None:
        return _environment(source, around.managed)
    if named == "~" or named.startswith("~/") or "/" in named:
        path = _absolute(named, around).rstrip("/") or "/"
        return Candidate(source, (path, f"{path}/bin/python", f"{path}/bin/python3"))
    return Candidate(source, _on_path(named, around), name=named)


def _on_path(name: str, around: Surroundings) -> tuple[str, ...]:
    """Return where a program may be; entries of PATH that are relative are none that we follow."""
    entries = (around.environ.get("PATH") or around.path).split(":")
    places = dict.fromkeys(f"{entry.rstrip('/')}/{name}" for entry in entries if entry.startswith("/"))
    return tuple(places) or (f"/{name}",)


def _absolute(path: str, around: Surroundings) -> str:
    if path == "~" or path.startswith("~/"):
        return around.home.rstrip("/") + path[1:]
    return path if path.startswith("/") else f"{around.cwd.rstrip('/')}/{path}"
