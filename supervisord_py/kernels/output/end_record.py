"""The last record of a kind, above all the `end`, in a cell's `.jsonl`. Only whole lines that can be read count."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 64 * 1024


def find(folder: Path, cell_id: str, kind: str = "end") -> dict[str, Any] | None:
    """Return the last record of a kind in the file of a cell, or None. Reads files: call it on a thread."""
    mark, found = f'"{kind}"'.encode(), None
    try:
        with open(folder / f"{cell_id}.jsonl", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for start in (max(0, size - BLOCK_BYTES), 0):  # near the end, unless much came late
                file.seek(start and start - 1)
                if start:
                    file.readline()
                for line in file:
                    if mark in line and line.endswith(b"\n") and (record := _record(line)).get("kind") == kind:
                        found = record
                if found is not None or start == 0:
                    break
    except OSError:
        return None
    return found


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
