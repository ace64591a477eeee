"""A call on a terminal: headers with status and duration, output as it comes, collapsed; pictures saved, and drawn.

What a person sees last is what the cell said last; what is hidden is counted, with the command that shows it. A picture
is drawn only where the environment announces kitty's or iTerm2's protocol, or it was asked for; it is always saved and
named. (https://sw.kovidgoyal.net/kitty/graphics-protocol/, https://iterm2.com/documentation-images.html)
"""

from __future__ import annotations

import binascii
import contextlib
import os
import re
import time

from pxctl import output, terminal
from pxctl.answers import write_whole
from pxctl.cells import PICTURES, View, picture_in, words_of
from pxctl.failure import Failure
from pxctl.shown_text import SHOWN_LINES, Shaper, shaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from pxctl.app import Invocation

    Event = dict[str, Any]

AUTO, NEVER, KITTY, ITERM = "auto", "never", "kitty", "iterm"
_DRAWN_BYTES = 16 * 1024 * 1024
"""A larger picture is only named."""
_KITTY_CHUNK = 4096
_RASTER = {KITTY: {"image/png"}, ITERM: {"image/png", "image/jpeg", "image/gif", "image/webp"}}
_KEEP_SECONDS = 7 * 86400.0
_OURS = re.compile(rf"[0-9a-f]{{16}}-\d+\.(?:{'|'.join(PICTURES.values())})")


def way_for(choice: str, env: Mapping[str, str]) -> str:
    """Return the protocol to draw with, or `never`. Inside a multiplexer nothing is announced."""
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if choice != AUTO:
        return choice
    if env.get("TMUX") or env.get("STY") or term.startswith(("screen", "tmux")):
        return NEVER
    if term in {"xterm-kitty", "xterm-ghostty"} or env.get("KITTY_WINDOW_ID") or program == "ghostty":
        return KITTY
    is_iterm = program in {"iTerm.app", "WezTerm", "mintty"} or env.get("LC_TERMINAL") == "iTerm2"
    return ITERM if is_iterm else NEVER


def drawn(mime: str, content: bytes, way: str, columns: int) -> bytes | None:
    """Return the bytes that draw a picture at the cursor; None where this way does not draw it."""
    if mime not in _RASTER.get(way, ()) or len(content) > _DRAWN_BYTES:
        return None
    encoded = binascii.b2a_base64(content, newline=False)
    if way == ITERM:
        head = f"\x1b]1337;File=inline=1;size={len(content)};preserveAspectRatio=1:"
        return head.encode() + encoded + b"\x07\n"
    # What is wider than the terminal, by the width in the header of a PNG and ten pixels a column, is made to fit.
    is_wide = int.from_bytes(content[16:20], "big") > columns * 10
    written, fit = b"", f"c={columns}," if is_wide else ""
    for start in range(0, len(encoded), _KITTY_CHUNK):
        # q=2: no answers, nobody reads them.
        keys = b"" if start else f"a=T,f=100,q=2,{fit}".encode()
        more = b"m=1;" if start + _KITTY_CHUNK < len(encoded) else b"m=0;"
        written += b"\x1b_G" + keys + more + encoded[start : start + _KITTY_CHUNK] + b"\x1b\\"
    return written + b"\n"


class Album:
    """The pictures of one call: private files, kept for a week, under PX_HOME, else in the user's cache."""

    def __init__(self, env: Mapping[str, str]) -> None:
        if home := env.get("PX_HOME"):
            self._folder = os.path.join(os.path.abspath(os.path.expanduser(home)), "pictures")
        else:
            cache = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
            self._folder = os.path.join(cache, "pxd", "pictures")
        self._counts: dict[str, int] = {}

    def save(self, mime: str, content: bytes, cell_id: str) -> str:
        """Write a picture of a cell and return its path.

        Raises:
            Failure: It cannot be written.
        """
        if not self._counts:
            self._prepare()
        number = self._counts[cell_id] = self._counts.get(cell_id, 0) + 1
        path = os.path.join(self._folder, f"{cell_id}-{number}.{PICTURES[mime]}")
        write_whole(path, iter([content]))
        return path

    def _prepare(self) -> None:
        """Make the folder; files of our own that are older than a week go."""
        oldest = time.time() - _KEEP_SECONDS
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with os.scandir(self._folder) as found:
                for entry in found:
                    with contextlib.suppress(OSError):
                        if _OURS.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                            os.unlink(entry.path)
        except OSError as error:
            raise Failure(f"cannot write {self._folder}: {error.strerror}", kind="os_error") from error


_MARKER = re.compile(r"#\s?%%(\s|\Z)")
"""How a cell of a script begins."""
_CODE_EDGE = "│ "
_STATUS_CHARACTERS = 160


class Screen(View):
    """Shows a call on a terminal.

    Args:
        invocation: Where to.
        has_headers: As in View.
        shows_code: Whether the code of each cell is shown before it runs.
        full: Collapse nothing.
        album: Where pictures are saved.
        way: How they are drawn, one of WAYS but `auto`.
        kernel: Returns how the kernel is called, for commands that show the rest.
    """

    def __init__(
        self,
        invocation: Invocation,
        *,
        has_headers: bool,
        shows_code: bool,
        full: bool,
        album: Album,
        way: str,
        kernel: Callable[[], str],
    ) -> None:
        super().__init__(invocation, has_headers=has_headers)
        self._shows_code = shows_code
        self._full = full
        self._album = album
        self._way = way
        self._kernel = kernel
        self._colour = invocation.paint.on
        self._shaper = self._new_shaper()
        self._spinner: terminal.Spinner | None = None
        self._phase = ""
        self._cell_id = ""
        self._updates: dict[str, Event] = {}
        self._errors_apart = not invocation.err_is_terminal

    def _new_shaper(self) -> Shaper:
        return Shaper(colour=self._colour, full=self._full)

    # -- what is drawn besides ---------------------------------------------------------------------------------------

    def waiting(self, phase: str) -> None:
        """Say what is waited for, where it takes a while."""
        self._phase = phase
        if self._spinner is None:
            self._spinner = self.invocation.spinner(f"kernel:{self._kernel()}", lambda: self._phase)
            self._spinner.__enter__()

    def _write(self, piece: str | bytes) -> None:
        if piece:
            self._stop_spinner()
            self.invocation.write(piece)

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    # -- a cell ------------------------------------------------------------------------------------------------------

    def begin(self, event: Event) -> None:
        """Write its header and its code."""
        self._shaper, self._updates = self._new_shaper(), {}
        self._cell_id = str(event.get("id"))
        if self.heads:
            self._write(self.invocation.paint(self.header(), "bold") + "\n")
        if self._shows_code and (code := str(event.get("code") or "").strip("\n")):
            self._write(self._code(code))
        self.waiting("running…")

    def _code(self, code: str) -> str:
        lines = shaped(code, colour=False).splitlines()
        if _MARKER.match(lines[0]):
            # The header says already what stands behind it.
            del lines[0]
        left_out = 0 if self._full else len(lines) - SHOWN_LINES
        if left_out > 0:
            lines = [*lines[: SHOWN_LINES - 1], f"… {output.counted(left_out + 1, 'more line')}"]
        paint = self.invocation.paint
        return "".join(paint(_CODE_EDGE + line, "dim") + "\n" for line in lines)

    def output(self, stream: str, content: bytes) -> None:
        """Show it as it comes."""
        if stream == "stderr" and self._errors_apart:
            terminal.write_error(content)
            return
        self._put(self._shaper.feed(content.decode("utf-8", "replace")))

    def _put(self, written: str) -> None:
        self._write(written)
        if self._shaper.hides:
            self.waiting(f"{output.counted(self._shaper.hidden_lines, 'more line')}…")

    def rich(self, cell_id: str, event: Event) -> None:
        """Show a result; of a display that is updated only what it is at last."""
        if event.get("update") and event.get("display_id"):
            self._updates[str(event["display_id"])] = event
            return
        bundle = event.get("data") or {}
        picture = picture_in(bundle)
        if picture is not None:
            self._picture(cell_id, *picture)
        elif text := words_of(bundle, indent=2):
            self._put(self._shaper.block(text))

    def _picture(self, cell_id: str, mime: str, content: bytes) -> None:
        """Draw it where the terminal can, and name its file."""
        self._write(self._shaper.fresh())
        if (drawing := drawn(mime, content, self._way, self.invocation.width or 80)) is not None:
            self._write(drawing)
        try:
            path = self._album.save(mime, content, cell_id)
        except Failure as failure:
            self._write(shaped(f"{mime}: {failure.detail}", colour=False))
            return
        self._write(shaped(f"{mime} {output.size(len(content))} saved: {path}", colour=False))

    def traceback(self, lines: list[str]) -> None:
        """Show it whole, with the colours that the kernel gave it."""
        if lines:
            self._write(self._shaper.end(self._note))
            self._shaper = self._new_shaper()
            self._write(shaped("\n".join(lines), colour=self._colour))

    def status(self, status: Event) -> None:
        """Show what a helper of the prelude did, on one line."""
        facts = " ".join(
            f"{key}={value}" for key, value in status.items() if key != "op" and isinstance(value, str | int | float)
        )
        text = shaped(f"{status.get('op')} {facts}", colour=False).split("\n", 1)[0][:_STATUS_CHARACTERS]
        self._write(self._shaper.fresh() + self.invocation.paint(f"· {text}", "dim") + "\n")

    def remark(self, text: str) -> None:
        """Show it on a line of its own."""
        self._write(self._shaper.fresh() + self.invocation.paint(f"~ {text}", "yellow") + "\n")

    def close_line(self) -> None:
        """End a line that is begun."""
        self._write(self._shaper.fresh())
        self._stop_spinner()

    def end(self, cell: Event) -> None:
        """Show what was held back, and how it ended."""
        updates, self._updates = self._updates, {}
        for event in updates.values():
            self.rich(str(cell.get("id")), {**event, "update": False})
        self._write(self._shaper.end(self._note))
        self._shaper = self._new_shaper()
        if self.heads:
            words, style = self.verdict(cell)
            self._write(self.invocation.paint(words, style) + "\n")
        self._stop_spinner()

    def _note(self, count: int) -> str:
        hidden = f"… {output.counted(count, 'line')} hidden"
        command = f"pxctl kernel output {self._kernel()} {self._cell_id}"
        return self.invocation.paint(f"{hidden}; all of it: {command}, or exec --full", "dim")

    def finish(self) -> None:
        """Leave the terminal as it was."""
        self._write(self._shaper.end(self._note))
        self._shaper = self._new_shaper()
        self._stop_spinner()
