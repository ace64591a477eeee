"""Settings of earlier versions that are gone, and what to do instead. Each gives one warning, never a refusal."""

REMOVED: dict[tuple[str, str], str] = {
    # [daemon], [logs], [api], [ledger]
    # [tools]
    # [pipes]
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
