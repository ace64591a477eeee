"""Turns settings and paths into what the pipes' room is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.pipes.config import OutputLimits, PipesConfig, RetryLimits, SchedulerLimits, SlotLimits

if TYPE_CHECKING:
    from supervisord_py.daemon.paths import Paths
    from supervisord_py.daemon.schema import PipesSection, Settings

MIB = 1024 * 1024
EXAMPLES = Path(__file__).parent.parent / "examples" / "pipes"


@dataclass(frozen=True, slots=True)
class Listener:
    """The loopback listener: its address and real port, and the path of the file with its token."""

    host: str
    port: int
    token_file: str


def pipes_config(settings: Settings, paths: Paths, *, socket: str, listener: Listener | None) -> PipesConfig:
    """Return what pipes are told.

    Args:
        settings: All of them.
        paths: Where everything lies.
        socket: Path of the control socket.
        listener: On loopback; None where there is none.
    """
    pipes = settings.pipes
    return PipesConfig(
        pipes_dir=paths.pipes_dir,
        examples_dir=EXAMPLES,
        presets_file=paths.presets_file,
        agents_file=paths.agents_file,
        executions_dir=paths.executions_dir,
        socket=socket,
        enabled=pipes.enabled,
        default_agent=pipes.default_agent,
        timeout_seconds=min(pipes.timeout_seconds, pipes.timeout_max_seconds),
        timeout_max_seconds=pipes.timeout_max_seconds,
        stop_seconds=pipes.stop_seconds,
        settle_seconds=pipes.settle_seconds,
        preflight=pipes.preflight,
        preflight_seconds=pipes.preflight_seconds,
        file_bytes_max=pipes.file_bytes_max,
        max_memory_bytes=None if pipes.max_memory_mb is None else pipes.max_memory_mb * MIB,
        max_turns=pipes.max_turns,
        max_tokens=pipes.max_tokens,
        max_cost=pipes.max_cost,
        daily_tokens=pipes.daily_tokens,
        daily_cost=pipes.daily_cost,
        api_port=listener.port if listener else None,
        api_host=listener.host if listener else "127.0.0.1",
        api_token_file=listener.token_file if listener else None,
        default_timezone=pipes.timezone,
        env_allow=pipes.env_allow,
        slots=SlotLimits(pipes.slots_scheduled, pipes.slots_event, pipes.slots_manual),
        retries=_retries(pipes),
        output=_output(pipes),
        scheduler=_scheduler(pipes),
    )


def _retries(pipes: PipesSection) -> RetryLimits:
    return RetryLimits(
        max_retries=pipes.retries,
        initial_seconds=pipes.retry_initial_seconds,
        growth=pipes.retry_growth,
        max_seconds=pipes.retry_max_seconds,
        jitter=pipes.retry_jitter,
    )


def _output(pipes: PipesSection) -> OutputLimits:
    return OutputLimits(
        row_bytes=pipes.output_row_bytes,
        file_bytes=pipes.output_file_bytes,
        page_bytes=pipes.output_page_bytes,
        keep_days=pipes.keep_days,
        keep_executions=pipes.keep_executions,
        keep_bytes=pipes.keep_bytes,
        redact=pipes.redact,
    )


def _scheduler(pipes: PipesSection) -> SchedulerLimits:
    return SchedulerLimits(
        look_seconds=pipes.look_seconds,
        catch_up_seconds=pipes.catch_up_seconds,
        stagger_seconds=pipes.stagger_seconds,
        wake_silence_seconds=pipes.wake_silence_seconds,
        window_max_seconds=pipes.window_max_seconds,
        window_default_seconds=pipes.window_default_seconds,
        claim_days=pipes.claim_days,
    )
