"""Settings of earlier versions that are gone, and what to do instead. Each gives one warning, never a refusal."""

REMOVED: dict[tuple[str, str], str] = {
    # [daemon], [logs], [api], [ledger]
    ("daemon", "watchdog_seconds"): "the keeper asks every 10 s; control_hang_seconds says how long it waits",
    ("daemon", "backoff_reset_seconds"): "a control plane that lived for 60 s starts without delay",
    ("daemon", "platform"): "what the machine offers is used",
    ("logs", "spill_bytes"): "1 MiB of a unit's output is held in memory while the disk takes none",
    ("api", "stream_buffer_bytes"): "a follower may lag by 1 MiB",
    ("api", "idempotency_body_bytes"): "answers up to 1 MiB are kept for replay",
    ("api", "idempotency_seconds"): "answers are kept for replay for a day",
    ("ledger", "events_keep"): "100,000 events are kept, for keep_days at most",
    ("ledger", "runs_keep"): "100,000 runs are kept, for keep_days at most",
    ("ledger", "cells_keep"): "20,000 cells are kept, for keep_days at most",
    ("ledger", "sessions_keep"): "1,000 ended sessions are kept, for keep_days at most",
    # [tools]
    # [pipes]
    ("pipes", "loop_seconds"): "an event never comes back to a pipe that had a part in it, however late",
    ("pipes", "hook_seconds"): "a pipe with `trigger: pipe_failed:NAME` tells of failures; its `timeout` bounds it",
    # [kernels]: backends, interpreters
    ("api", "stream_resume_seconds"): "a stream that was cut off can be resumed for five seconds",
    ("kernels", "gateway_ca_file"): "set SSL_CERT_FILE in pxd's environment to a file with the private authority",
    ("kernels", "gateway_cert_file"): "client certificates are no longer offered; let a proxy on this machine add one",
    ("kernels", "gateway_key_file"): "client certificates are no longer offered; let a proxy on this machine add one",
    ("kernels", "gateway_silent_start_seconds"): "a kernel that says nothing fails after start_seconds",
    ("kernels", "gateway_silent_output_seconds"): "ten seconds of silence after a reply end the wait for output",
    # [kernels]: sessions, cells, output
}
"""(section, key): a sentence that says what to use instead, as the warning quotes it."""


def removed_words(section: str, name: str) -> str | None:
    """Return what is said of a removed setting; None for every other name."""
    instead = REMOVED.get((section, name))
    return None if instead is None else f"the setting {section}.{name} no longer exists and is ignored: {instead}"
