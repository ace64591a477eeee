"""What cells printed and made, as people and programs get it.

stdout gets what the cells print there and the text of results on lines of their own; everything else goes to stderr. A
picture is saved and named.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pxctl import output
from pxctl.failures import Document, Failure
from pxctl.follow import bytes_of
from pxctl.invocation import Invocation
from pxctl.shown import Screen, harmless

_SVG = "image/svg+xml"
_PICTURES = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", _SVG: "svg",
    "application/pdf": "pdf",
}  # fmt: skip
_TAGS = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)
_KEEP_SECONDS = 7 * 86400.0
_SIGNS = {
    "ok": ("✓", "green"), "error": ("✗", "red"), "cancelled": ("⊘", "yellow"), "timed_out": ("⏱", "red"),
    "aborted": ("-", "dim"),
}  # fmt: skip


# -- what a bundle of a result holds ----------------------------------------------------------------------------------


def picture_in(bundle: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """Return media type and bytes of the first picture; None where there is none, or what is there is not base64."""
    for mime in filter(bundle.__contains__, _PICTURES):
        text = _joined(bundle[mime])
        with contextlib.suppress(ValueError):
            if found := text.encode() if mime == _SVG else binascii.a2b_base64("".join(text.split()), strict_mode=True):
                return mime, found
    return None


def words_of(bundle: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Return the text that stands for a bundle; empty where it has none, as a picture."""
    if "application/json" in bundle:
        return json.dumps(bundle["application/json"], ensure_ascii=False, indent=indent)
    order = ("text/markdown", "text/plain", "text/html", "text/latex")
    mime = next((mime for mime in order if mime in bundle), None)
    text = "" if mime is None else _joined(bundle[mime])
    if mime != "text/html":
        return text
    return "\n".join(line for each in _TAGS.sub(" ", text).splitlines() if (line := each.strip()))


def _joined(value: Any) -> str:
    """Return a value as one text; a bundle may hold it as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def save_picture(env: Mapping[str, str], name: str, mime: str, content: bytes) -> Path:
    """Write a picture into the private folder under PX_HOME, or the user's cache; what is a week old goes."""
    if home := env.get("PX_HOME"):
        folder = Path(home).expanduser().absolute() / "pictures"
    else:
        folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pxd" / "pictures"
    ours, oldest = re.compile(r"[0-9a-f]{16}-\d+\.\w+"), time.time() - _KEEP_SECONDS
    path = folder / f"{name}.{_PICTURES[mime]}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in folder.iterdir():
            with contextlib.suppress(OSError):
                if ours.fullmatch(other.name) and other.lstat().st_mtime < oldest:
                    other.unlink()
    except OSError as error:
        raise Failure(f"cannot write {folder}: {error.strerror}", kind="os_error") from error
    write_whole(path, [content])
    return path


def write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a file beside its place and move it there once it is complete; return its size in bytes."""
    beside, size = path.with_name(f"{path.name}.{os.getpid()}.part"), 0
    try:
        with beside.open("wb") as file:
            for chunk in chunks:
                size += file.write(chunk)
        beside.replace(path)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", kind="os_error", hint=f"ls -ld {path}") from error
    finally:
        beside.unlink(missing_ok=True)
    return size


# -- a call -----------------------------------------------------------------------------------------------------------


class CellScreen(Screen):
    """Shows the events of a call for cells, and those of a kernel's start.

    `has_headers`: cells are announced though there is only one. `raw`: only the bytes that cells print.
    """

    def __init__(self, invocation: Invocation, unit: str, *, has_headers: bool = False, raw: bool = False) -> None:
        super().__init__(invocation, unit)
        self._has_headers, self._raw = has_headers, raw
        self._updates: dict[str, Document] = {}  # the last one of each display
        self._index = self._pictures = 0
        self.count = 0
        self.has_shown_error = False

    def show(self, event: Document) -> None:
        match event.get("event"):
            case "cell_started":
                self._begin(event)
            case "output":
                self.put(str(event.get("stream") or "stdout"), bytes_of(event))
            case "display" | "result" if event.get("update") and event.get("display_id"):
                self._updates[str(event["display_id"])] = event
            case "display" | "result":
                self._show_bundle(str(event.get("id")), event.get("data") or {})
            case "error":
                self._show_error([str(line) for line in event.get("traceback") or []])
            case "cell_done":
                self._end(event.get("cell") or {})
            case "status" if self.err.is_terminal and not self._raw:
                # What a helper of the prelude did.
                status = event.get("status") or {}
                facts = [f"{key}={value}" for key, value in status.items() if key != "op"]
                self.say(output.cut(output.clean(f"· {status.get('op')} {' '.join(facts)}"), 160), "dim")
            case "rung" if not self._raw:
                self.say(f"pxctl: ending the cell: {event.get('action')}", "yellow")
            case "notice":
                self.say_once(str(event.get("text")))
            case "queued":
                self.wait(f"waiting in line ({event.get('position')})…")
            case "starting":
                self.wait("starting the kernel…")

    def conclude(self, result: Document) -> None:
        """Tell what is to be told of the whole call, whatever came of it."""
        for document in [*(result.get("cells") or []), result]:
            for text in document.get("notices") or []:
                self.say_once(str(text))

    def _begin(self, event: Document) -> None:
        self._index, self.count = int(event.get("index") or 0), max(self.count, int(event.get("count") or 0))
        self.has_shown_error, self._pictures, self._updates = False, 0, {}
        number = f"[{self._index + 1}/{self.count}]" if self.count else f"[{self._index + 1}]"
        if self._is_announced:
            self.say(f"{number} {event.get('title') or ''}", "bold")
        self.wait("running…")

    @property
    def _is_announced(self) -> bool:
        is_one_of_many = self.count > 1 or self._index > 0 or (self._has_headers and self.count != 1)
        return is_one_of_many and not self._raw

    def _end(self, cell: Document) -> None:
        updates, self._updates = self._updates, {}
        for event in updates.values():
            self._show_bundle(str(cell.get("id")), event.get("data") or {})
        status, error = str(cell.get("status")), cell.get("error") or {}
        if error and not self.has_shown_error and status == "error":
            # No traceback: a shell's exit code, a death.
            self._show_error([f"{error.get('name')}: {error.get('value')}"])
        self.close_lines()
        if self._is_announced:
            sign, style = _SIGNS.get(status, ("?", "red"))
            word = "" if status == "ok" else f" {status.replace('_', ' ')}"
            seconds = float(cell.get("duration_seconds") or 0.0)
            self.say(
                f"{sign}{word} {seconds:.2f}s" if seconds < 10 else f"{sign}{word} {output.duration(seconds)}", style
            )

    def _show_bundle(self, cell_id: str, bundle: Document) -> None:
        if self._raw:
            return
        if text := words_of(bundle, indent=2 if self.out.is_terminal else None):
            self.put("stdout", b"")
            self.out.put_lines(text)
        if (picture := picture_in(bundle)) is not None:
            mime, content = picture
            self._pictures += 1
            try:
                path = save_picture(self.invocation.env, f"{cell_id}-{self._pictures}", mime, content)
                self.say(f"pxctl: {mime} ({output.size(len(content))}) saved: {path}")
            except Failure as failure:
                self.say(f"pxctl: {mime}: {failure.detail}")

    def _show_error(self, lines: list[str]) -> None:
        """Show a traceback whole, with the colours that the kernel gave it."""
        if lines and not self._raw:
            self.has_shown_error = True
            self.close_lines()
            self.err.put_lines(harmless("\n".join(lines), colour=self.invocation.err_has_colour))
