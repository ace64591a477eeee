"""`pxctl tools sync`: build a tool's `.venv` from what it says it needs, with uv where there is one, else venv + pip.

The needs are `requirements.txt`, else `pyproject.toml` (its dependencies, not the project; `uv.lock` beside it counts
where there is uv), else the PEP 723 metadata in the entrypoint. The new environment is built in `.venv.new` and takes
the place of the old one by a rename when it is complete, so a build that fails, is cancelled or killed leaves the old
one. The builders run as children of the keeper, unit `sync:NAME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from supervisord_py.config.documents import (
    DocumentError,
    Problem,
    config_error,
    convert,
    parse_toml,
    read_bounded,
    read_document,
)
from supervisord_py.errors import ConflictError, PxError
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment, passed
from supervisord_py.process.program import Completed
from supervisord_py.tools.manifest import VENV

if TYPE_CHECKING:
    from supervisord_py.config.documents import Document
    from supervisord_py.tools.config import ToolDefaults
    from supervisord_py.tools.manifest import ToolSpec

REQUIREMENTS, LOCK, PYPROJECT, SCRIPT = "requirements.txt", "uv.lock", "pyproject.toml", "PEP 723 metadata"
NEW, OLD = f"{VENV}.new", f"{VENV}.old"
TAIL_LINES = 30
GRACE_SECONDS = 5.0
MAX_PACKAGES = 500
_LINE_END = re.compile(rb"\r\n|\n|\r")
_SCRIPT_BLOCK = re.compile(r"^# /// script$\n(?P<content>(?:^#(?: .*)?$\n)*?)^# ///$", re.MULTILINE)
_INSTALLER_SETTINGS = ("UV_*", "PIP_*", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to the build, not to the tool."""
_NEEDS_FILE = ".px-requirements.txt"
_CHECK_PYTHON = """import platform, sys
from pip._vendor.packaging.specifiers import SpecifierSet
found, wanted = platform.python_version(), sys.argv[1]
if found not in SpecifierSet(wanted):
    sys.exit(f"this is Python {found}, the tool requires {wanted}: install uv, which finds one, or set tools.python")
"""
"""Told by the pip that a new environment has; uv finds an interpreter that fits by itself."""
_under_way: set[Path] = set()


class SyncFailedError(PxError):
    """A `.venv` could not be built. `output_tail` holds the last lines of the builder."""

    kind = "sync_failed"
    title = "The virtual environment could not be built"


# -- what is needed ----------------------------------------------------------------------------------------------


class Needs(NamedTuple):
    """What to install. `requirements` are lines for an installer; `python` is `requires-python`, "" for any."""

    source: str
    requirements: tuple[str, ...] = ()
    python: str = ""


class Project(msgspec.Struct, frozen=True, rename="kebab"):
    """What counts of `[project]` in a pyproject.toml, and of PEP 723 metadata."""

    dependencies: list[str] = []
    requires_python: str = ""


def read_project(document: Document, *at: str) -> tuple[Project, list[Problem]]:
    """Read a table of the document, empty where there is none, or say what is wrong."""
    value = document.value if not at else document.value.get(at[0], {})
    read, problems = convert(document, Project, at, value=value)
    for index, each in enumerate(read.dependencies if read else ()):
        if not each.strip() or each.lstrip().startswith("-") or "\n" in each or "\r" in each:  # no option of installers
            problems.append(document.problem((*at, "dependencies", index), f"{each[:100]!r} is no dependency"))
    return read or Project(), problems


def needs_of(spec: ToolSpec) -> Needs | None:
    """Return what the tool asks for, or None when it asks for nothing at all.

    Raises ConfigError: the file that should say so is broken.
    """
    path, source = spec.folder / PYPROJECT, ""
    project, problems = Project(), list[Problem]()
    try:
        if path.is_file():
            source = LOCK if (spec.folder / LOCK).is_file() else PYPROJECT
            project, problems = read_project(read_document(path), "project")
        elif spec.command is None:
            path = spec.folder / spec.entrypoint
            text = read_bounded(path).decode("utf-8", "replace").replace("\r\n", "\n")
            if block := _SCRIPT_BLOCK.search(f"{text}\n"):
                source = SCRIPT
                lines = "".join(f"{line[2:]}\n" for line in block["content"].splitlines())
                project, problems = read_project(parse_toml(lines, str(path)))
    except DocumentError as error:
        problems = [error.problem]
    except OSError as error:
        problems = [Problem(message=error.strerror or str(error), file=str(path))]
    if problems:
        raise config_error(problems, spec.unit, f"mend the file, then: pxctl tools sync {spec.name}")
    if (spec.folder / REQUIREMENTS).is_file():
        return Needs(REQUIREMENTS, (), project.requires_python)
    return Needs(source, tuple(project.dependencies), project.requires_python) if source else None


def lacks_bytecode(venv: Path) -> bool:
    """Say whether any package at the top of site-packages has no compiled `__init__`: every cold start compiles it."""
    packages = (each.parent for each in sorted(venv.glob("lib/python*/site-packages/*/__init__.py")))
    looked_at = (next(each.glob("__pycache__/__init__.*.pyc"), None) for each in islice(packages, MAX_PACKAGES))
    return any(found is None for found in looked_at)


# -- building ----------------------------------------------------------------------------------------------------


Run = Callable[..., Coroutine[Any, Any, Completed]]  # `process.program.run` without its client


class Builder:
    """Builds the environments of tools.

    Args:
        run: Runs the steps.
        source: The daemon's environment; what the settings allow and the installers' own settings pass.
        defaults: The settings of tools; `python` is the base interpreter, None the daemon's.
        uv: Path of uv; None builds with venv and pip.
    """

    def __init__(self, run: Run, source: Mapping[str, str], defaults: ToolDefaults, uv: str | None = None) -> None:
        self._run = run
        self._source = source
        self._defaults = defaults
        self._uv = uv

    async def sync(self, spec: ToolSpec) -> AsyncGenerator[str, None]:
        """Build the `.venv` of a tool and yield progress, a line at a time.

        Raises:
            SyncFailedError: A step failed; the environment that was there before is there still.
            StartFailedError: A builder could not be started at all.
            ConfigError: The file with the dependencies is broken.
            ConflictError: The tool is being synced already.
        """
        needs = needs_of(spec)
        if spec.python is not None:
            yield f"nothing to build: {spec.unit} names its own interpreter, {spec.python}"
        elif needs is None:
            yield f"nothing to build: {spec.unit} has no {REQUIREMENTS}, no {PYPROJECT} and no {SCRIPT}"
        else:
            async with contextlib.aclosing(_lines(partial(self._build, spec, needs))) as lines:
                async for line in lines:
                    yield line

    async def compile_bytecode(self, spec: ToolSpec) -> None:
        """Compile what the `.venv` of a tool holds; what does not compile stays as it is.

        Raises StartFailedError: the interpreter could not be started.
        """
        await self._step(spec, spec.folder / VENV, _compilation(spec.folder / VENV))

    async def _build(self, spec: ToolSpec, needs: Needs, say: Callable[[str], None]) -> None:
        """Run all steps, then put the new environment into its place."""
        if spec.folder in _under_way:
            raise ConflictError(f"{spec.unit} is being synced already", unit=spec.unit)
        _under_way.add(spec.folder)
        started, final, venv = time.monotonic(), spec.folder / VENV, spec.folder / NEW
        tail: deque[str] = deque(maxlen=TAIL_LINES)

        def on_line(line: str) -> None:
            tail.append(line)
            say(line)

        try:
            say(f"building {final} from {needs.source} with {'uv' if self._uv else 'venv and pip'}")
            await asyncio.to_thread(_clear, spec.folder)
            venv.mkdir(mode=0o700)
            for argv in self._steps(venv, needs):
                ended = await self._step(spec, venv, argv, on_line)
                if ended.code != 0 and argv != _compilation(venv):
                    raise _failure(spec, needs, argv, ended.words, tail)
            await asyncio.to_thread(_take_place, venv, final)
        finally:
            await asyncio.to_thread(_clear, spec.folder)
            _under_way.discard(spec.folder)
        say(f"built {final} in {time.monotonic() - started:.1f} s")

    def _steps(self, venv: Path, needs: Needs) -> list[tuple[str, ...]]:
        python, uv, base = str(venv / "bin" / "python"), self._uv, self._defaults.python or sys.executable
        if uv is not None:
            steps: list[tuple[str, ...]] = [
                (uv, "venv", "--allow-existing", "--python", needs.python or base, str(venv))
            ]
            if needs.source == LOCK:
                frozen = ("--frozen", "--no-dev", "--no-install-project", "--compile-bytecode", "--python", python)
                return [*steps, (uv, "sync", *frozen)]
            install: tuple[str, ...] = (uv, "pip", "install", "--compile-bytecode", "--python", python, "-r")
        else:
            check = [(python, "-c", _CHECK_PYTHON, needs.python)] if needs.python else []
            steps = [(base, "-m", "venv", str(venv)), *check]
            install = (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-r")
        if needs.source == REQUIREMENTS:
            steps.append((*install, REQUIREMENTS))
        elif needs.requirements:  # installers refuse an empty list
            listed = venv / _NEEDS_FILE
            listed.write_text("".join(f"{each}\n" for each in needs.requirements), encoding="utf-8")
            steps.append((*install, str(listed)))
        return steps if uv is not None else [*steps, _compilation(venv)]

    async def _step(
        self, spec: ToolSpec, venv: Path, argv: Sequence[str], on_line: Callable[[str], None] | None = None
    ) -> Completed:
        values = passed(self._source, (*self._defaults.env_allow, *_INSTALLER_SETTINGS))
        values.setdefault("PATH", DEFAULT_PATH)
        values |= {"PYTHONUNBUFFERED": "1", "VIRTUAL_ENV": str(venv), "UV_PROJECT_ENVIRONMENT": str(venv)}
        name, env = f"sync-{spec.name}", Environment(values)
        return await self._run(argv, name=name, timeout=None, on_line=on_line, cwd=str(spec.folder), env=env)


async def _lines(work: Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]) -> AsyncGenerator[str, None]:
    """Yield what `work` says; closed early it is cancelled, and has ended when the close returns."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    task = asyncio.create_task(work(lines.put_nowait))
    task.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        while (line := await lines.get()) is not None:
            yield line
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _compilation(venv: Path) -> tuple[str, ...]:
    return (str(venv / "bin" / "python"), "-m", "compileall", "-q", str(venv / "lib"))


def _clear(folder: Path) -> None:
    for path in (folder / NEW, folder / OLD):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def _take_place(venv: Path, final: Path) -> None:
    """Have the scripts name the path where they will be, and exchange old and new."""
    for script in venv.glob("bin/*"):
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes()
            if os.fsencode(venv) in content:  # else it may be a hard link into the installer's cache
                script.write_bytes(content.replace(os.fsencode(venv), os.fsencode(final)))
    if os.path.lexists(final):
        final.rename(final.parent / OLD)
    venv.rename(final)


def _failure(spec: ToolSpec, needs: Needs, argv: Sequence[str], words: str, tail: Sequence[str]) -> SyncFailedError:
    shown = " ".join([Path(argv[0]).name, *(each.partition("\n")[0] for each in argv[1:4])])
    last = next((line for line in reversed(tail) if line.strip()), "it printed nothing")
    return SyncFailedError(
        f"cannot build {spec.folder / VENV} from {needs.source}: {shown} … {words}: {last[:300]}",
        hint=f"mend {needs.source} of the tool, then: pxctl tools sync {spec.name}",
        unit=spec.unit,
        output_tail="\n".join(tail),
        stderr_tail="\n".join(tail),
    )
