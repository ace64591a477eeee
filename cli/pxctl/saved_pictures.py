"""Files of pictures that cells showed: where they go, what they are called, how long they stay.

Law: a picture's file is private, whole or not there, and never put into the user's own folders; files of our own that
are older than a week go when the next one comes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from pxctl.answers import write_whole
from pxctl.failure import Failure
from pxctl.rich_text import PICTURES, Picture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_SECONDS = 7 * 86400.0
_OURS = re.compile(rf"[0-9a-f]{{16}}-\d+\.(?:{'|'.join(PICTURES.values())})")


def pictures_dir(env: Mapping[str, str]) -> str:
    """Return where pictures are saved: `pictures` under PX_HOME, else in the user's cache."""
    if home := env.get("PX_HOME"):
        return os.path.join(os.path.abspath(os.path.expanduser(home)), "pictures")
    cache = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "pxd", "pictures")


class Album:
    """The pictures of one call.

    Args:
        folder: Where they go; made when the first one comes.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: dict[str, int] = {}

    def save(self, picture: Picture, cell_id: str) -> str:
        """Write a picture of a cell and return its path.

        Raises:
            Failure: It cannot be written.
        """
        self._prepare()
        number = self._counts[cell_id] = self._counts.get(cell_id, 0) + 1
        path = os.path.join(self._folder, f"{cell_id}-{number}.{picture.extension}")
        write_whole(path, iter([picture.content]))
        return path

    def _prepare(self) -> None:
        if self._counts:
            return
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._sweep()
        except OSError as error:
            raise Failure(f"cannot write {self._folder}: {error.strerror}", kind="os_error") from error

    def _sweep(self) -> None:
        oldest = time.time() - KEEP_SECONDS
        with os.scandir(self._folder) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    if _OURS.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)
