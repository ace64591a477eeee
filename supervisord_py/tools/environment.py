"""With what is a tool started, what may its process see, and how `pxctl tools sync` builds its
`.venv`.

The interpreter is the tool's own `python`, that of its `.venv`, the settings', the daemon's; in
this order. Of the environment later layers win: an allow-list of the daemon's, the virtual
environment, `.env`, the tool's `env`, what the start itself needs (see
process/child_environment.py).

A `.venv` is built from `requirements.txt`, else `pyproject.toml` (its dependencies, not the
project; `uv.lock` beside it counts where there is uv), with uv where there is one, else venv and
pip. It is built in `.venv.new` and takes the place of the old one by a rename when it is complete,
so a build that fails, is cancelled or killed leaves the old one. The builders are
`program:sync-NAME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import structlog
from dotenv.variables import parse_variables

from supervisord_py.config.documents import DocumentError, config_error, convert, read_document
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    ConfigError,
    ConflictError,
    PxError,
    StartFailedError,
    TimedOutError,
)
from supervisord_py.process.child_environment import (
    DEFAULT_PATH,
    MARKS,
    Environment,
    passed,
    read_dotenv,
)
from supervisord_py.process.program import Completed
from supervisord_py.tools.manifest import DOTENV, VENV, ToolSpec

REQUIREMENTS, LOCK, PYPROJECT = "requirements.txt", "uv.lock", "pyproject.toml"
NEW, OLD = f"{VENV}.new", f"{VENV}.old"
TAIL_LINES = 30
BUILD_SECONDS = 1800.0  # bound of one build
_INSTALLER_SETTINGS = ("UV_*", "PIP_*", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to the build,
not to the tool.
"""
_NEEDS_FILE = ".px-requirements.txt"
_PRINT_VERSION = "import sys; print(*sys.version_info[:3], sep='.')"
_under_way: set[Path] = set()
_log = structlog.get_logger(__name__)


# -- a start ---------------------------------------------------------------------------------------


def build_environment(
    spec: ToolSpec,
    source: Mapping[str, str],
    allow: Sequence[str],
    artefacts: Path,
    extra: Mapping[str, str],
) -> Environment:
    """Build the environment of an instance from the daemon's (`source`), of which `allow` names
    what may pass.

    `artefacts`: where a Pixie tool's runs may leave files; `extra`: what the start needs, which
    wins over everything. Raises StartFailedError: a secret that the tool declares as required is
    nowhere set.
    """
    values = passed(source, allow)
    values.setdefault("PATH", DEFAULT_PATH)
    venv = spec.folder / VENV
    if (venv / "pyvenv.cfg").is_file():
        values |= {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{values['PATH']}"}
    values["PYTHONUNBUFFERED"] = "1"
    if spec.pixie is not None:
        values |= {"PIXIE_TOOL_ID": spec.name, "PIXIE_ARTEFACTS_ROOT": str(artefacts)}
    dotenv, doubts = read_dotenv(spec.folder / DOTENV)
    for doubt in doubts:
        _log.warning("dotenv_odd", unit=spec.unit, detail=doubt)
    # ${NAME} stands for what the tool would see by then, ${NAME:-x} has a default
    for name, text in dotenv.items():
        values[name] = "".join(part.resolve(values) for part in parse_variables(text))
    values |= {name: text for name, text in spec.env.items() if name not in MARKS}
    secrets = spec.pixie.secrets if spec.pixie is not None else ()
    if missing := [
        secret.key for secret in secrets if secret.required and not values.get(secret.key)
    ]:
        detail = f"{spec.unit} needs secrets that its .env does not set: {', '.join(missing)}"
        raise _unstartable(
            spec, "environment", detail, f"add {missing[0]}=… to {spec.folder / DOTENV} (mode 600)"
        )
    return Environment(values | dict(extra))


def find_interpreter(spec: ToolSpec, settings_python: str | None) -> Path:
    """Return the interpreter of a Python tool, never resolved: a virtual environment is known by
    its path.

    Raises StartFailedError: it is missing or cannot be executed (reason spawn_failed, stage
    interpreter).
    """

    # by a person: `~`, relative to the tool's folder, or a name on PATH
    def written(python: str) -> Path:
        if "/" in python:
            return Path(os.path.normpath(spec.folder / Path(python).expanduser()))
        return Path(shutil.which(python) or python)

    venv = spec.folder / VENV
    if spec.python:
        found, origin = written(spec.python), "`python` of the tool"
        hint = (
            f"set `python` in {spec.settings_file} to an interpreter that is there, or leave it out"
        )
    elif os.path.lexists(venv):
        found, origin = venv / "bin" / "python", "its .venv"
        hint = rebuild_step(spec)
    elif settings_python is not None:
        found, origin = written(settings_python), "`tools.python` of the settings"
        hint = (
            "set tools.python in pxd.toml to an interpreter that is there, then: pxctl daemon "
            "reload"
        )
    else:
        found, origin = Path(sys.executable), "the daemon's"
        hint = "install supervisord-py again, then: pxctl daemon restart --all"
    if found.is_file() and os.access(found, os.X_OK):
        return found
    why = "executable" if found.exists() else "there"
    detail = f"the interpreter {found} of {spec.unit} ({origin}) is not {why}"
    if found.is_symlink() and not found.exists():
        detail += f": it is a link to {found.readlink()}"
    raise _unstartable(spec, "interpreter", detail, hint)


def rebuild_step(spec: ToolSpec) -> str:
    """Return the command that builds a broken `.venv` anew."""
    if dependency_file(spec) is not None:
        return f"pxctl tools sync {spec.name}"
    # A sync would have nothing to build it from.
    venv = spec.folder / VENV
    return f"python3 -m venv --clear {venv}, then install there what the tool needs"


def read_ahead(python: Path, imports: Iterable[str]) -> None:
    """Have the system read the installed files of these modules: after a boot none of them is in
    memory. Blocking.
    """
    entries = cache(lambda folder: os.listdir(folder) if os.path.isdir(folder) else [])
    for site, name in product(python.parent.parent.glob("lib/python*/*-packages"), imports):
        *folders, last = name.split(".")
        parent, begin = os.path.join(site, *folders), f"{last}."
        found = [
            f"{parent}/{each}"
            for each in entries(parent)
            if each.startswith(begin) and each.endswith(".so")
        ]
        for folder, start in (
            (f"{parent}/__pycache__", begin),
            (f"{parent}/{last}/__pycache__", "__init__."),
        ):
            found += [f"{folder}/{each}" for each in entries(folder) if each.startswith(start)]
        # of wheels: numpy's BLAS
        found += [f"{site}/{last}.libs/{each}" for each in entries(f"{site}/{last}.libs")]
        for path in found:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _unstartable(spec: ToolSpec, stage: str, detail: str, hint: str) -> StartFailedError:
    return StartFailedError(detail, hint=hint, unit=spec.unit, reason="spawn_failed", stage=stage)


# -- a virtual environment -------------------------------------------------------------------------


class SyncFailedError(
    PxError, kind="sync_failed", title="The virtual environment could not be built"
):
    """A `.venv` could not be built. `stderr_tail` holds the last lines of the builder."""


class Project(msgspec.Struct, frozen=True, rename="kebab"):
    """What counts of `[project]` in a pyproject.toml."""

    dependencies: list[str] = []
    requires_python: str = ""


def read_project(spec: ToolSpec) -> Project:
    """Return `[project]` of the tool's pyproject.toml, empty where there is none.

    Raises ConfigError: it is broken.
    """
    if not (spec.folder / PYPROJECT).is_file():
        return Project()
    try:
        document = read_document(spec.folder / PYPROJECT)
        read, problems = convert(
            document, Project, ("project",), value=document.value.get("project", {})
        )
    except DocumentError as error:
        read, problems = None, [error.problem]
    if read is None or problems:
        raise config_error(
            problems, spec.unit, f"mend the file, then: pxctl tools sync {spec.name}"
        )
    return read


def dependency_file(spec: ToolSpec) -> str | None:
    """Return the file in the tool's folder that says what its `.venv` is built from; None where
    there is none.
    """
    return next(
        (each for each in (REQUIREMENTS, LOCK, PYPROJECT) if (spec.folder / each).is_file()), None
    )


def builds(spec: ToolSpec) -> bool:
    """Say whether a sync builds anything for a tool."""
    return not spec.python and dependency_file(spec) is not None


def needs_sync(spec: ToolSpec) -> bool:
    """Say whether a tool asks for packages and has neither a `.venv` nor an interpreter of its
    own.
    """
    source = None if spec.python or os.path.lexists(spec.folder / VENV) else dependency_file(spec)
    with contextlib.suppress(ConfigError):  # a broken pyproject.toml is for `sync` to refuse
        return source is not None and (source != PYPROJECT or bool(read_project(spec).dependencies))
    return True


def lacks_bytecode(venv: Path) -> bool:
    """Say whether a module or package at the top of site-packages is not compiled: every cold
    start would do that.
    """
    files = (
        each
        for name in ("*", "*/__init__")
        for each in venv.glob(f"lib/python*/site-packages/{name}.py")
    )
    return any(not any(each.parent.glob(f"__pycache__/{each.stem}.*.pyc")) for each in files)


Run = Callable[..., Coroutine[Any, Any, Completed]]  # `process.program.run` without its client


class Builder:
    """Builds the environments of tools; without a path of `uv` with venv and pip.

    `source`: the daemon's environment, of which what the settings allow and the installers' own
    settings pass.
    """

    def __init__(
        self, run: Run, source: Mapping[str, str], settings: ToolsSettings, uv: str | None = None
    ) -> None:
        self._run = run
        self._source = source
        self._settings = settings
        self._uv = uv

    async def sync(self, spec: ToolSpec) -> AsyncGenerator[str, None]:
        """Build the `.venv` of a tool and yield progress, a line at a time; closed early, nothing
        of it goes on.

        Raises SyncFailedError, TimedOutError, StartFailedError: a step failed, or was not started;
        the environment that was there before is there still. SyncFailedError also where the `.venv`
        has no interpreter, and nothing says what to build it from. ConfigError: the file with the
        dependencies is broken. ConflictError: the tool is being synced already.
        """
        source = dependency_file(spec)
        if source is None or not builds(spec):
            yield self._check_left_alone(spec)
            return
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(self._build(spec, source, read_project(spec), lines.put_nowait))
        task.add_done_callback(lambda _: lines.put_nowait(None))
        try:
            while (line := await lines.get()) is not None:
                yield line
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _check_left_alone(self, spec: ToolSpec) -> str:
        """Return why a tool's environment is not built.

        Raises SyncFailedError: it needs one all the same.
        """
        if spec.python:
            return f"nothing to build: {spec.unit} has its own interpreter, {spec.python}"
        venv = spec.folder / VENV
        if os.path.lexists(venv) and not (venv / "bin" / "python").exists():
            detail = (
                f"{venv} has no interpreter, and there is no {REQUIREMENTS} or {PYPROJECT} to "
                "build it from"
            )
            raise SyncFailedError(detail, hint=rebuild_step(spec), unit=spec.unit)
        return f"nothing to build: {spec.unit} has no {REQUIREMENTS} or {PYPROJECT}"

    async def compile_bytecode(self, spec: ToolSpec) -> None:
        """Compile what the `.venv` of a tool holds; what does not compile stays as it is.

        Raises StartFailedError.
        """
        venv = spec.folder / VENV
        await self._step(
            spec, venv, (f"{venv}/bin/python", "-m", "compileall", "-q", f"{venv}/lib")
        )

    async def _build(
        self, spec: ToolSpec, source: str, project: Project, say: Callable[[str], None]
    ) -> None:
        if spec.folder in _under_way:
            raise ConflictError(f"{spec.unit} is being synced already", unit=spec.unit)
        _under_way.add(spec.folder)
        started, final, venv = time.monotonic(), spec.folder / VENV, spec.folder / NEW
        try:
            say(f"building {final} from {source} with {'uv' if self._uv else 'venv and pip'}")
            await asyncio.to_thread(_clear, spec.folder)
            venv.mkdir(mode=0o700)
            async with asyncio.timeout(BUILD_SECONDS):
                # uv finds an interpreter that fits by itself.
                if project.requires_python and self._uv is None:
                    await self._check_python(spec, venv, project.requires_python)
                for argv in self._steps(venv, source, project):
                    ended = await self._step(spec, venv, argv, say)
                    if ended.code != 0:
                        raise _step_failed(spec, source, argv, ended)
            await asyncio.to_thread(_take_place, venv, final)
        except TimeoutError as error:
            detail = f"The build of {spec.unit} took longer than {BUILD_SECONDS:g} s."
            raise TimedOutError(detail, unit=spec.unit) from error
        finally:
            await asyncio.to_thread(_clear, spec.folder)
            _under_way.discard(spec.folder)
        say(f"built {final} in {time.monotonic() - started:.1f} s")

    def _base_python(self) -> str:
        return self._settings.python or sys.executable

    async def _check_python(self, spec: ToolSpec, venv: Path, wanted: str) -> None:
        """Compare the interpreter that would run the tool with `requires-python`.

        Raises SyncFailedError: it is another version, or `wanted` cannot be read.
        """
        # A daemon that builds nothing does without.
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
        from packaging.version import InvalidVersion

        printing = (self._base_python(), "-c", _PRINT_VERSION)
        ended = await self._step(spec, venv, printing)
        if ended.code != 0:
            raise _step_failed(spec, PYPROJECT, printing, ended)
        version = ended.stdout.strip()
        try:
            is_fit = SpecifierSet(wanted).contains(version, prereleases=True)
        except (InvalidSpecifier, InvalidVersion) as error:
            detail = f"cannot build {spec.folder / VENV}: requires-python of {PYPROJECT}: {error}"
            hint = f"write for example >=3.11 there, then: pxctl tools sync {spec.name}"
            raise SyncFailedError(detail, hint=hint, unit=spec.unit) from None
        if not is_fit:
            raise SyncFailedError(
                f"cannot build {spec.folder / VENV}: the tool requires Python {wanted}, this is"
                f" {version}",
                hint="install uv, which brings a Python that fits, or set tools.python in pxd.toml"
                " to one",
                unit=spec.unit,
            )

    def _steps(self, venv: Path, source: str, project: Project) -> Iterator[tuple[str, ...]]:
        python = f"{venv}/bin/python"
        install: tuple[str, ...] = (
            python,
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
        )
        if self._uv is not None:
            wanted = project.requires_python or self._base_python()
            yield self._uv, "venv", "--allow-existing", "--python", wanted, str(venv)
            install = (self._uv, "pip", "install", "--compile-bytecode", "--python", python)
        else:
            yield self._base_python(), "-m", "venv", str(venv)
        if source == LOCK and self._uv is not None:
            frozen = (
                "--frozen",
                "--no-dev",
                "--no-install-project",
                "--compile-bytecode",
                "--python",
                python,
            )
            yield self._uv, "sync", *frozen
        elif source == REQUIREMENTS:
            yield *install, "-r", REQUIREMENTS
        elif project.dependencies:  # installers refuse an empty list
            listed = venv / _NEEDS_FILE
            listed.write_text(
                "".join(f"{each}\n" for each in project.dependencies), encoding="utf-8"
            )
            yield *install, "-r", str(listed)

    async def _step(
        self,
        spec: ToolSpec,
        venv: Path,
        argv: Sequence[str],
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        values = passed(self._source, (*self._settings.env_allow, *_INSTALLER_SETTINGS))
        values.setdefault("PATH", DEFAULT_PATH)
        values |= {
            "PYTHONUNBUFFERED": "1",
            "VIRTUAL_ENV": str(venv),
            "UV_PROJECT_ENVIRONMENT": str(venv),
        }
        name, env = f"sync-{spec.name}", Environment(values)
        return await self._run(
            argv, name=name, timeout=None, on_line=on_line, cwd=str(spec.folder), env=env
        )


def _clear(folder: Path) -> None:
    for path in (folder / NEW, folder / OLD):
        with contextlib.suppress(OSError):
            path.unlink()  # a link
        shutil.rmtree(path, ignore_errors=True)


def _take_place(venv: Path, final: Path) -> None:
    """Have the scripts name the path where they will be, and exchange old and new."""
    for script in venv.glob("bin/*"):
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes()
            # else it may be a hard link into the installer's cache
            if os.fsencode(venv) in content:
                script.write_bytes(content.replace(os.fsencode(venv), os.fsencode(final)))
    if os.path.lexists(final):
        final.rename(final.parent / OLD)
    venv.rename(final)


def _step_failed(
    spec: ToolSpec, source: str, argv: Sequence[str], ended: Completed
) -> SyncFailedError:
    """Return the error of a step of a build that has failed."""
    command = " ".join([Path(argv[0]).name, *argv[1:4]])
    cause = ended.last_line or "it printed nothing"
    return SyncFailedError(
        f"cannot build {spec.folder / VENV} from {source}: {command} … {ended.words}: {cause}",
        hint=f"correct {source} of the tool, then: pxctl tools sync {spec.name}",
        unit=spec.unit,
        stderr_tail="\n".join(ended.stdout.splitlines()[-TAIL_LINES:]),
    )
