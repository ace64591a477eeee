"""The kernelspecs that are installed where Jupyter looks."""

from __future__ import annotations

from typing import Any


def all_specs() -> dict[str, dict[str, Any]]:
    """Return `{name: {display_name, language, argv, env, interrupt_mode, metadata, resource_dir}}`. Reads files."""
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415  it takes a quarter of a second

    found = KernelSpecManager().get_all_specs()
    return {name: {**entry["spec"], "resource_dir": entry["resource_dir"]} for name, entry in found.items()}
