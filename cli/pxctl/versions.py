"""The client's own version, out of the installed distribution; only loaded when somebody asks."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "0+unknown"


def own_version() -> str:
    """Return the version of the distribution, or a placeholder in a bare source tree."""
    try:
        return metadata.version("supervisord-py")
    except metadata.PackageNotFoundError:
        return UNKNOWN
