"""What a tool is to be: one validated, frozen declaration for both dialects of `tool.json` (CONTRACT §5).

A `ToolSpec` is a value. It is made by `manifest.load_tool` and by nothing else, so whoever holds one holds a tool whose
every setting is in range. Its `digest` changes whenever an instance started from it would be stale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEBIBYTE = 1024 * 1024


class Dialect(StrEnum):
    """Which of the two forms of `tool.json` the tool is written in."""

    PLAIN = "plain"
    PIXIE = "pixie"


class ListenMode(StrEnum):
    """How the tool gets its listening socket."""

    HANDOVER = "handover"
    PORT = "port"
    FD = "fd"


class MemoryMode(StrEnum):
    """What `max_memory_mb` bounds: resident memory of the tree, or the address space of each process."""

    RESIDENT = "resident"
    ADDRESS_SPACE = "address_space"


class InputTransport(StrEnum):
    """How a Pixie tool wants its inputs."""

    JSON = "json"
    MULTIPART = "multipart"


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Hard limits set in the child before exec; None leaves the daemon's own.

    Attributes:
        open_files: Number of descriptors (RLIMIT_NOFILE).
        processes: Number of processes and threads of the user (RLIMIT_NPROC).
        cpu_seconds: CPU time over the life of one process (RLIMIT_CPU), seconds.
        address_space_mb: Virtual memory of each process (RLIMIT_AS), MiB.
    """

    open_files: int | None = None
    processes: int | None = None
    cpu_seconds: int | None = None
    address_space_mb: int | None = None


@dataclass(frozen=True, slots=True)
class PixieSecret:
    """The name of an environment variable whose value lives in `.env` only."""

    key: str
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class ShowIf:
    """An input is shown, and can be required, only while the input `key` equals `equals` (a JSON value)."""

    key: str
    equals: Any


@dataclass(frozen=True, slots=True)
class PixieInput:
    """One declared input. `defaults` holds the default as its only element, or nothing (null is a default, too)."""

    key: str
    type: str
    label: str
    required: bool
    defaults: tuple[Any, ...] = ()
    show_if: ShowIf | None = None
    options: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The input as written, for what only its type knows: min, max, step, columns, schema."""


@dataclass(frozen=True, slots=True)
class PixieOutput:
    """One declared output; `streaming` ones arrive over `GET /stream?run_id=`."""

    key: str
    type: str
    label: str
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class PixieTraits:
    """What only Pixie's dialect knows. Unit of `validator_timeout_override`: seconds."""

    inputs: tuple[PixieInput, ...]
    outputs: tuple[PixieOutput, ...]
    secrets: tuple[PixieSecret, ...] = ()
    layout: str = "form"
    input_transport: InputTransport = InputTransport.JSON
    retain_runs: int = 100
    validator_timeout_override: int | None = None

    @property
    def streams(self) -> bool:
        """True when an output is declared as streaming."""
        return any(output.streaming for output in self.outputs)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool, whichever dialect it is written in.

    Attributes:
        name: The unit is `tool:<name>`; equals the folder's name.
        title: For people; the name where the manifest gives none.
        folder: Absolute path; the working directory of an instance.
        manifest: `tool.json` as parsed: what the tool's `GET /schema` must give.
        input_schema: JSON Schema 2020-12 of the input of a run. For Pixie tools it is derived from `inputs`.
        output_schema: The same for the answer; `{}` accepts everything.
        warm_keep_seconds: Idle seconds after the last request before the instance is stopped.
        max_memory_mb: MiB; 0 is no limit. What it bounds is `memory_limit`.
        max_runtime_seconds: Wall clock of one run.
        entrypoint: Python file, relative to the folder, inside it.
        command: argv instead of interpreter and entrypoint, `{port}` to be replaced; None for Python tools.
        python: Interpreter asked for by the tool; None leaves it to `interpreter.find_interpreter`.
        concurrency: Requests at a time; 1 for a Pixie tool with `concurrent: false`.
        preload: Modules that a zygote imports ahead.
        forkable: False when the tool must never be forked from a zygote (`preload: false`).
        env: Extra environment; stronger than `.env`. Out of repr: it may hold secrets.
        pinned: Wants to be exempt from LRU eviction from the start.
        pixie: What only Pixie's dialect has; None for plain tools.
        warnings: Sentences about what is doubtful but no error.
        digest: SHA-256 (hex) over everything that makes a running instance stale when it changes.
    """

    name: str
    title: str
    version: str
    description: str
    dialect: Dialect
    folder: Path
    manifest_path: Path
    manifest: Mapping[str, Any] = field(repr=False)
    input_schema: Mapping[str, Any] = field(repr=False)
    output_schema: Mapping[str, Any] = field(repr=False)
    digest: str
    warm_keep_seconds: float = 300.0
    max_memory_mb: int = 512
    max_runtime_seconds: float = 60.0
    entrypoint: str = "main.py"
    command: tuple[str, ...] | None = None
    python: str | None = None
    listen: ListenMode = ListenMode.HANDOVER
    memory_limit: MemoryMode = MemoryMode.RESIDENT
    start_timeout_seconds: float = 30.0
    stop_timeout_seconds: float = 5.0
    concurrency: int = 16
    preload: tuple[str, ...] = ()
    forkable: bool = True
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    pinned: bool = False
    limits: ToolLimits = ToolLimits()
    pixie: PixieTraits | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit's name, `tool:x`."""
        return f"tool:{self.name}"

    @property
    def max_rss_bytes(self) -> int | None:
        """Resident limit of the tree in bytes; None when there is none or the limit is one of address space."""
        if self.max_memory_mb == 0 or self.memory_limit is MemoryMode.ADDRESS_SPACE:
            return None
        return self.max_memory_mb * MEBIBYTE

    @property
    def max_address_space_bytes(self) -> int | None:
        """RLIMIT_AS in bytes: the smaller of `limits.address_space_mb` and, in that mode, `max_memory_mb`."""
        asked = [self.limits.address_space_mb] if self.limits.address_space_mb is not None else []
        if self.memory_limit is MemoryMode.ADDRESS_SPACE and self.max_memory_mb:
            asked.append(self.max_memory_mb)
        return min(asked) * MEBIBYTE if asked else None
