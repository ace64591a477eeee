"""What other programs printed, as pipe and terminal get it: bytes as they are, or text that cannot steer a terminal."""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterable

from pxctl import output
from pxctl.failures import Document
from pxctl.follow import FetchedPage
from pxctl.invocation import Invocation

STREAMS = ("stdout", "stderr")
_RESET = "\x1b[0m"
_SEQUENCE = re.compile(
    r"(\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~])"  # two characters and more (ECMA-48)
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z")
"""What may become an escape sequence with the next piece."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters."""


def harmless(text: str, *, colour: bool = False) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants them."""
    pieces = _SEQUENCE.split(text)
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = _CONTROLS.sub("�", piece)
        elif not (colour and _COLOUR.fullmatch(piece)):
            pieces[at] = ""
    return "".join(pieces)


class Shaper:
    """Makes what a program prints harmless, the same however it is cut into pieces."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""  # the beginning of an escape sequence
        self._in_line = self._is_painted = False

    def feed(self, content: bytes, *, is_end: bool = False) -> str:
        """Return what to write for some more of the output; may be empty."""
        text, self._held = self._held + self._decode(content, is_end), ""
        if begun := _BEGUN.search(text):
            text, self._held = text[: begun.start()], begun[0]
        shown = harmless(text, colour=self._colour)
        if shown:
            self._in_line = not shown.endswith("\n")
        if colours := _COLOUR.findall(shown):
            self._is_painted = colours[-1] not in {_RESET, "\x1b[m"}
        return shown

    def end_line(self) -> str:
        """Return what ends a line and a colour that are begun; empty where none is."""
        shown = self.feed(b"", is_end=True)
        shown += _RESET if self._is_painted else ""
        shown += "\n" if self._in_line else ""
        self._held, self._in_line, self._is_painted = "", False, False
        return shown


class Outlet:
    """Where one stream goes: bytes as they are, or shaped for a terminal."""

    def __init__(self, invocation: Invocation, stream: str) -> None:
        is_err = stream == "stderr"
        self.is_terminal = invocation.err_is_terminal if is_err else invocation.out_is_terminal
        self._write = output.write_error if is_err else output.write
        self._shaper = Shaper(colour=invocation.err_has_colour if is_err else invocation.has_colour)
        self._ends_line = True

    def put(self, content: bytes) -> None:
        if content:
            self._ends_line = content.endswith(b"\n")
            self._write(self._shaper.feed(content) if self.is_terminal else content)

    def put_lines(self, text: str) -> None:
        whole = ("" if self._ends_line else "\n") + text.removesuffix("\n") + "\n"
        self.put(whole.encode("utf-8", "surrogatepass"))

    def close_line(self) -> None:
        """End a line that is begun on a terminal."""
        if self.is_terminal and (rest := self._shaper.end_line()):
            self._ends_line = True
            self._write(rest)


class Screen:
    """Both streams of what runs elsewhere, what is said about it, and a spinner while nothing comes.

    Use as a context manager, which ends what is begun.
    """

    def __init__(self, invocation: Invocation, unit: str) -> None:
        self.invocation, self.unit, self.phase = invocation, unit, "…"
        self.out, self.err = (Outlet(invocation, stream) for stream in STREAMS)
        self._spinner = invocation.spinner(unit, lambda: self.phase)
        self._said: set[str] = set()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_lines()

    def put(self, stream: str, content: bytes) -> None:
        outlet, other = (self.err, self.out) if stream == "stderr" else (self.out, self.err)
        self._spinner.stop()
        if outlet.is_terminal:
            other.close_line()
        outlet.put(content)

    def say(self, text: str, style: str | None = None) -> None:
        """Write a line to stderr, unless -q silences it; text of others is made harmless."""
        self.close_lines()
        words = harmless(text).rstrip()
        self.invocation.notice(output.paint(words, style, on=self.invocation.err_has_colour))

    def say_once(self, text: str) -> None:
        """Tell a sentence that the daemon may repeat."""
        if text not in self._said:
            self._said.add(text)
            self.say(f"pxctl: {text}")

    def wait(self, phase: str) -> None:
        """Say what is waited for, where it takes a while."""
        self.phase = phase
        self._spinner.start()

    def close_lines(self) -> None:
        """Erase the spinner; end the lines that are begun."""
        self._spinner.stop()
        self.out.close_line()
        self.err.close_line()


def print_pages(invocation: Invocation, found: Iterable[FetchedPage], offset: int, place: Document) -> None:
    """Print kept output, under `--json` as one document with its place; say how to go on where there is more."""
    if invocation.json:
        listed = list(found)
        content, last = b"".join(page.content for page in listed), listed[-1]
        facts = {"offset": offset, "total_bytes": last.total, "complete": last.complete, "truncated": last.truncated}
        try:
            text = {"text": content.decode()}
        except UnicodeDecodeError:
            text = {"base64": binascii.b2a_base64(content, newline=False).decode()}
        invocation.print_json({**place, **facts, **text})
        return
    outlet, page = Outlet(invocation, "stdout"), None
    for page in found:
        outlet.put(page.content)
    outlet.close_line()
    if page is not None and page.truncated and not page.content:
        invocation.warn(f"pxctl: {page.end} of {page.total} bytes were kept (pipes.output_file_bytes)")
    elif page is not None and not page.complete:
        invocation.notice(f"pxctl: {page.end} of {page.total} bytes so far; go on with --offset {page.end}")
