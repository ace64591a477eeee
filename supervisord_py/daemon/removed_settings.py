"""Settings of earlier versions that are gone, and what to do instead. Each gives one warning, never a refusal."""

_REMOVED: dict[str, dict[str, str]] = {
    "daemon": {
        "watchdog_seconds control_hang_seconds": "a control plane that is silent for 30 s is replaced",
        "backoff_reset_seconds": "a control plane that lived for 60 s starts without delay",
        "stop_seconds": "an orderly stop gets what its slowest child gets, and 10 s at least",
        "platform cgroup": "what the machine offers is used",
    },
    "logs": {"spill_bytes": "1 MiB of a unit's output is held in memory while the disk takes none"},
    "api": {
        "token_file": "the token lies in api.token beside the ledger; a link there may lead elsewhere",
        "stream_buffer_bytes": "a follower may lag by 1 MiB",
        "stream_resume_seconds": "a stream that was cut off can be resumed for five seconds",
        "idempotency_body_bytes": "answers up to 1 MiB are kept for replay",
        "idempotency_seconds": "answers are kept for replay for a day",
    },
    "ledger": {
        "keep_days events_keep runs_keep cells_keep sessions_keep": "100,000 events and runs, 20,000 cells and 1,000 "
        "ended sessions are kept, for 90 days at most",
    },
    "tools": {
        "start_timeout_seconds stop_timeout_seconds concurrency": "write it into the tool's own tool.json or pxd.json",
        "queue_timeout_seconds": "a request waits for a place for 60 s at most, or for its own timeout",
        "answer_buffer_bytes": "256 KiB of an answer are held for a slow reader",
        "listen_backlog": "128 connections wait at a tool's socket",
        "stderr_tail_bytes": "64 KiB of stderr ride with a failure",
        "validate_timeout_seconds sync_timeout_seconds": "a check may take 30 s, the build of a .venv half an hour",
    },
    "kernels": {
        "debug_startup": "`trace` logs the phases of a start as well",
        "prelude modules_dir": "the prelude and the folder `modules` beside pxd.toml are loaded into Python kernels",
        "stop_seconds": "a kernel gets 5 s from SIGTERM to SIGKILL",
        "spare_idle_seconds": "a kernel that was started ahead ends after ten minutes unused",
        "restarts start_failures start_failure_seconds": "a crashed kernel comes back once, three failed starts end it",
        "env_allow_prefixes": "write the names into env_allow; LC_, XDG_ and PI_ pass",
        "ladder_nudge_seconds": "the kernel's main thread is woken 20 ms after the first SIGINT",
        "output_preview_bytes output_head_bytes output_inline_bytes": "an answer shows 64 KiB of a cell's output",
        "output_session_bytes output_total_bytes output_keep_days": "8 GiB of a session's output are kept, 16 GiB of "
        "all, for a week; `pxctl kernel stop` and output_cell_bytes keep less",
        "memory_grace_seconds": "a kernel over hard_memory_mb gets 2 s from SIGTERM to SIGKILL",
        "open_files cpu_seconds": "set it in the cell: resource.setrlimit; `processes` is still a setting",
        "gateway_token_file": "write the token into gateway_token, in a pxd.toml of mode 0600, or in the environment",
        "gateway_kernel_name": "the kernelspec python3 is asked for",
        "gateway_dir": "the local gateway's files lie beside the ledger, in `gateway`; a link there may lead elsewhere",
        "gateway_cull_idle_seconds": "the local gateway ends kernels that were idle for an hour",
        "gateway_start_seconds gateway_lock_seconds": "the local gateway has 30 s to start",
        "gateway_ca_file": "set SSL_CERT_FILE in pxd's environment to a file with the private authority",
        "gateway_cert_file gateway_key_file": "let a proxy on this machine add a client certificate",
        "gateway_silent_start_seconds": "a kernel that says nothing fails after start_seconds",
        "gateway_silent_output_seconds": "ten seconds of silence after a reply end the wait for output",
    },
    "pipes": {
        "timeout_seconds": "300 s, where a pipe's own `timeout` says nothing",
        "preflight preflight_seconds": "providers are asked before an agent is started, for 5 s at most",
        "retry_growth retry_max_seconds retry_jitter": "delays grow threefold up to ten minutes, a fifth is chance",
        "max_turns max_tokens max_cost max_memory_mb": "write `limits` into pipe.md; 200 turns are the default",
        "daily_tokens": "write `limits: {daily_tokens: ...}` into pipe.md",
        "file_bytes_max": "a pipe.md has 1 MiB at most",
        "output_row_bytes output_page_bytes": "a row holds 256 KiB of each stream, a page 64 KiB",
        "keep_executions keep_bytes": "10,000 executions of each pipe and 4 GiB of output are kept, for keep_days",
        "look_seconds": "a changed pipe.md is read within a second",
        "catch_up_seconds": "a missed run is made good within twelve hours",
        "wake_silence_seconds": "an agent that is silent for a minute after sleep is ended",
        "window_max_seconds window_default_seconds": "the window of a prompt is the pipe's interval, 8 h at most",
        "claim_days": "an event is remembered for a week, so that it counts once",
        "loop_seconds": "an event never comes back to a pipe that had a part in it, however late",
        "hook_seconds": "a pipe with `trigger: pipe_failed:NAME` tells of failures; its `timeout` bounds it",
    },
}
"""Section: names, separated by blanks: what to do instead, as the warning quotes it."""


def removed_words(section: str, name: str) -> str | None:
    """Return what is said of a removed setting; None for every other name."""
    for names, instead in _REMOVED.get(section, {}).items():
        if name in names.split():
            return f"the setting {section}.{name} no longer exists and is ignored: {instead}"
    return None
