"""Gathers the names that user code finds in its namespace: the prelude's, and those of user and project modules."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

PREFIX = "px_module_"
"""A module `x.py` is imported as `px_module_x`: it must not hide an installed one."""


class BrokenModuleError(Exception):
    """A user's or project's module could not be imported.

    Attributes:
        file, line: Where; line None where there is no place in it.
        detail: What.
    """

    def __init__(self, file: str, line: int | None, detail: str) -> None:
        super().__init__(detail)
        self.file = file
        self.line = line
        self.detail = detail


def gather(folders: Sequence[str], *, prelude: bool) -> dict[str, Any]:
    """Return name and object for all that is offered.

    Raises:
        BrokenModuleError: A module could not be imported.
    """
    offered: dict[str, Any] = {}
    if prelude:
        offered.update(_public(importlib.import_module(__package__ + ".prelude")))
    for path in find_modules(folders):
        offered.update(_offered_by(path))
    return offered


def find_modules(folders: Sequence[str]) -> list[str]:
    """Return the paths of `*.py` in all folders, sorted by name, the last folder's where several have the same."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BrokenModuleError(folder, None, "cannot list it: " + str(error)) from error
        found.update((name, os.path.join(folder, name)) for name in names if name.endswith(".py"))
    return [found[name] for name in sorted(found)]


def _offered_by(path: str) -> dict[str, Any]:
    name = PREFIX + os.path.basename(path)[: -len(".py")]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BrokenModuleError(path, None, "this is no Python module")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        return _public(module)
    except (Exception, SystemExit) as error:
        raise BrokenModuleError(path, _line_of(error, path), type(error).__name__ + ": " + str(error)) from error


def _line_of(error: BaseException, path: str) -> int | None:
    """Return the line of `path` at which `error` arose, the innermost if there are several."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def _public(module: ModuleType) -> dict[str, Any]:
    """Return what `from module import *` would give."""
    everything = vars(module)
    names = everything.get("__all__")
    if names is None:
        names = [name for name in everything if not name.startswith("_")]
    return {name: getattr(module, name) for name in names}
