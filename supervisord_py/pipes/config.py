"""What the pipes' room is told by the daemon: plain values out of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisord_py.config.settings import PIPES_ENV

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


class SlotLimits(msgspec.Struct, frozen=True):
    """How many executions of a group run at a time; at least 1 each."""

    scheduled: int = 1
    event: int = 4
    manual: int = 4


class RetryLimits(msgspec.Struct, frozen=True):
    """Backoff of retries: delay = initial x growth^n, with jitter, between the bounds; a provider's hint wins."""

    max_retries: int = 2  # new rows after the first, for a pipe that says nothing
    initial_seconds: float = 10.0
    growth: float = 3.0
    max_seconds: float = 600.0
    jitter: float = 0.2


class OutputLimits(msgspec.Struct, frozen=True):
    """How much output is kept."""

    row_bytes: int = 256 * 1024  # of each stream as text in the row (head and tail)
    file_bytes: int = 1024 * MIB  # of each stream in its file; what is over is counted, not kept
    page_bytes: int = 64 * 1024  # default page
    keep_days: float = 30.0
    keep_executions: int = 10_000  # of each pipe
    keep_bytes: int = 4096 * MIB  # of all files
    redact: tuple[str, ...] = ()


class SchedulerLimits(msgspec.Struct, frozen=True):
    """When schedules are looked at, and how late is too late."""

    look_seconds: float = 1.0  # time between two looks at the folders
    catch_up_seconds: float = 12 * 3600.0  # a missed wall-clock run is made good within this
    stagger_seconds: float = 30.0  # after a start or a resume, starts are spread over this
    wake_silence_seconds: float = 60.0  # an agent silent for so long after a resume is ended
    window_max_seconds: float = 8 * 3600.0  # longest time window of a prompt
    window_default_seconds: float = 3600.0  # of a pipe that never succeeded and has no interval
    # A due time that was served and lies ahead of the clock by no more is not served twice; one further ahead comes
    # from a clock that was wrong, and is forgotten.
    step_back_seconds: float = 3600.0
    late_seconds: float = 60.0  # a start that is later than this counts as missed and made good
    sleep_seconds: float = 60.0  # longest sleep of the scheduler: a step of the wall clock is noticed within it
    deferred_events: int = 64  # events that wait for a busy pipe; more are refused
    shortest_seconds: float = 10.0  # no schedule may be denser


class PipesConfig(msgspec.Struct, frozen=True):
    """Everything the room needs to know."""

    pipes_dir: Path  # folders of pipes
    examples_dir: Path  # pipes that ship with the package
    presets_file: Path  # beside the settings, as is the next; both may be absent
    agents_file: Path
    executions_dir: Path  # `<executions_dir>/<id>/` holds output files (0600) and private agent files of one execution
    socket: str  # path of the control socket; told in the prompt, with `api_port` where there is a TCP listener
    enabled: bool = True
    default_agent: str = "pi"
    timeout_seconds: float = 300.0
    timeout_max_seconds: float = 86400.0
    stop_seconds: float = 5.0  # from TERM to KILL
    settle_seconds: float = 2.0  # grace after the agent said that it is done, before its tree is stopped
    preflight: bool = True  # whether providers are asked before a spawn
    preflight_seconds: float = 5.0
    file_bytes_max: int = MIB
    max_memory_bytes: int | None = None
    max_turns: int | None = 200
    max_tokens: int | None = None
    max_cost: float | None = None
    daily_tokens: int | None = None
    daily_cost: float | None = None
    api_port: int | None = None  # TCP port or None
    api_host: str = "127.0.0.1"  # loopback address of that port
    api_token_file: str | None = None  # where the port's token lies, absolute; agents get the path, never the token
    default_timezone: str | None = None
    env_allow: tuple[str, ...] = PIPES_ENV
    slots: SlotLimits = SlotLimits()
    retries: RetryLimits = RetryLimits()
    output: OutputLimits = OutputLimits()
    scheduler: SchedulerLimits = SchedulerLimits()
