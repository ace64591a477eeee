"""Holds on instances, and what the warm set has to know of settings and tools to grant them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.tools.serving import warm_events as ev

if TYPE_CHECKING:
    import asyncio

    from supervisord_py.tools.config import PoolLimits
    from supervisord_py.tools.serving.instance import Instance
    from supervisord_py.tools.spec import ToolSpec

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Granted:
    """A request's hold on an instance; `cold` when it waited for the start."""

    ticket: int
    instance: Instance
    cold: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """A held warm instance, for a client that talks to it directly. `over` is set when the instance ends."""

    address: str
    port: int
    pid: int | None
    instance: str
    cold_start_ms: int | None
    over: asyncio.Event


def bounds_of(pool: PoolLimits) -> ev.PoolBounds:
    """Return the bounds of the warm set that the settings ask for."""
    budget = None if pool.memory_budget_mb is None else pool.memory_budget_mb * _MEBIBYTE
    return ev.PoolBounds(max(1, pool.warm_keep_max), budget, pool.queue_max)


def rules_of(spec: ToolSpec) -> ev.Rules:
    """Return what the warm set has to know of a tool."""
    return ev.Rules(spec.digest, spec.concurrency, spec.warm_keep_seconds)
