"""The text of a stream as a row keeps it: all of it, or its head and its tail around a line that says what is missing.

Law: never more than the cap and the length of such lines; characters are not cut; bytes that are no UTF-8 are replaced.
What the file does not have either is told in a last line.
"""

from __future__ import annotations

HEAD_SHARE = 4
"""One fourth of the room is for the beginning: the end tells more."""
_CONTINUES = range(0x80, 0xC0)
_CHARACTER_BYTES = 4


def split(total: int, limit: int) -> tuple[int, int]:
    """Return how many bytes of a stream of `total` go into the head and into the tail; (total, 0) when all fit."""
    if total <= limit:
        return total, 0
    head = limit // HEAD_SHARE
    return head, limit - head


def joined(head: bytes, tail: bytes, kept: int, total: int) -> str:
    """Return the text of a row from the two pieces that `split` named.

    Args:
        head: The first bytes.
        tail: The last ones; empty when the head is all.
        kept: Bytes of the file that they are the ends of.
        total: Bytes of the stream; what is more than `kept` is in no file.
    """
    last = f"\n[... {total - kept} bytes not kept ...]\n" if total > kept else ""
    if not tail:
        return head.decode("utf-8", "replace") + last
    head, tail = _without_cut_end(head), _without_cut_start(tail)
    missing = f"\n[... {kept - len(head) - len(tail)} bytes left out ...]\n"
    return f"{head.decode('utf-8', 'replace')}{missing}{tail.decode('utf-8', 'replace')}{last}"


def _without_cut_start(data: bytes) -> bytes:
    start = 0
    while start < min(_CHARACTER_BYTES, len(data)) and data[start] in _CONTINUES:
        start += 1
    return data[start:]


def _without_cut_end(data: bytes) -> bytes:
    for back in range(1, min(_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte in _CONTINUES:
            continue
        width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data[:-back] if width > back else data
    return data


class Utf8Check:
    """Says whether a stream of bytes, in whatever pieces it comes, is UTF-8 so far. Pure."""

    def __init__(self, open_bytes: bytes = b"", *, is_valid: bool = True) -> None:
        self.open_bytes = open_bytes
        """The beginning of a character whose end has not come."""
        self.is_valid = is_valid

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self.is_valid:
            return
        whole = self.open_bytes + data
        self.open_bytes = b""
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            self.is_valid = error.end == len(whole) and error.reason == "unexpected end of data"
            self.open_bytes = whole[error.start :] if self.is_valid else b""

    def end(self) -> None:
        """Take the end: a character that was begun stays cut."""
        self.is_valid = self.is_valid and not self.open_bytes
