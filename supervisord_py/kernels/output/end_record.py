"""The last record of a kind, above all the `end`, read backwards from the end of a cell's `.jsonl`.

Law: only whole lines count, and a line that cannot be read is skipped. Output that came late lies behind the `end`, so
the search goes on backwards until it is found.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK_BYTES = 64 * 1024


def find(folder: Path, cell_id: str, kind: str = "end") -> dict[str, Any] | None:
    """Return the last record of a kind in the file of a cell, or None. Reads files: call it on a thread."""
    try:
        fd = os.open(folder / f"{cell_id}.jsonl", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        mark = f'"{kind}"'.encode()
        for line in _lines_backwards(fd):
            record = _record(line) if mark in line else {}
            if record.get("kind") == kind:
                return record
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines_backwards(fd: int) -> Iterator[bytes]:
    """Yield the whole lines of a file, the last one first; an unfinished one at the end is left out."""
    at, pieces, ended = os.fstat(fd).st_size, list[bytes](), False
    while at > 0:
        start = max(0, at - BLOCK_BYTES)
        first, *rest = os.pread(fd, at - start, start).split(b"\n")
        at = start
        if not rest:
            pieces.append(first)
            continue
        line = rest.pop() + b"".join(reversed(pieces))
        if ended:
            yield line
        ended = True
        yield from reversed(rest)
        pieces = [first]
    if ended and pieces:
        yield b"".join(reversed(pieces))
