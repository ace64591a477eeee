"""What a cell printed and made, as people and programs get it.

On a pipe stdout gets the bytes of the cells' stdout, unchanged, and the text of results on lines of their own;
everything else goes to stderr. A terminal gets headers, output as it comes, collapsed, and nothing that could steer it;
what is hidden is counted, with the command that shows it. A picture is always saved and named; it is drawn only where
the environment announces kitty's or iTerm2's protocol, or it was asked for.
(https://sw.kovidgoyal.net/kitty/graphics-protocol/, https://iterm2.com/documentation-images.html)
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pxctl import output
from pxctl.app import Invocation
from pxctl.client import Document, Failure
from pxctl.follow import bytes_of
from pxctl.shaper import SHOWN_LINES, Shaper, shaped

# -- what a bundle of a result holds ----------------------------------------------------------------------------------

_SVG = "image/svg+xml"
_PICTURES = {
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", _SVG: "svg",
    "application/pdf": "pdf",
}  # fmt: skip
_TAGS = re.compile(r"<(style|script)\b.*?</\1\s*>|<[^<>]*>", re.DOTALL | re.IGNORECASE)


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


# -- pictures ---------------------------------------------------------------------------------------------------------

DRAWING = ("auto", "never", "kitty", "iterm")
_DRAWN_BYTES = 16 * 1024 * 1024
_KEEP_SECONDS = 7 * 86400.0
_RASTER = {"kitty": {"image/png"}, "iterm": {"image/png", "image/jpeg", "image/gif", "image/webp"}}


def protocol_of(choice: str, env: Mapping[str, str]) -> str:
    """Return the protocol to draw with, or `never`. Inside a multiplexer nothing is announced."""
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if choice != "auto":
        return choice
    if env.get("TMUX") or env.get("STY") or term.startswith(("screen", "tmux")):
        return "never"
    if term in {"xterm-kitty", "xterm-ghostty"} or env.get("KITTY_WINDOW_ID") or program == "ghostty":
        return "kitty"
    is_iterm = program in {"iTerm.app", "WezTerm", "mintty"} or env.get("LC_TERMINAL") == "iTerm2"
    return "iterm" if is_iterm else "never"


def drawn(mime: str, content: bytes, protocol: str, columns: int) -> bytes | None:
    """Return the bytes that draw a picture at the cursor; None where this protocol does not draw it."""
    if mime not in _RASTER.get(protocol, ()) or len(content) > _DRAWN_BYTES:
        return None
    encoded = binascii.b2a_base64(content, newline=False)
    if protocol == "iterm":
        head = f"\x1b]1337;File=inline=1;size={len(content)};preserveAspectRatio=1:"
        return head.encode() + encoded + b"\x07\n"
    # What is wider than the terminal, by the width in the header of a PNG and ten pixels a column, is made to fit.
    fit = f"c={columns}," if int.from_bytes(content[16:20], "big") > columns * 10 else ""
    written = b""
    for start in range(0, len(encoded), 4096):
        keys = b"" if start else f"a=T,f=100,q=2,{fit}".encode()  # q=2: no answers, nobody reads them
        more = b"m=1;" if start + 4096 < len(encoded) else b"m=0;"
        written += b"\x1b_G" + keys + more + encoded[start : start + 4096] + b"\x1b\\"
    return written + b"\n"


def save_picture(env: Mapping[str, str], name: str, mime: str, content: bytes) -> Path:
    """Write a picture into the private folder under PX_HOME, or the user's cache; what is a week old goes."""
    if home := env.get("PX_HOME"):
        folder = Path(home).expanduser().absolute() / "pictures"
    else:
        folder = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home(), ".cache"), "pxd", "pictures")
    ours, oldest = re.compile(r"[0-9a-f]{16}-\d+\.\w+"), time.time() - _KEEP_SECONDS
    path = folder / f"{name}.{_PICTURES[mime]}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in folder.iterdir():
            with contextlib.suppress(OSError):
                if ours.fullmatch(other.name) and other.lstat().st_mtime < oldest:
                    other.unlink()
        write_whole(path, [content])
    except OSError as error:
        raise Failure(f"cannot write {folder}: {error.strerror}", kind="os_error") from error
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


# -- views of a call --------------------------------------------------------------------------------------------------

_SIGNS = {
    "ok": ("✓", "green"), "error": ("✗", "red"), "cancelled": ("⊘", "yellow"), "timed_out": ("⏱", "red"),
    "aborted": ("-", "dim"),
}  # fmt: skip


class View:
    """Shows what is waited for and what is said of a call; `TerminalView` and `PipeView` show its cells, too.

    `has_headers`: cells are announced though there is only one.
    """

    def __init__(self, invocation: Invocation, unit: str, *, has_headers: bool = False) -> None:
        self.invocation = invocation
        self._has_headers = has_headers
        self._said: set[str] = set()
        self._spinner = invocation.spinner(unit, lambda: self.phase)
        self.phase = self.title = ""
        self.count = self.index = self._pictures = 0
        self.has_shown_error = False

    def show(self, event: Document) -> None:
        match event.get("event"):
            case "cell_started":
                self.index, self.count = int(event.get("index") or 0), max(self.count, int(event.get("count") or 0))
                self.title = shaped(str(event.get("title") or ""), colour=False).strip()
                self.has_shown_error, self._pictures = False, 0
                self.begin(event)
            case "output":
                self.output("stderr" if event.get("stream") == "stderr" else "stdout", bytes_of(event))
            case "display" | "result":
                self.rich(str(event.get("id")), event)
            case "error":
                self.traceback([str(line) for line in event.get("traceback") or []])
            case "cell_done":
                cell = event.get("cell") or {}
                error = cell.get("error") or {}
                if error and not self.has_shown_error and cell.get("status") == "error":
                    # No traceback: a shell's exit code, a death.
                    self.traceback([f"{error.get('name')}: {error.get('value')}"])
                self.end(cell)
            case "status":
                self.status(event.get("status") or {})
            case "notice":
                self.say_once(str(event.get("text")))
            case "rung":
                self.line(f"{self._mark}ending the cell: {event.get('action')}", "yellow")
            case "queued":
                self.waiting(f"waiting in line ({event.get('position')})…")
            case "starting":
                self.waiting("starting the kernel…")

    _mark = "pxctl: "

    def conclude(self, result: Document) -> None:
        """Tell what is to be told of the whole call, whatever came of it."""
        for document in [*(result.get("cells") or []), result]:
            for text in document.get("notices") or []:
                self.say_once(str(text))

    def say_once(self, text: str) -> None:
        """Tell a sentence that the daemon may repeat."""
        if text not in self._said:
            self._said.add(text)
            self.close_line()
            self.invocation.notice(f"pxctl: {shaped(text, colour=False).rstrip()}")

    def header(self, words: str, style: str) -> None:
        """Announce the cell that runs, or say how it ended; a single one goes without."""
        is_one_of_many = self.count > 1 or self.index > 0 or (self._has_headers and self.count != 1)
        if not self.invocation.quiet and (self.title or is_one_of_many):
            self.line(words, style)

    @property
    def number(self) -> str:
        """`[2/5]`, or `[2]` where nobody knows how many there are."""
        return f"[{self.index + 1}/{self.count}]" if self.count else f"[{self.index + 1}]"

    def verdict(self, cell: Document) -> tuple[str, str]:
        """Return the words and the style for how a cell ended."""
        status, seconds = str(cell.get("status")), cell.get("duration_seconds")
        sign, style = _SIGNS.get(status, ("?", "red"))
        word = "" if status == "ok" else f" {status.replace('_', ' ')}"
        if isinstance(seconds, int | float):
            word += f" {seconds:.2f}s" if seconds < 10 else f" {output.duration(seconds)}"
        return sign + word, style

    def waiting(self, phase: str) -> None:
        """Say what is waited for, where it takes a while."""
        self.phase = phase
        self._spinner.start()

    def close_line(self) -> None:
        """End a line that is begun; erase the spinner."""
        self._spinner.stop()

    def save(self, cell_id: str, mime: str, content: bytes) -> str:
        """Save a picture and return where."""
        self._pictures += 1
        return f"saved: {save_picture(self.invocation.env, f'{cell_id}-{self._pictures}', mime, content)}"

    # What the views of cells show each in their own way; a kernel that is started has none.

    def line(self, text: str, style: str) -> None: ...
    def begin(self, event: Document) -> None: ...
    def output(self, stream: str, content: bytes) -> None: ...
    def rich(self, cell_id: str, event: Document) -> None: ...
    def traceback(self, lines: list[str]) -> None: ...
    def status(self, status: Document) -> None: ...
    def end(self, cell: Document) -> None: ...

    def finish(self) -> None:
        """Nothing more comes, whatever the reason; may be called twice."""
        self.close_line()


class PipeView(View):
    """Writes stdout for programs; `raw`: the bytes that cells print and nothing else."""

    def __init__(self, invocation: Invocation, unit: str, *, has_headers: bool, raw: bool) -> None:
        super().__init__(invocation, unit, has_headers=has_headers)
        self._raw, self._ends_line = raw, True
        self._colour = invocation.err_has_colour
        self._shaper = Shaper(colour=self._colour, full=True) if invocation.err_is_terminal else None

    def line(self, text: str, style: str) -> None:
        if not self._raw:
            self.close_line()
            self.invocation.notice(text)

    def waiting(self, phase: str) -> None:
        """Say nothing: stderr may be a program's, too."""

    def begin(self, event: Document) -> None:
        self.header(f"{self.number} {self.title}".rstrip(), "")

    def output(self, stream: str, content: bytes) -> None:
        if stream == "stdout":
            output.write(content)
            self._ends_line = content.endswith(b"\n") if content else self._ends_line
        elif self._shaper is None:
            output.write_error(content)
        else:
            output.write_error(self._shaper.feed(content.decode("utf-8", "replace")))

    def rich(self, cell_id: str, event: Document) -> None:
        """Write the text of a result on lines of its own, and name the file of a picture on stderr."""
        if self._raw or event.get("update"):
            return
        bundle = event.get("data") or {}
        if text := words_of(bundle):
            output.write(("" if self._ends_line else "\n") + text.removesuffix("\n") + "\n")
            self._ends_line = True
        if (picture := picture_in(bundle)) is not None:
            kind = f"{picture[0]} ({output.size(len(picture[1]))})"
            self.invocation.notice(f"pxctl: {kind} {self.save(cell_id, *picture)}")

    def traceback(self, lines: list[str]) -> None:
        if lines and not self._raw:
            self.has_shown_error = True
            self.close_line()
            output.write_error(shaped("\n".join(lines), colour=self._colour))

    def close_line(self) -> None:
        if self._shaper is not None:
            output.write_error(self._shaper.fresh())

    def end(self, cell: Document) -> None:
        self.close_line()
        self.header(f"{self.number} {self.verdict(cell)[0]}", "")


class TerminalView(View):
    """Shows a call to a person; with `full`, nothing is collapsed. `kernel` says how the kernel is called."""

    _mark = "~ "

    def __init__(
        self,
        invocation: Invocation,
        unit: str,
        *,
        has_headers: bool,
        full: bool,
        protocol: str,
        kernel: Callable[[], str],
    ) -> None:
        super().__init__(invocation, unit, has_headers=has_headers)
        self._full, self._protocol, self._kernel = full, protocol, kernel
        self._cell_id = ""
        self._shaper = Shaper(colour=invocation.has_colour, full=full)
        self._updates: dict[str, Document] = {}

    def _write(self, piece: str | bytes) -> None:
        if piece:
            super().close_line()  # the spinner
            output.write(piece)

    def line(self, text: str, style: str) -> None:
        self._write(self._shaper.fresh() + self.invocation.paint(text, style) + "\n")

    def _put(self, written: str) -> None:
        self._write(written)
        if self._shaper.hides:
            self.waiting(f"{output.counted(self._shaper.hidden_lines, 'more line')}…")

    def _flush(self) -> None:
        """Show what was held back."""
        command = f"pxctl kernel output {self._kernel()} {self._cell_id}"

        def note(count: int) -> str:
            text = f"… {output.counted(count, 'line')} hidden; all of it: {command}, or exec --full"
            return self.invocation.paint(text, "dim")

        self._write(self._shaper.end(note))
        self._shaper = Shaper(colour=self.invocation.has_colour, full=self._full)

    def begin(self, event: Document) -> None:
        """Write its header, and its code where it came from a file."""
        self._shaper, self._updates = Shaper(colour=self.invocation.has_colour, full=self._full), {}
        self._cell_id = str(event.get("id"))
        self.header(f"{self.number} {self.title}".rstrip(), "bold")
        code = str(event.get("code") or "").strip("\n") if self._has_headers else ""
        lines = shaped(code, colour=False).splitlines() if code else []
        if lines and re.match(r"#\s?%%(\s|\Z)", lines[0]):
            del lines[0]  # the header says already what stands behind it
        if not self._full and len(lines) > SHOWN_LINES:
            left_out = output.counted(len(lines) - SHOWN_LINES + 1, "more line")
            lines = [*lines[: SHOWN_LINES - 1], f"… {left_out}"]
        for line in lines:
            self.line(f"│ {line}", "dim")
        self.waiting("running…")

    def output(self, stream: str, content: bytes) -> None:
        if stream == "stderr" and not self.invocation.err_is_terminal:
            output.write_error(content)
        else:
            self._put(self._shaper.feed(content.decode("utf-8", "replace")))

    def rich(self, cell_id: str, event: Document) -> None:
        """Show a result; of a display that is updated only what it is at last."""
        if event.get("update") and event.get("display_id"):
            self._updates[str(event["display_id"])] = event
            return
        bundle = event.get("data") or {}
        if (picture := picture_in(bundle)) is None:
            text = words_of(bundle, indent=2)
            self._put(self._shaper.block(text) if text else "")
            return
        mime, content = picture
        self._write(self._shaper.fresh())
        self._write(drawn(mime, content, self._protocol, self.invocation.width or 80) or b"")
        try:
            words = f"{mime} {output.size(len(content))} {self.save(cell_id, mime, content)}"
        except Failure as failure:
            words = f"{mime}: {failure.detail}"
        self._write(shaped(words, colour=False))

    def traceback(self, lines: list[str]) -> None:
        """Show it whole, with the colours that the kernel gave it."""
        if lines:
            self.has_shown_error = True
            self._flush()
            self._write(shaped("\n".join(lines), colour=self.invocation.has_colour))

    def status(self, status: Document) -> None:
        """Show what a helper of the prelude did, on one line."""
        known = [(key, value) for key, value in status.items() if isinstance(value, str | int | float)]
        facts = " ".join(f"{key}={value}" for key, value in known if key != "op")
        text = shaped(f"{status.get('op')} {facts}", colour=False).split("\n", 1)[0]
        self.line(f"· {text[:160]}", "dim")

    def close_line(self) -> None:
        self._write(self._shaper.fresh())
        super().close_line()

    def end(self, cell: Document) -> None:
        """Show what was held back, and how it ended."""
        updates, self._updates = self._updates, {}
        for event in updates.values():
            self.rich(str(cell.get("id")), {**event, "update": False})
        self._flush()
        self.header(*self.verdict(cell))
        super().close_line()

    def finish(self) -> None:
        self._flush()
        super().close_line()
