"""What cells printed and made, as people and programs get it.

stdout gets what the cells print there and the text of results on lines of their own; everything else goes to stderr. A
picture is saved and named, and drawn where the terminal can.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pxctl import output
from pxctl.client import Document
from pxctl.invocation import Invocation
from pxctl.streams import Screen, bytes_of, harmless

_SVG = "image/svg+xml"
_PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", _SVG: "svg", "application/pdf": "pdf"}
_TAGS = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)
_KEEP_SECONDS, _OURS = 7 * 86400.0, re.compile(r"[0-9a-f]{16}-\d+\.\w+")
_SIGNS = {
    "ok": ("✓", "green"), "error": ("✗", "red"), "cancelled": ("⊘", "yellow"), "timed_out": ("⏱", "red"),
    "aborted": ("-", "dim"),
}  # fmt: skip


def picture_in(bundle: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """Return media type and bytes of the first picture; None where there is none, or what is there is not base64."""
    for mime in filter(bundle.__contains__, _PICTURES):
        text = _text(bundle[mime])
        with contextlib.suppress(ValueError):
            return mime, text.encode() if mime == _SVG else binascii.a2b_base64(text)
    return None


def words_of(bundle: Mapping[str, Any], *, indent: int | None = None) -> str:
    if "application/json" in bundle:
        return json.dumps(bundle["application/json"], ensure_ascii=False, indent=indent)
    order = ("text/markdown", "text/plain", "text/html", "text/latex")
    mime = next((mime for mime in order if mime in bundle), None)
    text = "" if mime is None else _text(bundle[mime])
    if mime != "text/html":
        return text
    return "\n".join(line for each in _TAGS.sub(" ", text).splitlines() if (line := each.strip()))


def _text(value: Any) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else str(value)


def save_picture(env: Mapping[str, str], name: str, mime: str, content: bytes) -> Path:
    """Write a picture into the private folder under PX_HOME, or the user's cache; what is a week old goes."""
    if home := env.get("PX_HOME"):
        folder = Path(home).expanduser().absolute() / "pictures"
    else:
        folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pxd" / "pictures"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for other in folder.iterdir():
        if _OURS.fullmatch(other.name) and other.lstat().st_mtime < time.time() - _KEEP_SECONDS:
            other.unlink(missing_ok=True)
    path = folder / f"{name}.{_PICTURES[mime]}"
    output.write_whole(path, [content])
    return path


def drawn(env: Mapping[str, str], mime: str, content: bytes) -> str:
    """Return what draws a picture, by the protocol of iTerm2 or of kitty; empty where the terminal knows neither."""
    encoded = binascii.b2a_base64(content, newline=False).decode()
    if env.get("TERM_PROGRAM") in {"iTerm.app", "WezTerm"}:
        return f"\x1b]1337;File=inline=1;size={len(content)}:{encoded}\x07\n"
    if mime != "image/png" or not ("KITTY_WINDOW_ID" in env or env.get("TERM") == "xterm-ghostty"):
        return ""
    pieces = [encoded[at : at + 4096] for at in range(0, len(encoded), 4096)]
    more = [f"m={int(piece is not pieces[-1])};{piece}\x1b\\" for piece in pieces]
    return "\x1b_Ga=T,f=100," + "\x1b_G".join(more) + "\n"


class CellScreen(Screen):
    """Shows the events of a call for cells, and those of a kernel's start."""

    def __init__(self, invocation: Invocation, unit: str) -> None:
        super().__init__(invocation, unit)
        self._updates: dict[str, Document] = {}  # the last one of each display
        self._pictures = 0
        self._is_announced = False
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
            case "rung":
                self.say(f"pxctl: ending the cell: {event.get('action')}", "yellow")
            case "notice":
                self.say_once(str(event.get("text")))
            case "queued":
                self.wait(f"waiting in line ({event.get('position')})…")
            case "starting":
                self.wait("starting the kernel…")

    def conclude(self, result: Document) -> None:
        for document in [*(result.get("cells") or []), result]:
            for text in document.get("notices") or []:
                self.say_once(str(text))

    def _begin(self, event: Document) -> None:
        index, self.count = int(event.get("index") or 0), max(self.count, int(event.get("count") or 0))
        self.has_shown_error, self._pictures, self._updates = False, 0, {}
        self._is_announced = self.count > 1 or index > 0
        if self._is_announced:
            self.say(f"[{index + 1}/{self.count or '?'}] {event.get('title') or ''}", "bold")
        self.wait("running…")

    def _end(self, cell: Document) -> None:
        for event in self._updates.values():
            self._show_bundle(str(cell.get("id")), event.get("data") or {})
        status, error = str(cell.get("status")), cell.get("error") or {}
        if error and not self.has_shown_error and status == "error":
            self._show_error([f"{error.get('name')}: {error.get('value')}"])  # no traceback: a shell's code, a death
        self.close_lines()
        if self._is_announced:
            sign, style = _SIGNS.get(status, ("?", "red"))
            word = "" if status == "ok" else f" {status.replace('_', ' ')}"
            self.say(f"{sign}{word} {output.duration(cell.get('duration_seconds'))}", style)

    def _show_bundle(self, cell_id: str, bundle: Document) -> None:
        if text := words_of(bundle, indent=2 if self.out.is_terminal else None):
            self.put("stdout", b"")
            self.out.put_lines(text)
        if (picture := picture_in(bundle)) is None:
            return
        mime, content = picture
        self._pictures += 1
        try:
            path = save_picture(self.invocation.env, f"{cell_id}-{self._pictures}", mime, content)
            self.say(f"pxctl: {mime} ({output.size(len(content))}) saved: {path}")
        except OSError as error:
            self.say(f"pxctl: {mime} not saved: {error}")
        if self.out.is_terminal:
            output.write(drawn(self.invocation.env, mime, content))

    def _show_error(self, lines: list[str]) -> None:
        if lines:
            self.has_shown_error = True
            self.close_lines()
            self.err.put_lines(harmless("\n".join(lines), colour=self.invocation.err_has_colour))
