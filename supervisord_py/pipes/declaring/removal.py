"""`pxctl pipe remove`: the folder goes at once by a rename and is deleted then. Links are never followed. Blocking."""

from __future__ import annotations

import os
import secrets
import shutil
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.files import DiskError
from supervisord_py.pipes.declaring.placing import PREFIX

if TYPE_CHECKING:
    from pathlib import Path


def remove(folder: Path) -> None:
    """Delete a pipe's folder; a link loses the link only. One that is gone already is fine.

    The caller has made sure that nothing of the pipe runs.

    Raises:
        DiskError: It cannot be deleted.
    """
    doomed = folder.parent / f"{PREFIX}removed-{secrets.token_hex(6)}"
    try:
        if os.path.islink(folder):
            os.unlink(folder)
            return
        os.rename(folder, doomed)
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        detail = f"cannot remove {folder}: {error.strerror or error}"
        hint = f"see who owns it: ls -ld {folder.parent} {folder}"
        raise DiskError(detail, hint=hint, unit=f"pipe:{folder.name}") from None
