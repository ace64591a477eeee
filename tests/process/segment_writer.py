"""Writes output segments as keeper/protocol.py describes them: a second, simple writer for the reader's tests."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

STDOUT, STDERR, GAP = 1, 2, 3


class SegmentWriter:
    """Appends chunks; rotates when told to; remembers everything that was written."""

    def __init__(self, folder: Path, position: int = 0) -> None:
        self.folder = folder
        self.position = position
        self.start = position
        self.clock = 1000.0
        self.written: list[tuple[int, int, bytes]] = []
        """(position, stream, bytes) of every chunk ever."""
        self.gaps: list[tuple[int, int]] = []
        self.instance = 1
        folder.mkdir(parents=True, exist_ok=True)
        self.rotate()

    def path(self, start: int, suffix: str) -> Path:
        return self.folder / f"{start:020d}{suffix}"

    def rotate(self) -> None:
        self.start = self.position
        self.path(self.start, ".log").touch()
        self.path(self.start, ".idx").touch()

    def record(self, length: int, stream: int, flags: int = 0) -> bytes:
        return struct.pack("<QdIHBB", self.position, self.clock, length, self.instance, stream, flags)

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def write(self, data: bytes, stream: int = STDOUT, flags: int = 0) -> None:
        self.clock += 1
        self.append(self.path(self.start, ".log"), data)
        self.append(self.path(self.start, ".idx"), self.record(len(data), stream, flags))
        self.written.append((self.position, stream, data))
        self.position += len(data)

    def gap(self, lost: int) -> None:
        self.clock += 1
        self.append(self.path(self.start, ".idx"), self.record(lost, GAP))
        self.gaps.append((self.position, lost))

    def starts(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.log"))

    def drop_oldest(self) -> None:
        """Rotate the oldest segment away, if it is not the only one."""
        if len(starts := self.starts()) > 1:
            self.path(starts[0], ".idx").unlink()
            self.path(starts[0], ".log").unlink()

    def kept(self) -> bytes:
        """Return all bytes from the oldest kept position on."""
        return (
            b"".join(data for _, _, data in self.written)[self.starts()[0] - self.written[0][0] :]
            if self.written
            else b""
        )
