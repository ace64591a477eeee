"""Which tools are there? Folders under the tool directories, read again when they change; added and
removed ones.

A broken tool is an entry with its error and harms no other. Names, never paths, come from outside:
a name is looked up among the tools that were found, so `../x` can lead nowhere. The first folder
that has a name wins; the others are errors. A look blocks for tens of microseconds a tool; to add
and to remove takes longer: call it in another thread.

What is added appears under its name whole or not at all, never over something that is there, and
was checked before. Given another name, the copy declares that one. What is removed goes at once by
a rename and is deleted then; of a tool that is a link goes the link.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from supervisord_py.config.documents import Problem, did_you_mean
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.config.trust import untrusted, untrusted_directory
from supervisord_py.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    PxError,
    UnknownUnitError,
)
from supervisord_py.tools.manifest import (
    MANIFEST,
    Stamp,
    ToolSpec,
    broken,
    load_tool,
    name_trouble,
    signature,
)

EXAMPLES = Path(__file__).parents[1] / "examples" / "tools"
EXAMPLE = "example:"
# how long a look at the directories serves `get` of a known name whose tool is not broken
FRESH_SECONDS = 0.2
PREFIX = ".adding-"
"""Begins the name of a folder that is being prepared; the catalog passes over every name with a
dot in front.
"""
TEMPLATE = str(EXAMPLES.with_name("templates") / "tool")  # a new tool begins as a copy of it
_LEFT_BEHIND = shutil.ignore_patterns(".venv.*", "__pycache__", ".git")  # these are not the tool


class Entry(NamedTuple):
    """One tool folder. Exactly one of `spec` and `error` is set."""

    name: str
    folder: Path
    spec: ToolSpec | None
    error: ConfigError | None
    signature: tuple[Stamp, ...] = ()  # of all that was read


class Catalog:
    """The tools of several directories, of which the first has precedence; missing ones are
    empty.
    """

    def __init__(self, paths: Sequence[Path], settings: ToolsSettings | None = None) -> None:
        self._by_name: dict[str, Entry] = {}
        self.is_complete = False  # the last look saw every directory
        self.reconfigure(paths, settings or ToolsSettings())

    def reconfigure(self, paths: Sequence[Path], settings: ToolsSettings) -> None:
        """Take other directories and settings, and read everything again when asked."""
        self.paths = tuple(path.absolute() for path in paths)
        self.settings = settings
        self._readings: dict[Path, Entry] = {}
        self._refreshed_at = float("-inf")

    def refresh(self) -> None:
        """Look at every directory and read again what changed.

        A directory that is there and cannot be read keeps the tools that the last look saw in it:
        only a look that succeeds can say that a tool was removed.
        """
        self._refreshed_at = time.monotonic()
        seen: dict[Path, None] = {}
        unread: set[Path] = set()  # directories whose tools stay as they are known
        is_complete = True
        self.is_complete = False
        for path in self.paths:
            try:
                with os.scandir(path) as found:
                    names = sorted(each.name for each in found if not each.name.startswith("."))
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE}:
                    return
                is_complete = False
                if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                    unread.add(path)
                    seen |= dict.fromkeys(each for each in self._readings if each.parent == path)
                continue
            seen |= dict.fromkeys(
                path / name for name in names if os.path.lexists(path / name / MANIFEST)
            )
        troubles = {path: untrusted_directory(path) for path in self.paths}
        readings: dict[Path, Entry] = {}
        for folder in seen:
            if folder.parent in unread:
                readings[folder] = self._readings[folder]
            else:
                readings[folder] = self._reading(folder, troubles[folder.parent])
        self._readings = readings
        self._by_name = {entry.name: entry for entry in reversed(self._readings.values())}
        self.is_complete = is_complete

    def get(self, name: str) -> ToolSpec:
        """Return the spec of a tool.

        Raises UnknownUnitError: there is none; ConfigError: it is broken.
        """
        entry = self.entry(name)
        if entry.spec is None:
            raise entry.error or AssertionError
        return entry.spec

    def entry(self, name: str) -> Entry:
        """Return the entry of a name, broken or not. Raises UnknownUnitError: there is none."""
        found, is_old = (
            self._by_name.get(name),
            time.monotonic() - self._refreshed_at >= FRESH_SECONDS,
        )
        # nobody is refused for what an earlier look saw
        if found is None or found.spec is None or is_old:
            self.refresh()
            found = self._by_name.get(name)
        if found is not None:
            return found
        if trouble := name_trouble(name):
            raise UnknownUnitError(
                f"{name[:100]!r} is no tool's name: it {trouble}", hint="pxctl tools list"
            )
        detail = (
            f"there is no tool {name!r} in "
            f"{', '.join(map(str, self.paths))}{did_you_mean(name, self._by_name)}"
        )
        hint = f"pxctl tools add example:{name}" if is_example(name) else "pxctl tools list"
        raise UnknownUnitError(detail, hint=hint, unit=f"tool:{name}")

    def entries(self) -> list[Entry]:
        """Look again and return every entry, by name; a hidden one, as an error, follows the one
        that hides it.
        """
        self.refresh()
        found = []
        for entry in self._readings.values():
            first, error = self._by_name[entry.name], entry.error
            if first is not entry:
                message = f"is hidden by {first.folder}, which has the same name and comes first"
                error = broken([Problem(message=message, file=str(entry.folder))], entry.name)
            found.append(entry if error is None else entry._replace(spec=None, error=error))
        return sorted(found, key=lambda entry: entry.name)

    def _reading(self, folder: Path, trouble: str | None) -> Entry:
        """Return what is known of a folder; what changed is read again, and what is broken: that
        may lie anywhere.

        `trouble`: why others could put something into the directory that the folder is in.
        """
        known = self._readings.get(folder)
        if (trouble := trouble or untrusted(folder)) is not None:
            return _unsafe(folder, trouble)
        if (
            known is not None
            and known.spec is not None
            and known.signature == signature(folder, known.spec.sources)
        ):
            return known
        before = signature(folder, ())
        try:
            spec = load_tool(folder, self.settings)
        except (PxError, OSError) as error:
            problem = Problem(message=str(error), file=str(folder))
            found = error if isinstance(error, ConfigError) else broken([problem], folder.name)
            return Entry(
                (found.unit or "").removeprefix("tool:") or folder.name, folder, None, found
            )
        for name in (MANIFEST, *spec.sources):
            if (trouble := untrusted(folder / name)) is not None:
                return _unsafe(folder, trouble)
        return Entry(
            spec.name, folder, spec, None, before + signature(folder, spec.sources)[len(before) :]
        )


def _unsafe(folder: Path, trouble: str) -> Entry:
    """Return the entry of a tool that is not run: somebody else could have written it."""
    hint = "chown it to the daemon's user, and take the right to write from others: chmod go-w"
    problem = Problem(message=trouble, file=str(folder / MANIFEST), hint=hint)
    return Entry(folder.name, folder, None, broken([problem], folder.name))


def is_example(name: str) -> bool:
    """Say whether a tool of this name ships with the package; an impossible name is none."""
    return name_trouble(name) is None and (EXAMPLES / name / MANIFEST).is_file()


# -- added, removed --------------------------------------------------------------------------------


class ToolsDiskError(PxError, kind="disk", title="The tools directory cannot be written"):
    """The tools directory cannot be written."""


def add_tool(
    source: str, tools_dir: Path, *, name: str | None = None, settings: ToolsSettings | None = None
) -> ToolSpec:
    """Copy the tool at a path, or `example:NAME`, into `tools_dir`, under another name if one is
    given.

    Raises BadRequestError: the source is no tool's folder, or the name cannot be one;
    UnknownUnitError: there is no such example; ConfigError: the tool is broken; ConflictError: the
    folder is there, or has come to exist meanwhile; ToolsDiskError: the directory cannot be
    written, or what is to be copied not read. Nothing was added then.
    """
    origin = _origin(source)
    spec = load_tool(origin, settings)
    wanted = spec.name if name is None else name
    if trouble := name_trouble(wanted):
        hint = "choose another (`pxctl tools new my-tool`, `pxctl tools add PATH --name my-tool`)"
        raise BadRequestError(f"{wanted[:80]!r} {trouble}", hint=hint)
    parent, unit = tools_dir.absolute(), f"tool:{wanted}"
    if parent.resolve().is_relative_to(origin.resolve()):
        raise BadRequestError(f"{origin} contains the tools directory and cannot be copied into it")
    folder, draft, top = parent / wanted, parent / f"{PREFIX}{secrets.token_hex(6)}", str(origin)
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        # Further down, in its `.venv`, all counts.
        shutil.copytree(
            origin,
            draft,
            symlinks=True,
            ignore=lambda *it: _LEFT_BEHIND(*it) if it[0] == top else set(),
        )
        if wanted != spec.name:
            manifest = {**spec.manifest, "id" if spec.pixie else "name": wanted}
            (draft / MANIFEST).unlink()  # the copy may be a link to the original, and read-only
            (draft / MANIFEST).write_text(
                json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        draft.chmod(0o700)
        draft.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            hint = f"pxctl tools remove {wanted}, or choose another name"
            raise ConflictError(f"{folder} is there already", hint=hint, unit=unit) from None
        said = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise ToolsDiskError(
            f"cannot write {folder}: {said}", hint="pxctl doctor", unit=unit
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return load_tool(folder, settings)


def _origin(source: str) -> Path:
    if source.startswith(EXAMPLE):
        name, known = (
            source.removeprefix(EXAMPLE),
            sorted(path.parent.name for path in EXAMPLES.glob(f"*/{MANIFEST}")),
        )
        if name not in known:
            detail = f"there is no example {name[:80]!r}{did_you_mean(name, known)}"
            raise UnknownUnitError(detail, hint=f"examples: {', '.join(known)}")
        return EXAMPLES / name
    path = Path(source.replace("\0", "")).expanduser().absolute()
    if not (path / MANIFEST).is_file():
        hint = (
            "pxctl tools add PATH or example:NAME; pxctl tools new NAME writes a tool to start from"
        )
        raise BadRequestError(f"{path} is no folder with a {MANIFEST}", hint=hint)
    return path


def remove_tool(catalog: Catalog, name: str, tools_dir: Path, *, anywhere: bool = False) -> Path:
    """Delete a tool's folder and return where it was. The caller has made sure that it does not
    run.

    Raises UnknownUnitError: there is no such tool; ConflictError: it lies outside `tools_dir`, and
    that is all it may lie in; ToolsDiskError: it cannot be deleted.
    """
    folder, unit = catalog.entry(name).folder, f"tool:{name}"
    if not anywhere and folder.parent != tools_dir.absolute():
        detail = f"{folder} lies outside the tools directory {tools_dir}"
        raise ConflictError(detail, hint=f"pxctl tools remove --force {name}", unit=unit)
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            doomed = folder.parent / f"{PREFIX}removed-{secrets.token_hex(6)}"
            folder.rename(doomed)
            shutil.rmtree(doomed)
    except OSError as error:
        raise ToolsDiskError(
            f"cannot remove {folder}: {error.strerror or error}", unit=unit
        ) from None
    catalog.refresh()
    return folder
