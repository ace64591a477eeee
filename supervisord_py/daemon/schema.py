"""Every setting: its name, type, bounds, default and meaning. Nothing is read here.

One frozen model a section of `pxd.toml`. Models are strict: a text is no number. What the environment and `--set` give
as text is turned into the type of its setting first (settings.py).
"""

from __future__ import annotations

import json
import os
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from supervisord_py.kernels.config import ENV_ALLOW, ENV_ALLOW_PREFIXES, ENV_DENY
from supervisord_py.pipes.config import ENV_ALLOW as PIPES_ENV_ALLOW
from supervisord_py.tools.config import DEFAULT_ENV_ALLOW

MIB = 1024 * 1024
KIB = 1024

Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """What all sections share: closed, frozen, strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DaemonSection(Section):
    """`[daemon]`: the two processes themselves."""

    stop_seconds: PositiveSeconds = Field(
        default=10.0, description="how long an orderly stop may take before the keeper kills"
    )
    control_hang_seconds: PositiveSeconds = Field(
        default=30.0, description="silence after which the control plane is replaced"
    )
    backoff_initial_seconds: PositiveSeconds = Field(
        default=0.1, description="first delay before the control plane is restarted"
    )
    backoff_max_seconds: PositiveSeconds = Field(default=30.0, description="longest such delay")
    cgroup: Literal["auto", "off"] = Field(default="auto", description="whether cgroups are used where they can be")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level of the own log"
    )


class LogsSection(Section):
    """`[logs]`: the output of children, per unit."""

    segment_bytes: Annotated[int, Field(ge=64 * KIB)] = Field(
        default=8 * MIB, description="size at which a segment is closed"
    )
    total_bytes: Annotated[int, Field(ge=128 * KIB)] = Field(
        default=64 * MIB, description="beyond it the oldest segments go"
    )


class ToolsSection(Section):
    """`[tools]`: warm tools. A tool's own `tool.json` wins where it says something."""

    paths: tuple[str, ...] = Field(default=(), description="folders of tools beside the first one; every source adds")
    warm_keep_max: PositiveCount = Field(
        default=5, description="warm tools beyond which the least recently used is stopped"
    )
    memory_budget_mb: PositiveCount | None = Field(
        default=None, description="MiB of all warm tools together; none by default"
    )
    queue_max: Count = Field(default=512, description="requests that may wait for a place")
    queue_timeout_seconds: PositiveSeconds = Field(default=60.0, description="longest wait in that line")
    warm_keep_seconds: Seconds = Field(default=300.0, description="idle time after which a warm tool is stopped")
    max_memory_mb: Count = Field(default=512, description="MiB resident of one tool; 0 is none")
    max_runtime_seconds: Seconds = Field(default=60.0, description="wall clock of one run; 0 is none")
    start_timeout_seconds: PositiveSeconds = Field(default=30.0, description="from the spawn to ready")
    stop_timeout_seconds: Seconds = Field(default=5.0, description="from TERM to KILL")
    concurrency: PositiveCount = Field(default=16, description="requests at a time for one instance")
    python: str | None = Field(
        default=None, description="interpreter of tools without their own; the daemon's by default"
    )
    env_allow: tuple[str, ...] = Field(
        default=DEFAULT_ENV_ALLOW, description="variables that reach tools; a last * is a prefix"
    )
    max_body_bytes: PositiveCount = Field(default=16 * MIB, description="largest request body")
    answer_buffer_bytes: Annotated[int, Field(ge=4 * KIB)] = Field(
        default=256 * KIB, description="held for a slow reader"
    )
    listen_backlog: PositiveCount = Field(default=128, description="backlog of a tool's listening socket")
    stderr_tail_bytes: Count = Field(default=64 * KIB, description="how much of stderr rides with a failure")
    validate_timeout_seconds: PositiveSeconds = Field(
        default=30.0, description="bound of each spawning check of validate"
    )
    sync_timeout_seconds: PositiveSeconds = Field(default=1800.0, description="bound of one build of a .venv")


class KernelsSection(Section):
    """`[kernels]`: Jupyter kernels and shell cells."""

    expose: Literal["both", "python", "bash"] = Field(default="both", description="cells that are offered")
    backend: Literal["direct", "gateway-local", "gateway-external"] = Field(
        default="direct", description="who runs kernels when a call names nobody"
    )
    python: str | None = Field(default=None, description="interpreter of all kernels; candidates are tried by default")
    managed: bool = Field(default=True, description="whether the managed environment is a candidate")
    skip_check: bool = Field(default=False, description="take an interpreter without asking it for ipykernel")
    trace: bool = Field(default=False, description="log type and size of each message of a kernel")
    debug_startup: bool = Field(default=False, description="log how long each phase of a start took")
    prelude: bool = Field(default=True, description="load the prelude and the modules into Python kernels")
    modules_dir: str | None = Field(
        default=None, description="the user's modules; `modules` beside the settings by default"
    )
    timeout_seconds: PositiveSeconds = Field(default=30.0, description="of a call that names none")
    timeout_min_seconds: PositiveSeconds = Field(default=1.0, description="a call's timeout is not below it")
    timeout_max_seconds: PositiveSeconds = Field(default=600.0, description="nor above it")
    start_seconds: PositiveSeconds = Field(default=60.0, description="bound of one start")
    stop_seconds: Seconds = Field(default=5.0, description="from TERM to KILL")
    spares: Count = Field(default=1, description="kernels started ahead, for the interpreters used last; 0 is none")
    spare_idle_seconds: PositiveSeconds = Field(default=600.0, description="time after which an unused one is ended")
    max_sessions: PositiveCount = Field(default=4, description="kernels beyond which the oldest idle one goes")
    idle_seconds: Seconds = Field(default=300.0, description="idle time after which a kernel is stopped")
    queue_max: Count = Field(default=64, description="calls that may wait for one session")
    restarts: Count = Field(default=1, description="how often in a row a crashed kernel comes back by itself")
    start_failures: PositiveCount = Field(default=3, description="failed starts that make a hard failure")
    start_failure_seconds: PositiveSeconds = Field(default=60.0, description="within which they are counted")
    env_allow: tuple[str, ...] = Field(default=ENV_ALLOW, description="variables that reach kernels")
    env_allow_prefixes: tuple[str, ...] = Field(default=ENV_ALLOW_PREFIXES, description="so do those that begin so")
    env_deny: tuple[str, ...] = Field(default=ENV_DENY, description="these never do")
    ladder_nudge_seconds: Seconds = Field(default=0.02, description="from the first SIGINT to the nudge")
    ladder_again_seconds: Seconds = Field(default=1.0, description="to the second SIGINT")
    ladder_terminate_seconds: Seconds = Field(default=3.0, description="to SIGTERM")
    ladder_kill_seconds: Seconds = Field(default=4.0, description="to SIGKILL of the tree")
    output_preview_bytes: PositiveCount = Field(default=64 * KIB, description="of a cell's output live and in answers")
    output_head_bytes: Count = Field(default=16 * KIB, description="of these from the beginning, the rest from the end")
    output_cell_bytes: PositiveCount = Field(default=4096 * MIB, description="complete output of one cell on disk")
    output_inline_bytes: Count = Field(default=256 * KIB, description="larger rich outputs become artifacts")
    output_session_bytes: PositiveCount = Field(default=8192 * MIB, description="all cells of a session on disk")
    output_total_bytes: PositiveCount = Field(default=16384 * MIB, description="all sessions on disk")
    output_keep_days: PositiveSeconds = Field(default=7.0, description="days after which outputs go")
    soft_memory_mb: Count = Field(default=1024, description="MiB beyond which a kernel is replaced after the cell")
    hard_memory_mb: Count = Field(default=4096, description="MiB beyond which the cell is ended; 0 is none")
    memory_grace_seconds: Seconds = Field(default=2.0, description="from TERM to KILL of a kernel beyond it")
    open_files: PositiveCount | None = Field(default=None, description="rlimit of a kernel")
    processes: PositiveCount | None = Field(default=None, description="rlimit of a kernel")
    cpu_seconds: PositiveCount | None = Field(default=None, description="rlimit of a kernel")
    gateway_url: str | None = Field(default=None, description="external gateway, http:// or https://")
    gateway_token: SecretStr | None = Field(default=None, description="its token; shown nowhere")
    gateway_token_file: str | None = Field(
        default=None, description="file with its token, of mode 0600, where gateway_token says none"
    )
    gateway_kernel_name: str = Field(default="python3", description="kernelspec asked for at an external gateway")
    gateway_dir: str | None = Field(
        default=None, description="metadata, lock and log of the local gateway; beside the ledger by default"
    )
    gateway_cull_idle_seconds: Seconds = Field(default=3600.0, description="the local gateway ends idle kernels after")
    gateway_start_seconds: PositiveSeconds = Field(default=30.0, description="bound of the local gateway's start")
    gateway_lock_seconds: PositiveSeconds = Field(default=35.0, description="longest wait for its lock")


class PipesSection(Section):
    """`[pipes]`: scheduled executions of agents. A pipe's own `pipe.md` wins where it says something."""

    enabled: bool = Field(default=True, description="whether schedules and events start pipes; by hand they always do")
    default_agent: str = Field(default="pi", description="adapter of pipes that name none")
    timezone: str | None = Field(default=None, description="IANA zone of schedules; the machine's by default")
    timeout_seconds: PositiveSeconds = Field(default=300.0, description="of an execution whose pipe names none")
    timeout_max_seconds: PositiveSeconds = Field(default=86400.0, description="no pipe may name more")
    stop_seconds: Seconds = Field(default=5.0, description="from TERM to KILL")
    settle_seconds: Seconds = Field(default=2.0, description="grace of an agent that is done and does not exit")
    slots_scheduled: PositiveCount = Field(default=1, description="scheduled executions at a time")
    slots_event: PositiveCount = Field(default=4, description="executions for events at a time")
    slots_manual: PositiveCount = Field(default=4, description="executions by hand at a time")
    retries: Count = Field(default=2, description="further tries after a failure that can pass by itself")
    retry_initial_seconds: PositiveSeconds = Field(default=10.0, description="first delay before a retry")
    retry_growth: Annotated[float, Field(ge=1)] = Field(default=3.0, description="factor of each further delay")
    retry_max_seconds: PositiveSeconds = Field(default=600.0, description="longest delay")
    retry_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="share of a delay that is chance"
    )
    max_turns: PositiveCount | None = Field(default=200, description="turns of a model that end an execution")
    max_tokens: PositiveCount | None = Field(default=None, description="tokens that end an execution")
    max_cost: PositiveSeconds | None = Field(default=None, description="US dollars that end an execution")
    max_memory_mb: PositiveCount | None = Field(default=None, description="MiB resident of one execution's tree")
    daily_tokens: PositiveCount | None = Field(default=None, description="tokens of each pipe in a day")
    daily_cost: PositiveSeconds | None = Field(default=None, description="US dollars of each pipe in a day")
    preflight: bool = Field(default=True, description="ask providers before an agent is started")
    preflight_seconds: PositiveSeconds = Field(default=5.0, description="bound of that question")
    env_allow: tuple[str, ...] = Field(
        default=PIPES_ENV_ALLOW, description="variables that reach agents; a last * is a prefix"
    )
    redact: tuple[str, ...] = Field(default=(), description="regular expressions whose matches are never stored")
    file_bytes_max: PositiveCount = Field(default=MIB, description="largest pipe.md")
    output_row_bytes: PositiveCount = Field(default=256 * KIB, description="of each stream as text in its row")
    output_file_bytes: PositiveCount = Field(default=1024 * MIB, description="of each stream in its file")
    output_page_bytes: PositiveCount = Field(default=64 * KIB, description="a page of output that names no limit")
    keep_days: PositiveSeconds = Field(default=30.0, description="days after which executions are forgotten")
    keep_executions: PositiveCount = Field(default=10_000, description="executions kept of each pipe")
    keep_bytes: PositiveCount = Field(default=4096 * MIB, description="output files of all executions")
    look_seconds: PositiveSeconds = Field(default=1.0, description="longest time until a changed pipe.md is read")
    catch_up_seconds: Seconds = Field(default=43_200.0, description="a missed run is made good within this")
    stagger_seconds: Seconds = Field(default=30.0, description="starts after boot or sleep are spread over this")
    wake_silence_seconds: PositiveSeconds = Field(
        default=60.0, description="silence after sleep that ends an execution"
    )
    window_max_seconds: PositiveSeconds = Field(default=28_800.0, description="longest time window of a prompt")
    window_default_seconds: PositiveSeconds = Field(default=3600.0, description="window of a pipe without an interval")
    claim_days: PositiveSeconds = Field(default=7.0, description="days an event is remembered, so that it counts once")


class ApiSection(Section):
    """`[api]`: how clients reach the daemon."""

    listen: str | None = Field(
        default=None, description="loopback address of an optional TCP listener, like 127.0.0.1:7860"
    )
    token_file: str | None = Field(
        default=None, description="its bearer token; beside the ledger by default, made when missing"
    )
    stream_heartbeat_seconds: PositiveSeconds = Field(default=15.0, description="longest silence on a followed stream")
    drain_seconds: Seconds = Field(
        default=5.0, description="what requests in flight get when the control plane is replaced"
    )


class LedgerSection(Section):
    """`[ledger]`: how much is remembered."""

    keep_days: PositiveCount = Field(default=90, description="days after which all of it is forgotten")


class Settings(Section):
    """All settings of one daemon."""

    daemon: DaemonSection = DaemonSection()
    logs: LogsSection = LogsSection()
    tools: ToolsSection = ToolsSection()
    kernels: KernelsSection = KernelsSection()
    pipes: PipesSection = PipesSection()
    api: ApiSection = ApiSection()
    ledger: LedgerSection = LedgerSection()


KEYS: tuple[tuple[str, str], ...] = tuple(
    (section, name) for section, field in Settings.model_fields.items() for name in type(field.default).model_fields
)
"""(section, key) of every setting, in the order of the documentation."""

HIDDEN = "[hidden]"
"""Stands where a secret is."""

_SEPARATORS = {("tools", "paths"): os.pathsep}
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def shown(value: Any) -> Any:
    """Return the value of a setting as a JSON value that may be shown."""
    match value:
        case SecretStr():
            return HIDDEN
        case tuple():
            return list(value)
        case _:
            return value


def typed(section: str, name: str, text: str) -> Any:
    """Turn a text into the type of its setting; what does not fit stays a text, which validation then refuses.

    A list is JSON (`["a", "b"]`) or its items joined by commas; folders are joined as in PATH. An empty text is None
    where a setting may be None.
    """
    kinds = _kinds(section, name)
    if type(None) in kinds and not text:
        return None
    for kind in kinds:
        if kind is int or kind is float:
            return _number(kind, text)
        if kind is bool:
            return _WORDS.get(text.lower(), text)
        if get_origin(kind) is tuple:
            return _items(text, _SEPARATORS.get((section, name), ","))
    return text


def _kinds(section: str, name: str) -> tuple[Any, ...]:
    annotation = type(Settings.model_fields[section].default).model_fields[name].annotation
    union = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return tuple(get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in union)


def _number(kind: type[int | float], text: str) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def _items(text: str, separator: str) -> tuple[Any, ...] | str:
    if not text.startswith("["):
        return tuple(item.strip() for item in text.split(separator) if item.strip())
    try:
        return tuple(json.loads(text))
    except ValueError:
        return text


SECRETS = frozenset(key for key in KEYS if SecretStr in _kinds(*key))
"""Settings whose values are shown nowhere, and may not stand in a command line."""
