"""Settings of the first edition that are gone. Each gives one warning, never a refusal: an old file is still good."""

_REMOVED = {
    "daemon": "watchdog_seconds control_hang_seconds backoff_reset_seconds stop_seconds platform cgroup",
    "logs": "spill_bytes",
    "api": "token_file stream_buffer_bytes stream_resume_seconds idempotency_body_bytes idempotency_seconds",
    "ledger": "keep_days events_keep runs_keep cells_keep sessions_keep",
    "tools": """
        start_timeout_seconds stop_timeout_seconds concurrency queue_timeout_seconds answer_buffer_bytes
        listen_backlog stderr_tail_bytes validate_timeout_seconds sync_timeout_seconds
    """,
    "kernels": """
        debug_startup prelude modules_dir stop_seconds spare_idle_seconds restarts start_failures
        start_failure_seconds env_allow_prefixes ladder_nudge_seconds output_preview_bytes output_head_bytes
        output_inline_bytes output_session_bytes output_total_bytes output_keep_days memory_grace_seconds
        open_files cpu_seconds gateway_token_file gateway_kernel_name gateway_dir gateway_cull_idle_seconds
        gateway_start_seconds gateway_lock_seconds gateway_ca_file gateway_cert_file gateway_key_file
        gateway_silent_start_seconds gateway_silent_output_seconds
    """,
    "pipes": """
        timeout_seconds preflight preflight_seconds retry_growth retry_max_seconds retry_jitter max_turns
        max_tokens max_cost max_memory_mb daily_tokens file_bytes_max output_row_bytes output_page_bytes
        keep_executions keep_bytes look_seconds catch_up_seconds wake_silence_seconds window_max_seconds
        window_default_seconds claim_days loop_seconds hook_seconds
    """,
}
"""Section: names, separated by blanks."""


def removed_words(section: str, name: str) -> str | None:
    """Return what is said of a removed setting; None for every other name."""
    if name not in _REMOVED.get(section, "").split():
        return None
    instead = "a constant, or a key of the unit's own file, took its place; see CHANGELOG"
    return f"the setting {section}.{name} no longer exists and is ignored: {instead}"
