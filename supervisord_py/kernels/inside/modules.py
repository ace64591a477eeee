"""The names that user code finds in its namespace: the prelude's, and those of user and project modules.

A module `x.py` is imported as `px_module_x`: it must not hide an installed one. One that cannot be imported stops
nobody: the next cell is told its file and line, its names are missing, and it is imported again when it has changed.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

PREFIX = "px_module_"


class Modules:
    """What is offered. `names`: each with its object."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.names: dict[str, Any] = _public(importlib.import_module(__package__ + ".prelude"))
        self._files: dict[str, str] = {}
        self._missing: dict[str, tuple[int, int] | None] = {}  # what is not imported, as it was at the last try
        for folder in folders:  # the last folder's where several have the same
            try:
                names = [name for name in os.listdir(folder) if name.endswith(".py")]
            except OSError:  # it is gone, or nobody may look into it
                names = []
            self._files.update((PREFIX + name[: -len(".py")], os.path.join(folder, name)) for name in names)
        sys.meta_path.append(self)
        self._news = [self._load(name) for name in sorted(self._files)]

    def find_spec(self, name: str, *_: Any) -> Any:
        return spec_from_file_location(name, self._files[name]) if name in self._files else None

    def look_again(self) -> str | None:
        """Import what was broken and has changed; return what is to be told, None where there is nothing new."""
        changed = [name for name, stamp in self._missing.items() if _stamp(self._files[name]) != stamp]
        news, self._news = [*self._news, *map(self._load, changed)], []
        return "".join(news) if changed or any(news) else None

    def _load(self, name: str) -> str:
        path = self._files[name]
        stamp = _stamp(path)
        self._missing.pop(name, None)
        sys.modules.pop(name, None)
        try:
            self.names.update(_public(importlib.import_module(name)))
        except (Exception, SystemExit) as error:
            self._missing[name] = stamp
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            if isinstance(error, SyntaxError) and error.filename == path:
                lines.append(error.lineno)
            place = path + ":" + str(lines[-1]) if lines else path
            why = type(error).__name__ + ": " + str(error)
            return "px: " + place + ": " + why + " (its names are missing until it is mended)\n"
        return ""


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _public(module: ModuleType) -> dict[str, Any]:
    """Return what `from module import *` would give."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {name: getattr(module, name) for name in names}
