"""All reasons of ends and all error types of executions: what each means, and what to do (CONTRACT
§7).

`pxctl help reasons` shows this, and the table in pxctl(1) is the same. Tests hold both, the
daemon's own lists and its sentences in `pxctl why` together.
"""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    word: str
    meaning: str
    step: str


REASONS = (
    Meaning("exit", "it exited by itself", "pxctl logs UNIT --stderr; pxctl why UNIT"),
    Meaning(
        "signal",
        "a signal that this daemon did not send ended it",
        "pxctl logs UNIT --stderr; look for a crash",
    ),
    Meaning("stopped", "someone asked to stop it", "pxctl start UNIT"),
    Meaning(
        "evicted_lru",
        "the warm set was full, and it was the first to go (tools.evict)",
        "pxctl pin TOOL, or raise tools.warm_keep_max (kernels: kernels.max_sessions)",
    ),
    Meaning(
        "evicted_ttl",
        "nobody used it for its warm_keep_seconds",
        "pxctl pin --forever TOOL, or raise warm_keep_seconds (kernels: kernels.idle_seconds)",
    ),
    Meaning(
        "memory_limit",
        "it used more memory than max_memory_mb",
        "raise max_memory_mb in tool.json (kernels: kernels.hard_memory_mb)",
    ),
    Meaning(
        "oom_kill",
        "the kernel killed it because memory ran out",
        "lower the limits of what runs beside it",
    ),
    Meaning(
        "runtime_limit",
        "a run took longer than max_runtime_seconds",
        "raise max_runtime_seconds in tool.json",
    ),
    Meaning(
        "cpu_limit", "it used more CPU time than its limit", "raise limits.cpu_seconds in tool.json"
    ),
    Meaning("watchdog", "it stopped giving signs of life", "pxctl logs UNIT --stderr"),
    Meaning(
        "readiness_timeout",
        "it did not become ready in time after its start",
        "pxctl tools debug TOOL, or raise start_timeout_seconds",
    ),
    Meaning(
        "early_exit",
        "it ended before it was ready, or could never be reached",
        "pxctl tools debug TOOL",
    ),
    Meaning(
        "spawn_failed", "it could not be started at all", "pxctl tools debug TOOL; pxctl doctor"
    ),
    Meaning("shutdown", "the daemon stopped", "pxctl start UNIT"),
    Meaning(
        "interrupted",
        "the keeper or the machine went down under it",
        "pxctl start UNIT; pxctl doctor",
    ),
    Meaning("cancelled", "its caller went away", "pxctl start UNIT, or run it again"),
    Meaning("timeout", "the caller's own deadline passed", "give it longer: --timeout"),
    Meaning(
        "replaced",
        "its files changed or it was restarted: a new instance took its place",
        "nothing to do",
    ),
    Meaning(
        "schema_drift",
        "its /schema differs from tool.json (a warning only)",
        "pxctl tools validate TOOL",
    ),
)

ERROR_TYPES = (
    Meaning(
        "timeout",
        "it did not end within its timeout",
        "raise timeout: in pipe.md, then pxctl pipe retry ID",
    ),
    Meaning(
        "crash", "the agent or command failed: exit code or signal", "pxctl pipe output ID --stderr"
    ),
    Meaning(
        "rate_limited",
        "the provider asked for fewer requests",
        "nothing: it is tried again (retries:); or add a preset to fall back to",
    ),
    Meaning(
        "quota_exhausted",
        "the account's quota or credit is used up",
        "name another preset in pipe.md, or wait",
    ),
    Meaning(
        "model_not_found",
        "the provider has no such model",
        "correct model in presets.toml or pipe.md",
    ),
    Meaning(
        "auth_failed",
        "the key is missing or refused",
        "check api_key in presets.toml and the pipe's .env",
    ),
    Meaning(
        "network",
        "the provider was not reached or broke off",
        "nothing: it is tried again (retries:); check url",
    ),
    Meaning(
        "context_overflow",
        "the prompt is longer than the model takes",
        "shorten it, or take another model",
    ),
    Meaning(
        "safety_refusal",
        "the model or provider refused to answer",
        "change the prompt; it is not retried",
    ),
    Meaning("cancelled", "someone cancelled it, or its pipe was removed", "pxctl pipe retry ID"),
    Meaning("shutdown", "the daemon stopped while it ran", "pxctl pipe retry ID"),
    Meaning("interrupted", "the keeper or the machine went down under it", "pxctl pipe retry ID"),
    Meaning(
        "agent_not_found",
        "the agent's program is not installed",
        "pxctl pipe validate NAME names what to install",
    ),
    Meaning("preset_not_found", "presets.toml has no such preset", "pxctl pipe validate NAME"),
    Meaning("config_error", "pipe.md or a file beside it is wrong", "pxctl pipe validate NAME"),
    Meaning(
        "missing_output", "it ended well without the output it must write", "pxctl pipe output ID"
    ),
    Meaning(
        "preflight_failed",
        "the provider did not answer before the start",
        "start it, then pxctl pipe retry ID",
    ),
    Meaning("disk_full", "the disk took no more", "pxctl doctor; then pxctl pipe retry ID"),
    Meaning("unknown", "none of the other words fits", "pxctl pipe output ID --stderr"),
    Meaning(
        "agent_incompatible",
        "the agent's version or runtime does not fit",
        "update it, or the Node it runs with",
    ),
    Meaning(
        "provider_error",
        "the provider failed (5xx) or sent nonsense",
        "nothing: it is tried again (retries:)",
    ),
    Meaning(
        "budget_exceeded",
        "it used more than its budget allows",
        "raise budget: or limits: in pipe.md",
    ),
    Meaning(
        "resource_limit", "it broke a limit of memory, output or time", "raise limits: in pipe.md"
    ),
)
TABLES = {"reason": REASONS, "error_type": ERROR_TYPES}
