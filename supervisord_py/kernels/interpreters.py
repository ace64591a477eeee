"""Interpreters: in which order they are thought of, where they lie, what they say of themselves,
and what is installed for them: overlays with ipykernel, and the managed environment; with uv, else
pip.

The order follows from the request alone: what the caller named, what the settings name, what the
caller has activated, what lies in the working directory, the managed environment, PATH. The
daemon's own VIRTUAL_ENV and CONDA_PREFIX are not in it: they say how it was started. `candidates`
is pure; what looks at the disk is to be called in a thread.

An install is whole or not there: it is made in place beside a mark, and counts when the mark is
gone; what was killed half-way is cleared away by the next one. An install goes on when the call
that asked for it gives up.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from supervisord_py.errors import InvalidInputError, ShuttingDownError, StartFailedError
from supervisord_py.kernels.environment import Activation
from supervisord_py.kernels.inside import self_report
from supervisord_py.kernels.session import (
    DECISIVE,
    PROGRAMS,
    Attempt,
    BackendName,
    CandidateVerdict,
    Source,
)
from supervisord_py.process import program
from supervisord_py.process.child_environment import DEFAULT_PATH
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.zygote.main import stamp

MANAGED = "managed"  # the word by which a request asks for the managed environment
PROBE_SECONDS = 10.0
# kernels that we are tested with; 6.29 is the last one for Python 3.8
REQUIREMENT = "ipykernel>=6.29,<8"
# a person's own settings pass to an install, not to kernels
INSTALLER_SETTINGS = ("UV_", "PIP_", "NETRC")
INSTALL_SECONDS = 1800.0
_VERSIONED = re.compile(r"python[0-9.]*")
_SCRIPT = str(Path(self_report.__file__).absolute())


class Candidate(msgspec.Struct, frozen=True):
    """An interpreter to be tried: the first of `paths` that exists.

    `root` is the environment's, where it is one's.
    """

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
    """Return the candidates in their order. What was named decides alone; else nothing is left out,
    nothing twice.

    `path` takes the place of the caller's PATH; `request` and `setting` are a path, a name or
    `managed`, of which `managed` is the root where it may be used.
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
        found = dict.fromkeys(
            f"{folder.rstrip('/')}/{name}" for folder in folders if folder.startswith("/")
        )
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
    return tuple(
        each
        for at, each in enumerate(found)
        if each.paths[0] not in {it.paths[0] for it in found[:at]}
    )


def real_cwd(cwd: str | None, home: str) -> str:
    """Return the real path of a working directory; None is the home directory.

    Raises InvalidInputError.
    """
    wanted = home if cwd is None else cwd
    if (
        wanted.startswith("/")
        and "\0" not in wanted
        and os.path.isdir(wanted)
        and os.access(wanted, os.X_OK)
    ):
        real = os.path.realpath(wanted)
        if not any("\ud800" <= char <= "\udfff" for char in real):
            return real
    message = (
        f"Working directory {repr(wanted)[:200]} does not exist, cannot be entered, or is no "
        "absolute path."
    )
    raise InvalidInputError.at("/cwd", message, "name a directory that exists, with --cwd")


def is_trusted(path: str, cwd: str) -> bool:
    """Say whether what lies in a working directory may be run because it lies there; what is not
    there may.

    It belongs to us, to root, or to whom the directory belongs. What a stranger put into a
    directory that is open to all (`/tmp/.venv`) would run as us.
    """
    try:
        return os.stat(path).st_uid in {os.geteuid(), 0, os.stat(cwd).st_uid}
    except OSError:
        return True


def module_folders(user: str, cwd: str) -> tuple[str, ...]:
    """Return the folders of modules that exist: the user's, then the project's, which overrides
    by name.
    """
    project = f"{cwd.rstrip('/')}/.pxd/modules"
    trusted = (user, project) if is_trusted(project, cwd) else (user,)
    return tuple(folder for folder in trusted if os.path.isdir(folder))


def find_shell(path: str) -> str | None:
    return shutil.which("bash", path=path) or shutil.which(
        "bash", path="/bin:/usr/bin:/usr/local/bin"
    )


def session_path(python: str) -> str:
    """Return an interpreter's path as sessions are keyed by it: its directory made real, and one
    name of its names.

    A virtual environment is known by where its python lies: the last part is not followed.
    `python3` beside a `python` that is the same file is that: who has activated an environment and
    who finds it on PATH meet.
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
    verdict, detail = (
        CandidateVerdict.MISSING,
        "is not on PATH" if candidate.name else "is not there",
    )
    if (
        root is not None
        and (source is Source.MANAGED or source in DECISIVE)
        and not is_complete(Path(root), "bin")
    ):
        detail = "is not built"
    elif (
        root is not None and source in {Source.DOT_VENV, Source.VENV} and not is_trusted(root, cwd)
    ):
        verdict, detail = (
            CandidateVerdict.UNUSABLE,
            "belongs to somebody else than its directory; name it to use it",
        )
    else:
        for path in reversed(candidate.paths):
            if os.path.isfile(path):
                verdict, detail = CandidateVerdict.UNUSABLE, "is not executable"
            elif os.path.islink(path):
                verdict, detail = (
                    CandidateVerdict.MISSING,
                    f"is a link to {os.readlink(path)}, which is not there",
                )
        usable = (
            path for path in candidate.paths if os.path.isfile(path) and os.access(path, os.X_OK)
        )
        if (found := next(usable, None)) is not None:
            return Attempt(source, found)
    return Attempt(source, (candidate.name or candidate.paths[0])[:1024], verdict, detail)


class Interpreter(msgspec.Struct, frozen=True):
    executable: str
    version: tuple[int, ...]
    lacking: tuple[str, ...]
    tag: str  # names its overlay
    pip: bool
    packages: tuple[str, ...]
    is_shim: bool = False  # the program that was found is only a way to another one (pyenv's)
    files: tuple[str, ...] = ()  # that the answer depends on
    stamp: int = 0  # of those, as they were


async def ask(
    client: KeeperClient, path: str, cwd: str, env: Mapping[str, str]
) -> Interpreter | str:
    """Run an interpreter to learn what it is, in the folder that a shim may depend on; or say
    why it cannot be used.
    """
    name = f"{PROGRAMS}ask-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    argv = (path, "-I", _SCRIPT)
    try:
        ended = await program.run(client, argv, name=name, cwd=cwd, env=env, timeout=PROBE_SECONDS)
    except TimeoutError:
        return f"does not answer within {PROBE_SECONDS:g} s"
    except StartFailedError as error:
        return f"cannot be started: {error.detail}"
    _, mark, told = ended.stdout.rpartition(self_report.MARK)  # start-up files may print, too
    if ended.code != 0 or not mark:
        return how_it_ended(ended)
    try:
        said = msgspec.json.decode(told.splitlines()[0], type=Interpreter)
    except msgspec.DecodeError:
        return "gives an answer that makes no sense"

    def completed() -> Interpreter:
        executable, real = said.executable or path, os.path.realpath(path)
        files = path, real, str(Path(executable).parent.with_name("pyvenv.cfg")), *said.packages
        is_shim = real != os.path.realpath(executable)
        return msgspec.structs.replace(
            said, executable=executable, is_shim=is_shim, files=files, stamp=stamp(files)
        )

    return await asyncio.to_thread(completed)


# -- what is installed for them --------------------------------------------------------------------


class Install(msgspec.Struct, frozen=True):
    """Something that can be installed into the folder `target`; `proof` must be there in it."""

    target: Path
    what: str  # in words for people
    short: str  # the same in a word or two
    steps: tuple[tuple[str, ...], ...]
    proof: str
    by_hand: str  # the command that a person can run instead

    @property
    def log(self) -> Path:
        return self.target.with_name(f"{self.target.name}.log")


def find_uv(path: str) -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=path)


def overlay_for(said: Interpreter, folder: Path, uv: str | None) -> Install | None:
    if uv is None and not said.pip:
        return None
    step = (*_pip_install(said.executable, uv), "--target", str(folder), REQUIREMENT)
    what = f"ipykernel for {said.executable}"
    return Install(folder, what, "ipykernel", (step,), "ipykernel", adding_ipykernel(said, uv))


def managed_in(root: Path, uv: str | None) -> Install:
    program = (
        (sys.executable, "-m", "venv")
        if uv is None
        else (uv, "venv", "--seed", "--python", sys.executable)
    )
    steps = ((*program, str(root)), (*_pip_install(f"{root}/bin/python", uv), REQUIREMENT))
    by_hand = " && ".join(map(shlex.join, steps))
    return Install(
        root,
        f"the managed environment in {root}",
        "the managed environment",
        steps,
        "bin/python",
        by_hand,
    )


def adding_ipykernel(said: Interpreter, uv: str | None) -> str:
    python = said.executable
    if not said.pip and uv is not None:
        return shlex.join((uv, "pip", "install", "--python", python, "ipykernel"))
    command = shlex.join((python, "-m", "pip", "install", "ipykernel"))
    return command if said.pip else f"{shlex.join((python, '-m', 'ensurepip'))} && {command}"


def _pip_install(python: str, uv: str | None) -> tuple[str, ...]:
    if uv is not None:
        return (uv, "pip", "install", "--python", python, "--compile-bytecode")
    return (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")


def mark_of(target: Path) -> Path:
    return target.with_name(f".part-{target.name}")


def is_complete(target: Path, proof: str) -> bool:
    return (target / proof).exists() and not mark_of(target).exists()


_COLLECTED = re.compile(r"Collecting |Requirement already satisfied: ")  # pip, once a package
_RESOLVED = re.compile(r"Resolved (\d+) package")  # uv, once
_UNPACKING = re.compile(r"Installing collected packages: |Prepared \d+ package")


class Build:
    """One install under way: how far it is, for whoever waits for it or looks at it."""

    def __init__(self, install: Install) -> None:
        self.install = install
        self.began_at = time.time()  # Unix seconds
        self.has_begun = False  # False until it is clear that something has to be installed
        self.packages = 0  # that the installer has named so far
        self.is_unpacking = False
        self.task: asyncio.Task[None]
        self.watchers: dict[BuildWatcher, BuildPlace] = {}

    @property
    def is_over(self) -> bool:
        return self.task.done()

    @property
    def text(self) -> str:
        """Say what is done, for people: `installing ipykernel (once), 9 packages so far`."""
        doing = f"installing {self.install.short} (once)"
        count = f"{self.packages} package{'' if self.packages == 1 else 's'}"
        if self.is_unpacking and self.packages:
            return f"{doing}, unpacking {count}"
        if self.packages:
            return f"{doing}, {count} so far"
        return doing

    def hear(self, line: str) -> None:
        """Take a line that the installer printed."""
        before = self.text
        if _COLLECTED.match(line):
            self.packages += 1
        elif resolved := _RESOLVED.match(line):
            self.packages = int(resolved[1])
        elif _UNPACKING.match(line):
            self.is_unpacking = True
        if self.text != before:
            for watcher in tuple(self.watchers):
                watcher.report_progress(self)


class BuildWatcher:
    """Whoever waits for installs.

    `seconds` is how long it has waited; this one looks at nothing.
    """

    seconds = 0.0

    def say(self, text: str) -> None:
        """Take a sentence for people."""

    def on_build_started(self, build: Build, place: BuildPlace) -> None:
        """Take in that a build has started, now or before this watcher came.

        `build.task` is set.
        """

    def report_progress(self, build: Build) -> None:
        """Take in that `build.text` has changed."""


class BuildPlace(msgspec.Struct, frozen=True):
    """For which session something is built: the members of its key beside the name."""

    cwd: str
    interpreter: str
    backend: BackendName


class Installs:
    """Installs, each target once at a time; `close` ends them."""

    def __init__(self, client: KeeperClient) -> None:
        self._client = client
        self._running: dict[Path, Build] = {}

    async def ensure(
        self, install: Install, env: Mapping[str, str], watcher: BuildWatcher, place: BuildPlace
    ) -> None:
        """See to it that `install.target` is there, whole.

        Raises StartFailedError (its hint is a command).
        """
        build = self._running.get(install.target)
        if build is None:
            build = Build(install)
            self._running[install.target] = build
            build.watchers[watcher] = place
            build.task = asyncio.create_task(
                self._make(build, env), name=f"install {install.target}"
            )
            build.task.add_done_callback(lambda _: self._running.pop(install.target))
            # Perhaps nobody waits for it any more.
            build.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            build.watchers[watcher] = place
            if build.has_begun:
                watcher.say(f"{install.what} is being installed already; waiting for it")
                watcher.on_build_started(build, place)
        try:
            await asyncio.wait({build.task})
        finally:
            build.watchers.pop(watcher, None)
        if build.task.cancelled():
            raise ShuttingDownError(
                f"the installation of {install.what} was ended before it was finished"
            )
        build.task.result()

    async def close(self) -> None:
        tasks = tuple(build.task for build in self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, build: Build, env: Mapping[str, str]) -> None:
        install = build.install
        target = install.target
        if await asyncio.to_thread(is_complete, target, install.proof):
            return
        started = time.monotonic()
        build.has_begun = True
        for watcher, place in tuple(build.watchers.items()):
            watcher.say(f"installing {install.what} (once); output: {install.log}")
            watcher.on_build_started(build, place)
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark_of(target).touch(mode=0o600)
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.is_dir():  # what an earlier one left
                await asyncio.to_thread(shutil.rmtree, target)
            with install.log.open("w", encoding="utf-8", errors="replace") as written:

                def hear(line: str) -> None:
                    print(line, file=written, flush=True)
                    build.hear(line)

                for argv in install.steps:
                    ended = await program.run(
                        self._client,
                        argv,
                        name=f"{PROGRAMS}install-{target.name}",
                        cwd=str(target.parent),
                        env=env,
                        timeout=INSTALL_SECONDS,
                        on_line=hear,
                    )
                    if ended.code != 0:
                        raise StartFailedError(f"{Path(argv[0]).name} {how_it_ended(ended)}")
            mark_of(target).unlink()
        except (OSError, StartFailedError) as error:
            why = (
                f"it took longer than {INSTALL_SECONDS:g} s"
                if isinstance(error, TimeoutError)
                else str(error)
            )
            detail, about = (
                f"cannot install {install.what}: {why}",
                {"reason": "spawn_failed", "stage": "build"},
            )
            raise StartFailedError(detail, hint=install.by_hand, **about) from error
        for watcher in tuple(build.watchers):
            watcher.say(f"installed {install.what} in {time.monotonic() - started:.1f} s")


def how_it_ended(ended: program.Completed) -> str:
    return f"{ended.words}: {ended.last_line}" if ended.last_line else ended.words
