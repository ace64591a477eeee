"""Every setting: its name, type, bounds, default and meaning, one frozen Struct a section of
`pxd.toml`.

Nothing is read here, and nothing validated: `daemon/settings_reader.py` derives its model from
these types, so that a key is spelled once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MIB = 1024 * 1024
KIB = 1024
HIDDEN = "[hidden]"  # stands where a secret is

Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]

_ALWAYS = """
    PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR SSL_CERT_FILE SSL_CERT_DIR
    http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY
"""
_LIBRARIES = """
    TZDIR TEMP TMP REQUESTS_CA_BUNDLE CURL_CA_BUNDLE all_proxy ALL_PROXY
    LD_LIBRARY_PATH DYLD_LIBRARY_PATH
    XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME
"""
_KERNELS = """
    LC_ALL LC_CTYPE LC_MESSAGES TERM TERM_PROGRAM TERM_PROGRAM_VERSION
    XDG_RUNTIME_DIR SSH_AUTH_SOCK SSH_AGENT_PID CONDA_PREFIX CONDA_DEFAULT_ENV VIRTUAL_ENV
    PYTHONPATH CUDA_VISIBLE_DEVICES CUDA_HOME OMP_NUM_THREADS MKL_NUM_THREADS
    OPENBLAS_NUM_THREADS IPYKERNEL_CELL_NAME
"""
_KEYS = """
    OPENAI_API_KEY ANTHROPIC_API_KEY GOOGLE_API_KEY GEMINI_API_KEY OPENROUTER_API_KEY
    PERPLEXITY_API_KEY
    PERPLEXITY_COOKIES EXA_API_KEY AZURE_OPENAI_API_KEY MISTRAL_API_KEY PI_PYTHON_GATEWAY_TOKEN
"""
# No PYTHON* variables: they would aim the daemon's interpreter settings at the tool's.
TOOLS_ENV = (*_ALWAYS.split(), *_LIBRARIES.split(), "LANGUAGE", "LC_*", "NODE_EXTRA_CA_CERTS")
KERNELS_ENV = (*_ALWAYS.split(), *_LIBRARIES.split(), *_KERNELS.split())
# variables whose names begin so reach kernels as well
KERNELS_ENV_PREFIXES = ("LC_", "XDG_", "PI_")
KERNELS_ENV_DENY = tuple(_KEYS.split())
# Beside them an agent gets the keys that its adapter and preset name.
PIPES_ENV = (*_ALWAYS.split(), "LANGUAGE", "LC_*", "TERM", "NODE_EXTRA_CA_CERTS")


class DaemonSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[daemon]`: the two processes themselves."""

    backoff_initial_seconds: PositiveSeconds = 0.1  # before a control plane that died is restarted
    backoff_max_seconds: PositiveSeconds = 20.0  # the longest such delay; a client waits for 30 s
    # processes, for tools and for kernels each, that keep imports ready to fork; 0 is none
    zygotes: Count = 10
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # least level of the own log


class LogsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[logs]`: the output of children, per unit."""

    total_bytes: Annotated[int, Meta(ge=512 * KIB)] = 64 * MIB  # beyond it the oldest eighth goes


class HistorySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[history]`: how much of what happened is kept.

    The last death of a unit is kept in any case.
    """

    runs_rows: PositiveCount = 100_000  # events of runs and executions that went well
    runs_days: PositiveSeconds = 90.0  # days after which they are forgotten
    # Of each of three kinds: starts and planned ends; failures; failed runs and executions.
    events_rows: PositiveCount = 100_000
    events_days: PositiveSeconds = 90.0  # days after which they are forgotten


class ToolsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tools]`: warm tools. A tool's own `tool.json` wins where it says something."""

    paths: tuple[str, ...] = ()  # folders of tools beside the first one; every source adds
    warm_keep_max: PositiveCount = 5  # warm tools beyond which an idle one is stopped
    # the least recently used first, or what took least to start
    evict: Literal["lru", "cost"] = "lru"
    memory_budget_mb: PositiveCount | None = None  # MiB of all warm tools together
    queue_max: Count = 512  # requests that may wait for a place
    warm_keep_seconds: Seconds = 300.0  # idle time after which a warm tool is stopped
    max_memory_mb: Count = 512  # MiB resident of one tool; 0 is none
    max_runtime_seconds: Seconds = 60.0  # wall clock of one run; 0 is none
    python: str | None = None  # interpreter of tools without their own; the daemon's by default
    env_allow: tuple[str, ...] = TOOLS_ENV  # variables that reach tools; a last * is a prefix
    max_body_bytes: PositiveCount = 16 * MIB  # largest request body


class KernelsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[kernels]`: Jupyter kernels and shell cells."""

    expose: Literal["both", "python", "bash"] = "both"  # cells that are offered
    # when a call names none
    backend: Literal["direct", "gateway-local", "gateway-external"] = "direct"
    python: str | None = None  # interpreter of all kernels; candidates are tried by default
    managed: bool = True  # whether the managed environment is a candidate
    skip_check: bool = False  # take an interpreter without asking it for ipykernel
    trace: bool = False  # log each message of a kernel by type and size, and the phases of a start
    timeout_seconds: PositiveSeconds = 30.0  # of a call that names none
    timeout_min_seconds: PositiveSeconds = 1.0  # a call's timeout is not below it
    timeout_max_seconds: PositiveSeconds = 600.0  # nor above it
    start_seconds: PositiveSeconds = 60.0  # bound of one start
    max_sessions: PositiveCount = 4  # kernels beyond which the oldest idle one goes
    idle_seconds: Seconds = 300.0  # idle time after which a kernel is stopped
    queue_max: Count = 64  # calls that may wait for one session
    ladder_terminate_seconds: Seconds = 3.0  # from the first SIGINT to a cell to SIGTERM
    ladder_kill_seconds: Seconds = 4.0  # to SIGKILL of the tree
    env_allow: tuple[str, ...] = KERNELS_ENV  # variables that reach kernels
    env_deny: tuple[str, ...] = KERNELS_ENV_DENY  # these never do
    output_cell_bytes: PositiveCount = 4096 * MIB  # complete output of one cell on disk
    # MiB beyond which a kernel is replaced after the cell; 0 is none; half of the machine's memory
    # by default
    soft_memory_mb: Count | None = None
    hard_memory_mb: Count = 4096  # MiB beyond which the cell is ended; 0 is none
    # of a kernel's tree, or of its user where no cgroup counts them
    processes: PositiveCount | None = None
    cpu_percent: PositiveCount | None = None  # of one processor, for a kernel's tree, by its cgroup
    # of an external gateway
    gateway_url: Annotated[str, Meta(pattern="(?i)^https?://")] | None = None
    gateway_token: str | None = None  # shown nowhere

    def __repr__(self) -> str:
        shown = (
            f"{name}={shown_value('kernels', name, getattr(self, name))!r}"
            for name in self.__struct_fields__
        )
        return f"KernelsSettings({', '.join(shown)})"


class PipesSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[pipes]`: scheduled executions of agents.

    A pipe's own `pipe.md` wins where it says something.
    """

    enabled: bool = True  # whether schedules and events start pipes; by hand they always do
    default_agent: str = "pi"  # adapter of pipes that name none
    timezone: str | None = None  # IANA zone of schedules; the machine's by default
    timeout_max_seconds: PositiveSeconds = 86400.0  # no pipe may name more
    stop_seconds: Seconds = 5.0  # from TERM to KILL
    settle_seconds: Seconds = 2.0  # grace of an agent that is done and does not exit
    slots_scheduled: PositiveCount = 2  # scheduled executions at a time
    slots_event: PositiveCount = 4  # executions for events at a time
    slots_manual: PositiveCount = 4  # executions by hand at a time
    retries: Count = 2  # further tries after a failure that can pass by itself
    retry_initial_seconds: PositiveSeconds = 10.0  # first delay before a retry
    env_allow: tuple[str, ...] = PIPES_ENV  # variables that reach agents; a last * is a prefix
    redact: tuple[str, ...] = ()  # regular expressions whose matches are never stored
    daily_cost: PositiveSeconds | None = None  # US dollars of each pipe in a day
    output_file_bytes: PositiveCount = 1024 * MIB  # of each stream in its file
    keep_days: PositiveSeconds = 30.0  # days after which executions are forgotten
    stagger_seconds: Seconds = 30.0  # starts after boot or sleep are spread over this


class ApiSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[api]`: how clients reach the daemon."""

    listen: str | None = None  # loopback address of an optional TCP listener, like 127.0.0.1:7860
    stream_heartbeat_seconds: PositiveSeconds = 15.0  # longest silence on a followed stream
    drain_seconds: Seconds = 5.0  # what requests in flight get when the control plane is replaced


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    daemon: DaemonSettings = DaemonSettings()
    logs: LogsSettings = LogsSettings()
    history: HistorySettings = HistorySettings()
    tools: ToolsSettings = ToolsSettings()
    kernels: KernelsSettings = KernelsSettings()
    pipes: PipesSettings = PipesSettings()
    api: ApiSettings = ApiSettings()


DEFAULTS = Settings()
SECTIONS: tuple[str, ...] = Settings.__struct_fields__
KEYS: tuple[tuple[str, str], ...] = tuple(
    (section, name) for section in SECTIONS for name in getattr(DEFAULTS, section).__struct_fields__
)
"""(section, key) of every setting, in the order of the documentation."""


SECRETS = frozenset({("kernels", "gateway_token")})
"""Settings whose values are shown nowhere, and may not stand in a command line."""


def shown_value(section: str, name: str, value: Any) -> Any:
    """Return the value of a setting as a JSON value that may be shown."""
    if value is not None and (section, name) in SECRETS:
        return HIDDEN
    return list(value) if isinstance(value, tuple) else value


def value_of(settings: Settings, section: str, name: str) -> Any:
    return getattr(getattr(settings, section), name)
