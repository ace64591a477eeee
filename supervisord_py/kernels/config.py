"""What the daemon tells this room: its settings, the places it works in, and bounds that are no settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from supervisord_py.config.settings import MIB, KernelsSettings

if TYPE_CHECKING:
    from pathlib import Path


class CellLimits(Struct, frozen=True):
    """How much of a cell's output is kept, published and shown. Bytes; days."""

    preview_bytes: int = (
        64 * 1024
    )  # what the kernel publishes live of one cell, and about what `text` of a result holds
    head_bytes: int = 16 * 1024  # how much of the preview is the beginning; the rest is the end
    cell_bytes: int = 4096 * MIB  # complete output on disk of one cell, beyond which it is capped, and says so
    inline_bytes: int = 256 * 1024  # a rich output larger than this becomes an artifact file with a reference
    session_bytes: int = 8192 * MIB  # all cells of one session; the oldest go
    total_bytes: int = 16384 * MIB  # all sessions; the oldest go
    keep_days: float = 7.0  # age at which outputs of cells go


class KernelsConfig(KernelsSettings, frozen=True, kw_only=True):
    """Everything the room is told. The gateway's token is a secret: never in logs, or the environment of a kernel."""

    run_dir: Path  # private (0700), short: connection files and ipc sockets, `run_dir/k/<session id>/`
    cells_dir: Path  # complete outputs of cells, `cells_dir/<session id>/`
    data_dir: Path  # the managed environment (`data_dir/python`) and overlays (`data_dir/overlays`)
    modules_dir: Path  # the user's modules, loaded into every Python kernel
    gateway_dir: Path  # where the local gateway's metadata and kernelspecs lie
    token_setting: str = "kernels.gateway_token"  # noqa: S105  # which setting the token comes from
    gateway_start_seconds: float = 30.0  # how long the start of the local gateway may take
    stop_seconds: float = 5.0  # from TERM to KILL in an orderly stop
    memory_grace_seconds: float = 2.0  # the same over memory; who grows on by a quarter is killed at once
    zygotes: int = 3  # interpreters whose imports are kept ready to fork kernels from; 0 is none
    output: CellLimits = CellLimits()
