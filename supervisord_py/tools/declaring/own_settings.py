"""The keys that both dialects share, and the settings that are ours alone (CONTRACT §5).

Ours stand in a plain `tool.json`, or in `pxd.json` beside a Pixie tool, whose own file knows no foreign keys.
Every number has bounds; a default comes from the daemon's settings.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.process.child_environment import ENV_NAME, MARKS
from supervisord_py.tools.declaring.fields import Span, type_name
from supervisord_py.tools.spec import ListenMode, MemoryMode, ToolLimits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.tools.config import ToolDefaults
    from supervisord_py.tools.declaring.fields import Fields

COMMON_KEYS = ("warm_keep_seconds", "max_memory_mb", "max_runtime_seconds", "entrypoint")
OWN_KEYS = (
    "command",
    "python",
    "listen",
    "memory_limit",
    "start_timeout_seconds",
    "stop_timeout_seconds",
    "concurrency",
    "preload",
    "env",
    "pinned",
    "limits",
)
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_YEAR = 366 * 86400
_KEEP = Span(0, _YEAR)
_RUNTIME = Span(0.001, _YEAR)
_MEMORY = Span(0, 16 * 1024 * 1024)
_START = Span(0.1, 3600)
_STOP = Span(0, 3600)
_CONCURRENCY = Span(1, 10_000)
_OPEN_FILES = Span(16, 1024 * 1024)
_PROCESSES = Span(1, 4 * 1024 * 1024)
_CPU = Span(1, 100 * _YEAR)
_ADDRESS_SPACE = Span(16, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class CommonSettings:
    """The keys of both dialects; fields as in `ToolSpec`."""

    warm_keep_seconds: float
    max_memory_mb: int
    max_runtime_seconds: float
    entrypoint: str


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """Our own keys; fields as in `ToolSpec`."""

    command: tuple[str, ...] | None
    python: str | None
    listen: ListenMode
    memory_limit: MemoryMode
    start_timeout_seconds: float
    stop_timeout_seconds: float
    concurrency: int
    preload: tuple[str, ...]
    forkable: bool
    pinned: bool
    limits: ToolLimits
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_common(fields: Fields, defaults: ToolDefaults) -> CommonSettings:
    """Read the keys of both dialects."""
    return CommonSettings(
        warm_keep_seconds=fields.number("warm_keep_seconds", _KEEP, defaults.warm_keep_seconds),
        max_memory_mb=fields.integer("max_memory_mb", _MEMORY, defaults.max_memory_mb),
        max_runtime_seconds=fields.number("max_runtime_seconds", _RUNTIME, defaults.max_runtime_seconds),
        entrypoint=_entrypoint(fields),
    )


def _entrypoint(fields: Fields) -> str:
    """Read a path that cannot leave the folder by its words; links are looked at by `check_entrypoint`."""
    entrypoint = fields.text("entrypoint", "main.py")
    parts = entrypoint.split("/")
    if not entrypoint or entrypoint.startswith("/") or ".." in parts or entrypoint.endswith("/"):
        fields.wrong("entrypoint", f"must be a file inside the tool's folder, as in 'main.py', not {entrypoint!r}")
        return "main.py"
    return entrypoint


def check_entrypoint(fields: Fields, folder: Path, entrypoint: str) -> None:
    """Note an entrypoint that is not there, is no file, or is led out of the folder by a link."""
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, entrypoint))
    if os.path.commonpath((root, target)) != root:
        fields.wrong("entrypoint", f"{entrypoint!r} leads out of the tool's folder, to {target}")
    elif not os.path.isfile(target):
        where = "is no file" if os.path.exists(target) else "is not there"
        fields.wrong("entrypoint", f"the entrypoint {entrypoint!r} {where}; write it, or name another one or a command")


def read_own(fields: Fields, defaults: ToolDefaults) -> OwnSettings:
    """Read our own keys, wherever they stand."""
    command = _command(fields)
    listen = fields.choice("listen", ListenMode, ListenMode.PORT if command else ListenMode.HANDOVER)
    if command and listen is ListenMode.HANDOVER:
        fields.wrong("listen", "handover needs python + entrypoint; with a command use 'port' or 'fd'")
    if command and listen is ListenMode.PORT and not any("{port}" in each for each in command):
        fields.problems.warn("command has no {port}: the tool is not told where to listen")
    preload, forkable = _preload(fields)
    return OwnSettings(
        command=command,
        python=fields.optional_text("python"),
        listen=listen,
        memory_limit=fields.choice("memory_limit", MemoryMode, MemoryMode.RESIDENT),
        start_timeout_seconds=fields.number("start_timeout_seconds", _START, defaults.start_timeout_seconds),
        stop_timeout_seconds=fields.number("stop_timeout_seconds", _STOP, defaults.stop_timeout_seconds),
        concurrency=fields.integer("concurrency", _CONCURRENCY, defaults.concurrency),
        preload=preload,
        forkable=forkable,
        pinned=fields.boolean("pinned", default=False),
        limits=_limits(fields),
        env=_env(fields),
    )


def _command(fields: Fields) -> tuple[str, ...] | None:
    command = fields.texts("command")
    if command == ():
        fields.wrong("command", "must hold at least the program")
    return command or None


def _preload(fields: Fields) -> tuple[tuple[str, ...], bool]:
    """Read `preload`: modules, or false for a tool that must never be forked from a zygote."""
    if fields.raw("preload") is False:
        return (), False
    if fields.has("preload") and not isinstance(fields.raw("preload"), list):
        fields.wrong("preload", f"must be an array of module names or false, not {type_name(fields.raw('preload'))}")
        return (), True
    modules = fields.texts("preload") or ()
    for module in modules:
        if not _MODULE_NAME.fullmatch(module):
            fields.wrong("preload", f"{module!r} is no module name")
    return modules, True


def _limits(fields: Fields) -> ToolLimits:
    nested = fields.nested("limits")
    if nested is None:
        return ToolLimits()
    limits = ToolLimits(
        open_files=nested.optional_integer("open_files", _OPEN_FILES),
        processes=nested.optional_integer("processes", _PROCESSES),
        cpu_seconds=nested.optional_integer("cpu_seconds", _CPU),
        address_space_mb=nested.optional_integer("address_space_mb", _ADDRESS_SPACE),
    )
    nested.refuse_unknown()
    return limits


def _env(fields: Fields) -> dict[str, str]:
    nested = fields.nested("env")
    if nested is None:
        return {}
    found: dict[str, str] = {}
    for name in nested.members:
        if not ENV_NAME.fullmatch(name):
            nested.wrong(name, f"{name!r} is no name of an environment variable")
        elif name in MARKS:
            nested.wrong(name, f"{name} is the daemon's own mark and cannot be set")
        else:
            found[name] = nested.text(name, "")
    return found
