"""Settings of earlier versions that are gone, and what to do instead. Each gives one warning, never a refusal."""

REMOVED: dict[tuple[str, str], str] = {
    # [daemon], [logs], [api], [ledger]
    # [tools]
    # [pipes]
    ("pipes", "loop_seconds"): "an event never comes back to a pipe that had a part in it, however late",
    ("pipes", "hook_seconds"): "a pipe with `trigger: pipe_failed:NAME` tells of failures; its `timeout` bounds it",
    # [kernels]: backends, interpreters
    # [kernels]: sessions, cells, output
}
"""(section, key): a sentence that says what to use instead, as the warning quotes it."""


def removed_words(section: str, name: str) -> str | None:
    """Return what is said of a removed setting; None for every other name."""
    instead = REMOVED.get((section, name))
    return None if instead is None else f"the setting {section}.{name} no longer exists and is ignored: {instead}"
