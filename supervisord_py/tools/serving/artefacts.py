"""Room for what a Pixie run leaves behind: one directory a run, the newest `retain_runs` of a tool are kept."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_room(folder: Path, run_id: str, retain: int) -> Path:
    """Make the directory of a run below its tool's folder, and remove the oldest beyond `retain`."""
    directory = folder / run_id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    others = [(_age(each), each) for each in folder.iterdir() if each != directory and each.is_dir()]
    for _, old in sorted(others, reverse=True)[max(0, retain - 1) :]:
        shutil.rmtree(old, ignore_errors=True)
    return directory


def _age(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return 0.0
