"""Where a pipe comes from, and what it is called: `PATH`, `https://...` or `example:NAME`. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from supervisord_py.errors import BadRequestError
from supervisord_py.pipes.declaring.pipe_name import name_trouble

EXAMPLE = "example:"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NO_NAMES = frozenset({"pipe", "pipes", "main", "master", "head", "raw", "blob", "refs", "heads", "tags"})
"""Parts of addresses that name a branch or a place, not a pipe."""
_HASH = re.compile(r"[0-9a-f]{20,}")


def is_address(source: str) -> bool:
    """Say whether a source is an address of the network.

    Raises:
        BadRequestError: It is one that is not https.
    """
    scheme = _SCHEME.match(source)
    if scheme is None:
        return False
    if scheme[1].lower() != "https":
        detail = f"{scheme[1]}:// is refused: a pipe runs with your rights, and only https says whom it comes from"
        raise BadRequestError(detail, hint="use the https address, or download it and add the file")
    return True


def name_from_address(address: str) -> str | None:
    """Return what to call the pipe at an address: its file, unless that is `pipe.md`, else the folder around it."""
    try:
        parts = [unquote(each) for each in urlsplit(address).path.split("/") if each]
    except ValueError:
        return None
    if parts:
        parts[-1] = parts[-1].removesuffix(".md")
    return next((each for each in reversed(parts) if _could_be(each)), None)


def name_from_file(stem: str, folder: str) -> str | None:
    """Return what to call a pipe that is one file: its name without `.md`, unless that is `pipe`, else its folder's."""
    return next((each for each in (stem, folder) if _could_be(each)), None)


def _could_be(name: str) -> bool:
    return name.lower() not in _NO_NAMES and not _HASH.fullmatch(name) and name_trouble(name) is None
