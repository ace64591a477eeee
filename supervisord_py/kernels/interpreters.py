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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from supervisord_py.errors import InvalidInputError, StartFailedError
from supervisord_py.kernels.choice import DECISIVE, PROGRAMS, Attempt, CandidateVerdict, Source, shortened
from supervisord_py.kernels.environment import Activation
from supervisord_py.kernels.inside import self_report
from supervisord_py.kernels.installs import how_it_ended, is_complete
from supervisord_py.process import program
from supervisord_py.process.child_environment import DEFAULT_PATH
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.zygote.main import stamped

MANAGED = "managed"  # the word by which a request asks for the managed environment
PROJECT_MODULES = ".pxd/modules"
PROBE_SECONDS = 10.0
SHIM_SECONDS = 30.0
"""How long a program that only leads to another one (pyenv's) is believed: its answer depends on files nobody knows."""
_VERSIONED = re.compile(r"python[0-9.]*")
_SCRIPT = str(Path(self_report.__file__).absolute())


class Candidate(msgspec.Struct, frozen=True):
    """An interpreter to be tried: the first of `paths` that exists. `root` is the environment's, where it is one's."""

    source: Source
    paths: tuple[str, ...]
    root: str | None = None
    name: str | None = None  # looked for on PATH


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

    def absolute(place: str) -> str:
        if place == "~" or place.startswith("~/"):
            return home.rstrip("/") + place[1:]
        return place if place.startswith("/") else f"{cwd.rstrip('/')}/{place}"

    def in_environment(source: Source, root: str) -> Candidate:
        bare = absolute(root).rstrip("/") or "/"
        return Candidate(source, (f"{bare}/bin/python", f"{bare}/bin/python3"), root=bare)

    def on_path(source: Source, name: str) -> Candidate:
        folders = (environ.get("PATH") or path).split(":")
        found = dict.fromkeys(f"{folder.rstrip('/')}/{name}" for folder in folders if folder.startswith("/"))
        return Candidate(source, tuple(found) or (f"/{name}",), name=name)

    source, named = (Source.SETTING, setting) if request is None else (Source.REQUEST, request)
    if named == MANAGED and managed is not None:
        return (in_environment(source, managed),)
    if named is not None and ("/" in named or named == "~"):
        place = absolute(named).rstrip("/") or "/"
        return (Candidate(source, (place, f"{place}/bin/python", f"{place}/bin/python3")),)
    if named is not None:
        return (on_path(source, named),)
    roots = {
        Source.VIRTUAL_ENV: environ.get("VIRTUAL_ENV"),
        Source.CONDA_PREFIX: environ.get("CONDA_PREFIX"),
        Source.DOT_VENV: ".venv",
        Source.VENV: "venv",
        Source.MANAGED: managed,
    }
    found = [in_environment(source, root) for source, root in roots.items() if root]
    found += [on_path(Source.PATH, name) for name in ("python3", "python")]
    firsts: dict[str, Candidate] = {}
    for each in found:
        firsts.setdefault(each.paths[0], each)
    return tuple(firsts.values())


# -- what lies on disk: call it in a thread ----------------------------------------------------------------------------


def real_cwd(cwd: str | None, home: str) -> str:
    """Return the real path of a working directory; None is the home directory. Raises InvalidInputError."""
    wanted = home if cwd is None else cwd
    trouble, real = None, "" if "\0" in wanted else os.path.realpath(wanted)
    if not wanted.startswith("/") or "\0" in wanted:
        trouble = f"is not an absolute path: {shortened(repr(wanted))}"
    elif not os.path.isdir(wanted):
        trouble = f"does not exist, or is no directory: {shortened(wanted)}"
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


def find(candidate: Candidate, cwd: str) -> Attempt:
    """Look where a candidate would be: NOT_NEEDED is one that is there and can be asked."""
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
            return Attempt(source, found)
    return Attempt(source, shortened(candidate.name or candidate.paths[0], 1024), verdict, detail)


# -- what they say of themselves ---------------------------------------------------------------------------------------


class Interpreter(msgspec.Struct, frozen=True):
    """What an interpreter said of itself (`inside/self_report.py`)."""

    executable: str
    version: tuple[int, ...]
    lacking: tuple[str, ...]
    tag: str  # names its overlay
    pip: bool
    packages: tuple[str, ...]
    is_shim: bool = False  # the program that was found is only a way to another one
    until: float = float("inf")  # monotonic: how long that is believed while the files are as they were
    stamps: dict[str, list[int] | None] = {}  # what differs when a file has changed that the answer depends on


async def ask(client: KeeperClient, path: str, cwd: str, env: Mapping[str, str]) -> Interpreter | str:
    """Run an interpreter to learn what it is, in the folder that a shim may depend on; or say why it cannot be used."""
    name = f"{PROGRAMS}ask-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    argv = (path, "-I", _SCRIPT)
    try:
        ended = await program.run(client, argv, name=name, cwd=cwd, env=env, timeout=PROBE_SECONDS)
    except TimeoutError:
        return f"does not answer within {PROBE_SECONDS:g} s"
    except StartFailedError as error:
        return f"cannot be started: {error.detail}"
    if ended.code != 0:
        return how_it_ended(ended)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(self_report.MARK)]
    if not lines:  # start-up files may print, too
        return "exits with 0 without an answer"
    try:
        said = msgspec.json.decode(lines[-1].removeprefix(self_report.MARK), type=Interpreter)
    except msgspec.DecodeError:
        return "gives an answer that makes no sense"

    def completed() -> Interpreter:
        executable, real = said.executable or path, os.path.realpath(path)
        is_shim = real != os.path.realpath(executable)
        until = time.monotonic() + SHIM_SECONDS if is_shim else said.until
        settings = str(Path(executable).parent.with_name("pyvenv.cfg"))
        known: dict[str, Any] = {"stamps": stamped((path, real, settings, *said.packages)), "until": until}
        return msgspec.structs.replace(said, executable=executable, is_shim=is_shim, **known)

    return await asyncio.to_thread(completed)
