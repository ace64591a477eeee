"""The one port through which the rooms get processes (DESIGN D10). Its only implementation now is the keeper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.process.spec import (
        Caps,
        Child,
        ChildSpec,
        ExitRecord,
        Liveness,
        StopReport,
        TreeStat,
    )


class Placement(Protocol):
    """Somewhere that holds processes. Every call is idempotent by `key`, the instance id chosen by the caller.

    Every method may raise `KeeperLostError`; `spawn` raises `StartFailedError` (reason spawn_failed, stage, errno).
    """

    @property
    def caps(self) -> Caps:
        """What this placement can do here."""

    @property
    def log_dir(self) -> str:
        """Root of the output segments: `log_dir/<kind>/<name>/`."""

    def new_key(self) -> str:
        """Return a fresh instance id of this daemon."""

    async def spawn(self, key: str, spec: ChildSpec) -> Child:
        """Start a child; returns once exec has succeeded."""

    async def attach(self, key: str) -> Child | None:
        """Return the child of that key if it is held, alive or exited and not yet released."""

    async def list(self, prefix: str = "") -> Sequence[Child]:
        """Return all held children whose unit begins with `prefix`."""

    async def liveness(self, key: str) -> Liveness:
        """Say whether the leader of `key` lives."""

    async def wait(self, key: str) -> ExitRecord:
        """Wait until the leader was reaped (not: until its tree is gone). Any number may wait."""

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the leader."""

    async def signal_group(self, key: str, signum: int) -> None:
        """Send a signal to the leader's process group at once, as Ctrl-C does; its other sessions are spared."""

    async def stop(self, key: str, *, grace_seconds: float, reason: str) -> StopReport:
        """TERM, grace, KILL to the whole tree; returns when it is gone or with what is left."""

    async def stat(self, keys: Sequence[str], *, shared_once: bool = False) -> dict[str, TreeStat]:
        """Measure whole trees; `shared_once`: slower, and a page that several processes share counts once."""

    async def annotate(self, key: str, tag: str) -> None:
        """Replace the opaque note kept with the child."""

    async def rename(self, key: str, new_key: str, *, unit: str, tag: str) -> Child:
        """Have a running child go on as `new_key` of another unit: its output from now on and its end are theirs."""

    async def seen(self, key: str, position: int) -> None:
        """Say that all of a child's output before a position is safe with whoever follows it; see `hold_bytes`."""

    async def release(self, key: str) -> None:
        """Acknowledge the exit record; the key may be forgotten."""

    async def put_fd(self, name: str, fd: int) -> None:
        """Deposit a duplicate of `fd` with the keeper, where it outlives the control plane."""

    async def take_fd(self, name: str) -> int | None:
        """Return a new duplicate of a deposited descriptor, or None."""

    async def drop_fd(self, name: str) -> None:
        """Forget a deposited descriptor."""

    def on_exit(self, callback: Callable[[ExitRecord], None]) -> None:
        """Call back for every exit record, also of children that nobody waits for; once each per control plane."""
