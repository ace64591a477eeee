"""Which tools are there? Folders under the tool directories, read again when they change.

A broken tool is an entry with its error and harms no other. Names, never paths, come from outside: a name is looked up
among the tools that were found, so `../x` can lead nowhere. The first folder that has a name wins; the others of that
name are listed as errors. The catalog does blocking file operations, tens of microseconds a tool; it is meant for one
thread.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.config.documents import Problem, config_error, did_you_mean
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import ConfigError, PxError, UnknownUnitError
from supervisord_py.tools.manifest import MANIFEST, load_tool, name_trouble, signature, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisord_py.tools.manifest import Stamp, ToolSpec

EXAMPLES = Path(__file__).parents[1] / "examples" / "tools"
FRESH_SECONDS = 0.2  # how long a look at the directories serves `get` of a known name whose tool is not broken


class Entry(NamedTuple):
    """One tool folder. Exactly one of `spec` and `error` is set."""

    name: str
    folder: Path
    spec: ToolSpec | None
    error: ConfigError | None
    sources: tuple[str, ...] = ()  # the files, relative to the folder, that an instance is started from
    signature: tuple[Stamp, ...] = ()  # of all that was read


class Catalog:
    """The tools of several directories.

    Args:
        paths: Directories of tool folders; the first has precedence. Missing ones are empty.
        settings: What counts where a tool says nothing.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        settings: ToolsSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = tuple(path.absolute() for path in paths)
        self.settings = settings or ToolsSettings()
        self._clock = clock
        self._readings: dict[Path, Entry] = {}
        self._by_name: dict[str, Entry] = {}
        self._hidden: list[Entry] = []
        self._refreshed_at = float("-inf")

    def reconfigure(self, paths: Sequence[Path], settings: ToolsSettings) -> None:
        """Take other directories and settings, and read everything again."""
        self.paths = tuple(path.absolute() for path in paths)
        self.settings = settings
        self._readings = {}
        self.refresh()

    def refresh(self) -> None:
        """Look at every directory and read again what changed.

        A look that cannot see, because descriptors ran out, keeps what the last one saw: a tool is not removed by that.
        """
        self._refreshed_at = self._clock()
        try:
            seen = dict.fromkeys(folder for path in self.paths for folder in _folders(path))
        except OSError:
            return
        self._readings = {folder: self._reading(folder) for folder in seen}
        self._by_name, self._hidden = {}, []
        for entry in self._readings.values():
            first = self._by_name.setdefault(entry.name, entry)
            if first is not entry:
                message = f"is hidden by {first.folder}, which has the same name and comes first"
                self._hidden.append(entry._replace(spec=None, error=_folder_error(entry.name, entry.folder, message)))

    def get(self, name: str) -> ToolSpec:
        """Return the spec of a tool.

        Raises:
            UnknownUnitError: There is no such tool; the hint names the nearest.
            ConfigError: There is one, and it is broken.
        """
        entry = self.entry(name)
        if entry.spec is None:
            raise entry.error or _folder_error(name, entry.folder, "cannot be read")
        return entry.spec

    def entry(self, name: str) -> Entry:
        """Return the entry of a name, broken or not. Raises UnknownUnitError: there is none."""
        found = self._by_name.get(name)
        is_old = self._clock() - self._refreshed_at >= FRESH_SECONDS
        if found is None or found.spec is None or is_old:  # nobody is refused for what an earlier look saw
            self.refresh()
            found = self._by_name.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def entries(self) -> list[Entry]:
        """Look again and return every entry, by name; a hidden one follows the one that hides it."""
        self.refresh()
        return sorted([*self._by_name.values(), *self._hidden], key=lambda entry: entry.name)

    def _reading(self, folder: Path) -> Entry:
        """Return what is known of a folder; what changed is read again, and what is broken: that may lie anywhere."""
        known = self._readings.get(folder)
        if known is not None and known.spec is not None and known.signature == signature(folder, known.sources):
            return known
        before = signature(folder, ())
        try:
            spec = load_tool(folder, self.settings)
        except (PxError, OSError) as error:
            found = error if isinstance(error, ConfigError) else _folder_error(folder.name, folder, str(error))
            return Entry((found.unit or "").removeprefix("tool:") or folder.name, folder, None, found)
        sources = sources_of(spec.folder, spec.entrypoint, spec.command)
        stamps = before + signature(folder, sources)[len(before) :]
        return Entry(spec.name, folder, spec, None, sources, stamps)

    def _unknown(self, name: str) -> UnknownUnitError:
        if trouble := name_trouble(name):
            return UnknownUnitError(
                f"{name[:100]!r} is no tool's name: it {trouble}", hint="pxctl tools list", unit=None
            )
        detail = f"there is no tool {name!r} in {', '.join(map(str, self.paths))}{did_you_mean(name, self._by_name)}"
        hint = f"pxctl tools add example:{name}" if is_example(name) else "pxctl tools list"
        return UnknownUnitError(detail, hint=hint, unit=f"tool:{name}")


def is_example(name: str) -> bool:
    """Say whether a tool of this name ships with the package; an impossible name is none."""
    return name_trouble(name) is None and (EXAMPLES / name / MANIFEST).is_file()


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders of one directory that have a tool.json, links to folders included, by name.

    Raises OSError: there was no descriptor to look with.
    """
    try:
        with os.scandir(path) as found:
            names = sorted(each.name for each in found if not each.name.startswith("."))
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
        return
    yield from (path / name for name in names if os.path.lexists(path / name / MANIFEST))


def _folder_error(name: str, folder: Path, message: str) -> ConfigError:
    hint = f"mend the file, then: pxctl tools validate {name}"
    return config_error([Problem(message=message, file=str(folder))], f"tool:{name}", hint)
