"""Settings that worked, kept beside the lock, for a control plane that starts again and finds them broken.

A running daemon is never taken down by a file that somebody is editing: a crash of the control plane at that moment
must not end the children. Only the first start and wanted restarts refuse bad settings. Secrets are among them: the
file is ours alone, in a directory that is.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationError

from supervisord_py.daemon.merge import Origin, OriginKind
from supervisord_py.daemon.schema import KEYS, Settings
from supervisord_py.daemon.settings import Effective, Loaded

if TYPE_CHECKING:
    from pathlib import Path

NAME = "settings.last-good.json"


def keep(folder: Path, loaded: Loaded) -> None:
    """Write them down, whole or not at all. A disk that refuses is no reason to stop: then there is no fall-back."""
    path = folder / NAME
    fresh = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(loaded.settings.model_dump(), file, default=SecretStr.get_secret_value)
        os.replace(fresh, path)


def recall(folder: Path) -> Loaded | None:
    """Return them, or None when there are none that this version understands."""
    try:
        settings = Settings.model_validate(_tuples(json.loads((folder / NAME).read_bytes())))
    except (OSError, ValueError, ValidationError, TypeError, AttributeError):
        return None
    origin = Origin(OriginKind.FILE, str(folder / NAME))
    effective = tuple(Effective(".".join(key), getattr(getattr(settings, key[0]), key[1]), origin) for key in KEYS)
    return Loaded(settings, effective)


def _tuples(tree: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        section: {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        for section, values in tree.items()
    }
