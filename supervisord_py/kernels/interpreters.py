"""Interpreters: in which order they are thought of, where they lie, and what they say of themselves.

The order follows from the request alone: what the caller named, what the settings name, what the caller has activated,
what lies in the working directory, the managed environment, PATH. The daemon's own VIRTUAL_ENV and CONDA_PREFIX are not
in it: they say how it was started. `candidates` is pure; what looks at the disk is to be called in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import msgspec

from supervisord_py.errors import InvalidInputError, StartFailedError
from supervisord_py.kernels.choice import DECISIVE, PROGRAMS, Attempt, CandidateVerdict, Source, shortened
from supervisord_py.kernels.environment import Activation
from supervisord_py.kernels.inside import self_report
from supervisord_py.kernels.installs import how_it_ended, is_complete, mark_of
from supervisord_py.process import program
from supervisord_py.process.child_environment import DEFAULT_PATH
from supervisord_py.zygote.main import stamped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.process.keeper_client import KeeperClient

    Stamps = dict[str, list[int] | None]

MANAGED = "managed"  # the word by which a request asks for the managed environment
PROJECT_MODULES = ".pxd/modules"
PROBE_SECONDS = 10.0
SHIM_SECONDS = 30.0
"""How long a program that only leads to another one (pyenv's) is believed: its answer depends on files nobody knows."""
REMEMBERED = 64
K = TypeVar("K")
V = TypeVar("V")
_VERSIONED = re.compile(r"python[0-9.]*")
_SCRIPT = str(Path(self_report.__file__).absolute())


class Candidate(msgspec.Struct, frozen=True):
    """An interpreter to be tried: the first of `paths` that exists. `root` is the environment's, where it is one's."""

    source: Source
    paths: tuple[str, ...]
    root: str | None = None
    name: str | None = None

    def places(self) -> list[str]:
        """Return what decides whether it is there: the files and folders that `find` looks at."""
        return [*self.paths, *(() if self.root is None else (self.root, str(mark_of(Path(self.root)))))]


def candidates(
    cwd: str,
    environ: Mapping[str, str],
    *,
    path: str = DEFAULT_PATH,
    request: str | None = None,
    setting: str | None = None,
    managed: str | None = None,
    home: str = "/",
) -> tuple[Candidate, ...]:
    """Return the candidates in their order. What was named decides alone; else nothing is left out, nothing twice.

    `environ` is what the caller sent (VIRTUAL_ENV, CONDA_PREFIX, PATH), `path` takes the place of its PATH; `request`
    and `setting` are a path, a name or `managed`; `managed` is the root of that environment where it may be used.
    """
    folders = (environ.get("PATH") or path).split(":")
    for source, named in ((Source.REQUEST, request), (Source.SETTING, setting)):
        if named is None:
            continue
        if named == MANAGED and managed is not None:
            return (_in_environment(source, managed),)
        if "/" in named or named == "~":
            place = _absolute(named, cwd, home).rstrip("/") or "/"
            return (Candidate(source, (place, f"{place}/bin/python", f"{place}/bin/python3")),)
        return (_on_path(source, named, folders),)
    roots = {each: environ.get(each.value) for each in (Source.VIRTUAL_ENV, Source.CONDA_PREFIX)}
    roots |= {Source.DOT_VENV: ".venv", Source.VENV: "venv", Source.MANAGED: managed}
    found = [_in_environment(source, _absolute(root, cwd, home)) for source, root in roots.items() if root]
    found += [_on_path(Source.PATH, name, folders) for name in ("python3", "python")]
    firsts: dict[str, Candidate] = {}
    for each in found:
        firsts.setdefault(each.paths[0], each)
    return tuple(firsts.values())


def _absolute(place: str, cwd: str, home: str) -> str:
    if place == "~" or place.startswith("~/"):
        return home.rstrip("/") + place[1:]
    return place if place.startswith("/") else f"{cwd.rstrip('/')}/{place}"


def _in_environment(source: Source, root: str) -> Candidate:
    bare = root.rstrip("/") or "/"
    return Candidate(source, (f"{bare}/bin/python", f"{bare}/bin/python3"), root=bare)


def _on_path(source: Source, name: str, folders: list[str]) -> Candidate:
    found = dict.fromkeys(f"{folder.rstrip('/')}/{name}" for folder in folders if folder.startswith("/"))
    return Candidate(source, tuple(found) or (f"/{name}",), name=name)


# -- what lies on disk: call it in a thread ----------------------------------------------------------------------------


def real_cwd(cwd: str | None, home: str) -> str:
    """Return the real path of a working directory; None is the home directory. Raises InvalidInputError."""
    wanted = home if cwd is None else cwd
    trouble, real = None, "" if "\0" in wanted else os.path.realpath(wanted)
    if not wanted.startswith("/") or "\0" in wanted:
        trouble = f"is not an absolute path: {shortened(repr(wanted))}"
    elif not os.path.exists(wanted):
        trouble = f"does not exist: {shortened(wanted)}"
    elif not os.path.isdir(wanted):
        trouble = f"is not a directory: {wanted}"
    elif not os.access(wanted, os.X_OK):
        trouble = f"cannot be entered: {wanted}"
    elif any("\ud800" <= char <= "\udfff" for char in real):
        trouble = f"has a name that is no UTF-8: {os.fsencode(real)!r}"
    if trouble is not None:
        raise refused("/cwd", f"Working directory {trouble}", "name a directory that exists, with --cwd")
    return real


def refused(pointer: str, message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(message, hint=hint, errors=[{"pointer": pointer, "message": message}])


def is_trusted(path: str, cwd: str) -> bool:
    """Say whether what lies in a working directory may be run because it lies there.

    It may when it belongs to us, to root, or to whom the directory belongs; what a stranger put into a directory that
    is open to all (`/tmp/.venv`) may not: it would run as us. What is not there is not mistrusted.
    """
    try:
        return os.stat(path).st_uid in {os.geteuid(), 0, os.stat(cwd).st_uid}
    except OSError:
        return True


def module_folders(user: str, cwd: str) -> tuple[str, ...]:
    """Return the folders of modules that exist: the user's, then the project's, which overrides by name."""
    project = f"{cwd.rstrip('/')}/{PROJECT_MODULES}"
    trusted = (user, project) if is_trusted(project, cwd) else (user,)
    return tuple(folder for folder in trusted if os.path.isdir(folder))


def find_shell(path: str) -> str | None:
    """Return the bash on PATH, or where systems have it; None where there is none."""
    return shutil.which("bash", path=path) or shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin")


def session_path(python: str) -> str:
    """Return an interpreter's path as sessions are keyed by it: its directory made real, and one name of its names.

    The last part is not followed: a virtual environment is known by where its python lies. `python3` beside a `python`
    that is the same file is that `python`: who has activated an environment and who finds it on PATH meet.
    """
    path = Path(python)
    path = path.parent.resolve() / path.name
    usual = path.with_name("python")
    try:
        same = _VERSIONED.fullmatch(path.name) is not None and usual.samefile(path)
    except OSError:
        same = False
    return str(usual if same else path)


def activation_of(python: str) -> Activation:
    folder = Path(python).parent
    marks = {"pyvenv.cfg": "VIRTUAL_ENV", "conda-meta": "CONDA_PREFIX"}
    mark = next((marks[sign] for sign in marks if (folder.parent / sign).exists()), None)
    return Activation(str(folder), str(folder.parent), mark)


def find(candidate: Candidate, cwd: str) -> str | Attempt:
    root, source = candidate.root, candidate.source
    verdict, detail = CandidateVerdict.MISSING, "is not on PATH" if candidate.name else "is not there"
    if root is not None and (source is Source.MANAGED or source in DECISIVE) and not is_complete(Path(root), "bin"):
        detail = "is half built" if os.path.isdir(root) else "is not built"
    elif root is not None and source in {Source.DOT_VENV, Source.VENV} and not is_trusted(root, cwd):
        verdict, detail = CandidateVerdict.UNUSABLE, "belongs to somebody else than its directory; name it to use it"
    else:
        if root is not None and os.path.isdir(root):
            detail = "is not there: the environment has no bin/python"
        for path in reversed(candidate.paths):
            if os.path.isfile(path):
                verdict, detail = CandidateVerdict.UNUSABLE, "is not executable"
            elif os.path.islink(path):
                verdict, detail = CandidateVerdict.MISSING, f"is a link to {os.readlink(path)}, which is not there"
        usable = (path for path in candidate.paths if os.path.isfile(path) and os.access(path, os.X_OK))
        if (found := next(usable, None)) is not None:
            return found
    return Attempt(source, shortened(candidate.name or candidate.paths[0], 1024), verdict, detail)


# -- what they say of themselves ---------------------------------------------------------------------------------------


class Interpreter(msgspec.Struct, frozen=True):
    """What an interpreter said of itself (`inside/self_report.py`); `path` is where it was found."""

    executable: str
    version: tuple[int, ...]
    ipykernel: str | None
    lacking: tuple[str, ...]
    tag: str  # names its overlay
    pip: bool
    packages: tuple[str, ...]
    path: str = ""
    until: float = float("inf")  # monotonic: how long that is believed while the files are as they were

    @property
    def is_shim(self) -> bool:
        """Whether the program that was found is only a way to another one."""
        return os.path.realpath(self.path) != os.path.realpath(self.executable)

    def stamps(self) -> Stamps:
        """Return what differs when a file has changed that the answer depends on."""
        settings = str(Path(self.executable).parent.with_name("pyvenv.cfg"))
        return stamped((self.path, os.path.realpath(self.path), settings, *self.packages))


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Put it among what is known; the oldest goes for it."""
    while len(known) >= REMEMBERED:
        del known[next(iter(known))]
    known[key] = value


def read_report(path: str, text: str) -> Interpreter | str:
    """Turn the report among what an interpreter printed into a value: start-up files may print, too."""
    lines = [line for line in text.splitlines() if line.startswith(self_report.MARK)]
    if not lines:
        return "exits with 0 without an answer"
    try:
        said = msgspec.json.decode(lines[-1].removeprefix(self_report.MARK), type=Interpreter)
    except msgspec.DecodeError:
        return "gives an answer that makes no sense"
    return msgspec.structs.replace(said, path=path, executable=said.executable or path)


class InterpreterProbe:
    """Asks interpreters what they are: each is run once, and what it said holds until its files change.

    A failure is never remembered: the next request asks a dead interpreter again.
    """

    def __init__(self, client: KeeperClient) -> None:
        self._client = client
        self._answers: dict[tuple[str, str], tuple[Interpreter, Stamps]] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, path: str, cwd: str, env: Callable[[], Mapping[str, str]]) -> Interpreter | str:
        """Return what an interpreter is, or why it cannot be used; who asks meanwhile waits for the same answer.

        `cwd` matters to shims.
        """
        lock = self._asking.setdefault(path, asyncio.Lock())
        async with lock:
            for key in ((path, ""), (path, cwd)):
                said, seen = self._answers.get(key, (None, {}))
                if said is None or time.monotonic() >= said.until:
                    continue
                if await asyncio.to_thread(said.stamps) == seen:
                    return said
            answer = await self._run(path, cwd, env())
            if isinstance(answer, Interpreter):
                key = (path, "")
                if answer.is_shim:
                    key, answer = (path, cwd), msgspec.structs.replace(answer, until=time.monotonic() + SHIM_SECONDS)
                remember(self._answers, key, (answer, await asyncio.to_thread(answer.stamps)))
            return answer

    async def _run(self, path: str, cwd: str, env: Mapping[str, str]) -> Interpreter | str:
        name = f"{PROGRAMS}ask-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
        argv = (path, "-I", _SCRIPT)
        try:
            ended = await program.run(self._client, argv, name=name, cwd=cwd, env=env, timeout=PROBE_SECONDS)
        except TimeoutError:
            return f"does not answer within {PROBE_SECONDS:g} s"
        except StartFailedError as error:
            return f"cannot be started: {error.detail}"
        return read_report(path, ended.stdout) if ended.code == 0 else how_it_ended(ended)
