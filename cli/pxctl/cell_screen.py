"""A call on a terminal: headers with status and duration, output as it comes, collapsed, pictures named or drawn.

Law: what a person sees last is what the cell said last; what is hidden is counted, with the command that shows it.
"""

from __future__ import annotations

import re

from pxctl import terminal, wording
from pxctl.cell_view import View
from pxctl.failure import Failure
from pxctl.inline_images import NEVER, CannotDraw, drawn
from pxctl.rich_text import FULL_TREE_DEPTH, JSON, TREE_DEPTH, picture_in, tree, words_of
from pxctl.shown_text import SHOWN_LINES, Shaper, shaped
from pxctl.spinner import Spinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pxctl.invocation import Invocation
    from pxctl.rich_text import Picture
    from pxctl.saved_pictures import Album

    Event = dict[str, Any]

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
        way: How they are drawn, one of inline_images.WAYS but `auto`.
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
        self._spinner: Spinner | None = None
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
        if self._spinner is None and self.invocation.err_is_terminal and not self.invocation.quiet:
            on = self.invocation.env.get("TERM") != "dumb"
            self._spinner = Spinner(f"kernel:{self._kernel()}", lambda: self._phase, on=on)
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
            lines = [*lines[: SHOWN_LINES - 1], f"… {wording.counted(left_out + 1, 'more line')}"]
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
            self.waiting(f"{wording.counted(self._shaper.hidden_lines, 'more line')}…")

    def rich(self, cell_id: str, event: Event) -> None:
        """Show a result; of a display that is updated only what it is at last."""
        if event.get("update") and event.get("display_id"):
            self._updates[str(event["display_id"])] = event
            return
        bundle = event.get("data") or {}
        picture = picture_in(bundle)
        if picture is not None:
            self._picture(cell_id, picture)
            return
        depth = FULL_TREE_DEPTH if self._full else TREE_DEPTH
        text = tree(bundle[JSON], depth) if JSON in bundle else words_of(bundle)
        if text:
            self._put(self._shaper.block(text))

    def _picture(self, cell_id: str, picture: Picture) -> None:
        """Draw it where the terminal can, and name its file."""
        self._write(self._shaper.fresh())
        note = ""
        if self._way != NEVER:
            try:
                self._write(drawn(picture, self._way, self.invocation.width or 80))
            except CannotDraw as error:
                note = f" (not drawn: {error})"
        try:
            path = self._album.save(picture, cell_id)
        except Failure as failure:
            self._write(shaped(f"{picture.mime}: {failure.detail}", colour=False))
            return
        size = wording.size(len(picture.content))
        self._write(shaped(f"{picture.mime} {size} saved: {path}{note}", colour=False))

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
        hidden = f"… {wording.counted(count, 'line')} hidden"
        command = f"pxctl kernel output {self._kernel()} {self._cell_id}"
        return self.invocation.paint(f"{hidden}; all of it: {command}, or exec --full", "dim")

    def finish(self) -> None:
        """Leave the terminal as it was."""
        self._write(self._shaper.end(self._note))
        self._shaper = self._new_shaper()
        self._stop_spinner()
