"""What becomes of a call's events for whoever reads them: the common course, and the plain one for pipes and files.

Law: on a pipe, stdout gets the bytes of the cells' stdout, all of them and unchanged, and the text of results on lines
of their own; everything else goes to stderr. A terminal never gets a control character of a cell.
"""

from __future__ import annotations

import json

from pxctl import terminal, wording
from pxctl.calling import bytes_of
from pxctl.failure import Failure
from pxctl.rich_text import JSON, picture_in, words_of
from pxctl.shown_text import Shaper, shaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pxctl.invocation import Invocation
    from pxctl.saved_pictures import Album

    Event = dict[str, Any]

SIGNS = {"ok": "✓", "error": "✗", "cancelled": "⊘", "timed_out": "⏱", "aborted": "-"}
STYLES = {"ok": "green", "error": "red", "cancelled": "yellow", "timed_out": "red", "aborted": "dim"}


class View:
    """Shows a call. Subclasses say how the things of a cell are shown.

    Args:
        invocation: Where to.
        has_headers: Whether cells are announced though there is only one.
    """

    def __init__(self, invocation: Invocation, *, has_headers: bool) -> None:
        self.invocation = invocation
        self._has_headers = has_headers
        self._said: set[str] = set()
        self._raised = False
        self.count = 0
        self.index = 0
        self.title: str | None = None

    @property
    def heads(self) -> bool:
        """Whether the cell that runs has a header."""
        if self.invocation.quiet:
            return False
        is_single = self.count == 1 or not self._has_headers
        return bool(self.title) or self.count > 1 or self.index > 0 or not is_single

    def show(self, event: Event) -> None:
        """Show one event."""
        match event.get("event"):
            case "cell_started":
                self.index, self.title = int(event.get("index") or 0), event.get("title")
                self.count = max(self.count, int(event.get("count") or 0))
                self._raised = False
                self.begin(event)
            case "output":
                self.output("stderr" if event.get("stream") == "stderr" else "stdout", bytes_of(event))
            case "display" | "result":
                self.rich(str(event.get("id")), event)
            case "error":
                self._raised = True
                self.traceback(list(map(str, event.get("traceback") or [])))
            case "cell_done":
                self._done(event.get("cell") or {})
            case "status":
                self.status(event.get("status") or {})
            case _:
                self._show_besides(event)

    def _done(self, cell: Event) -> None:
        """Show the end of a cell; an error that was not shown yet has no traceback: a shell's exit code, a death."""
        error = cell.get("error") or {}
        if error and not self._raised and cell.get("status") == "error":
            self.traceback([f"{error.get('name')}: {error.get('value')}"])
        self.end(cell)

    def _show_besides(self, event: Event) -> None:
        """Show what is not of the cell itself."""
        match event.get("event"):
            case "notice":
                self.say_once(str(event.get("text")))
            case "rung":
                self.remark(f"ending the cell: {event.get('action')}")
            case "queued":
                self.waiting(f"waiting in line ({event.get('position')})…")
            case "starting":
                self.waiting("starting the kernel…")

    def conclude(self, result: Event) -> None:
        """Tell what is to be told of the whole call, whatever came of it."""
        for cell in result.get("cells") or []:
            for text in cell.get("notices") or []:
                self.say_once(str(text))
        for text in result.get("notices") or []:
            self.say_once(str(text))

    def say_once(self, text: str) -> None:
        """Tell a sentence that the daemon may repeat."""
        if text not in self._said:
            self._said.add(text)
            self.close_line()
            self.invocation.notice(f"pxctl: {shaped(text, colour=False).rstrip()}")

    def number(self) -> str:
        """Return `[2/5]`, or `[2]` where nobody knows how many there are."""
        return f"[{self.index + 1}/{self.count}]" if self.count else f"[{self.index + 1}]"

    def header(self) -> str:
        """Return the header line of the cell, without colour."""
        title = shaped(self.title, colour=False).strip() if self.title else ""
        return f"{self.number()} {title}".rstrip()

    def verdict(self, cell: Event) -> tuple[str, str]:
        """Return the words and the style for how a cell ended."""
        status = str(cell.get("status"))
        word = "" if status == "ok" else f" {status.replace('_', ' ')}"
        seconds = cell.get("duration_seconds")
        took = f" {_seconds(seconds)}" if isinstance(seconds, int | float) else ""
        return f"{SIGNS.get(status, '?')}{word}{took}", STYLES.get(status, "red")

    def begin(self, event: Event) -> None:
        """A cell was sent to the kernel."""

    def output(self, stream: str, content: bytes) -> None:
        """Some more of what it prints."""

    def rich(self, cell_id: str, event: Event) -> None:
        """A result or a display."""

    def traceback(self, lines: list[str]) -> None:
        """It raised something."""

    def status(self, status: Event) -> None:
        """A helper of the prelude says what it did."""

    def remark(self, text: str) -> None:
        """A step of the ladder was taken."""

    def waiting(self, phase: str) -> None:
        """Nothing runs yet."""

    def close_line(self) -> None:
        """End a line that is begun."""

    def end(self, cell: Event) -> None:
        """It ended."""

    def finish(self) -> None:
        """Nothing more comes, whatever the reason; may be called twice."""


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 10 else wording.duration(seconds)


class PipeView(View):
    """Writes stdout for programs.

    Args:
        invocation: Where to.
        has_headers: As in View.
        raw: The bytes that cells print and nothing else.
        album: Where pictures are saved; None saves none.
    """

    def __init__(self, invocation: Invocation, *, has_headers: bool, raw: bool, album: Album | None) -> None:
        super().__init__(invocation, has_headers=has_headers)
        self._raw = raw
        self._album = album
        self._ends_line = True
        self._colour = invocation.err_paint.on
        self._shaper = Shaper(colour=self._colour, full=True) if invocation.err_is_terminal else None

    def begin(self, event: Event) -> None:
        """Announce it on stderr."""
        del event
        if self.heads and not self._raw:
            self.close_line()
            self.invocation.notice(self.header())

    def output(self, stream: str, content: bytes) -> None:
        """Pass the bytes on."""
        if stream == "stdout":
            self.invocation.write(content)
            self._ends_line = content.endswith(b"\n") if content else self._ends_line
        elif self._shaper is None:
            terminal.write_error(content)
        else:
            terminal.write_error(self._shaper.feed(content.decode("utf-8", "replace")))

    def rich(self, cell_id: str, event: Event) -> None:
        """Write the text of a result on lines of its own, and name the file of a picture on stderr."""
        if self._raw or event.get("update"):
            return
        bundle = event.get("data") or {}
        picture = picture_in(bundle) if self._album is not None else None
        text = json.dumps(bundle[JSON], ensure_ascii=False) if JSON in bundle else words_of(bundle)
        if text:
            self._line(text)
        if picture is not None and self._album is not None:
            path = self._album.save(picture, cell_id)
            self.invocation.notice(f"pxctl: {picture.mime} ({wording.size(len(picture.content))}) saved: {path}")

    def _line(self, text: str) -> None:
        before = "" if self._ends_line else "\n"
        self.invocation.write(before + (text if text.endswith("\n") else text + "\n"))
        self._ends_line = True

    def traceback(self, lines: list[str]) -> None:
        """Write it to stderr."""
        if lines and not self._raw:
            self.close_line()
            terminal.write_error(shaped("\n".join(lines), colour=self._colour))

    def remark(self, text: str) -> None:
        """Tell it on stderr."""
        if not self._raw:
            self.close_line()
            self.invocation.notice(f"pxctl: {text}")

    def close_line(self) -> None:
        """End a line of stderr that is begun."""
        if self._shaper is not None:
            terminal.write_error(self._shaper.fresh())

    def end(self, cell: Event) -> None:
        """Say on stderr how it ended."""
        self.close_line()
        if self.heads and not self._raw:
            self.invocation.notice(f"{self.number()} {self.verdict(cell)[0]}")

    def finish(self) -> None:
        """End the line of stderr."""
        self.close_line()


def failure_of(result: Event, unit: str, *, cancelled: bool) -> Failure | None:
    """Return the failure that a call ended with, None when all is well. Its sentence is the daemon's."""
    status = str(result.get("status"))
    if status == "ok":
        return None
    cell: Event = next((each for each in result.get("cells") or [] if each.get("status") != "ok"), {})
    error = str((cell.get("error") or {}).get("name") or "")
    code = EXITS.get(status, 1) if error != "ResourceLimitExceeded" else LIMIT
    message = str(result.get("message") or f"the cell ended with status {status}")
    kind = "cancelled" if cancelled and status == "cancelled" else f"cell_{status}"
    return Failure(message, kind=kind, exit_code=code, unit=unit, hint=_hint(status, cell, result))


EXITS = {"error": 1, "cancelled": 1, "aborted": 1, "timed_out": 7}
LIMIT = 9


def _hint(status: str, cell: Event, result: Event) -> str | None:
    kernel = result.get("kernel")
    steps = cell.get("steps") or [{}]
    if status in ("timed_out", "cancelled") and steps[-1].get("action") == "unreachable":
        url = next((word for word in str(steps[-1].get("detail")).split() if "://" in word), "URL")
        return f"check kernels.gateway_url; try: curl {url}/api"
    if status == "timed_out":
        return "give it longer: pxctl exec --timeout S"
    if (cell.get("error") or {}).get("name") == "KernelDied":
        return f"pxctl why kernel:{kernel}"
    return None
