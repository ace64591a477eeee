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
_STEERING = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI, of which colours are
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~]"  # two characters and more (ECMA-48)
    # C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters
    "|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z")
"""What may become an escape sequence with the next piece."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def harmless(text: str, *, colour: bool = False) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants them."""

    def instead(found: re.Match[str]) -> str:
        if len(found[0]) == 1:
            return "�"
        return found[0] if colour and _COLOUR.fullmatch(found[0]) else ""

    return _STEERING.sub(instead, text)


class Outlet:
    """Where one stream goes: bytes as they are, or made harmless for a terminal, the same however they are cut."""

    def __init__(self, invocation: Invocation, stream: str) -> None:
        is_err = stream == "stderr"
        self.is_terminal = invocation.err_is_terminal if is_err else invocation.out_is_terminal
        self._write = output.write_error if is_err else output.write
        self._colour = invocation.err_has_colour if is_err else invocation.has_colour
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""  # the beginning of an escape sequence
        self._ends_line, self._is_painted = True, False

    def put(self, content: bytes, *, is_end: bool = False) -> None:
        if not self.is_terminal:
            self._ends_line = content.endswith(b"\n") if content else self._ends_line
            self._write(content)
            return
        text, self._held = self._held + self._decode(content, is_end), ""
        if not is_end and (begun := _BEGUN.search(text)):
            text, self._held = text[: begun.start()], begun[0]
        if shown := harmless(text, colour=self._colour):
            self._ends_line = shown.endswith("\n")
            if "\x1b" in shown:
                self._is_painted = shown.rfind(_RESET) < shown.rfind("\x1b")
            self._write(shown)

    def put_lines(self, text: str) -> None:
        whole = ("" if self._ends_line else "\n") + text.removesuffix("\n") + "\n"
        self.put(whole.encode("utf-8", "surrogatepass"))

    def close_line(self) -> None:
        """End a line and a colour that are begun on a terminal."""
        if self.is_terminal:
            self.put(b"", is_end=True)
            self._write((_RESET if self._is_painted else "") + ("" if self._ends_line else "\n"))
            self._ends_line, self._is_painted = True, False


class Screen:
    """Both streams of what runs elsewhere, what is said about it, and a spinner while nothing comes.

    Use as a context manager, which ends what is begun.
    """

    def __init__(self, invocation: Invocation, unit: str) -> None:
        self.invocation, self.phase = invocation, "…"
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
        if text not in self._said:
            self._said.add(text)
            self.say(f"pxctl: {text}")

    def wait(self, phase: str) -> None:
        self.phase = phase
        self._spinner.start()

    def close_lines(self) -> None:
        self._spinner.stop()
        self.out.close_line()
        self.err.close_line()


def print_pages(invocation: Invocation, found: Iterable[FetchedPage], offset: int, place: Document) -> None:
    """Print kept output, under `--json` as one document with its place; say how to go on where there is more."""
    outlet, content = Outlet(invocation, "stdout"), []
    for page in found:
        if invocation.json:
            content.append(page.content)
        else:
            outlet.put(page.content)
    if invocation.json:
        facts = {"offset": offset, "total_bytes": page.total, "complete": page.complete, "truncated": page.truncated}
        whole = b"".join(content)
        try:
            text = {"text": whole.decode()}
        except UnicodeDecodeError:
            text = {"base64": binascii.b2a_base64(whole, newline=False).decode()}
        invocation.print_json({**place, **facts, **text})
        return
    outlet.close_line()
    if page.truncated and not page.content:
        invocation.warn(f"pxctl: {page.end} of {page.total} bytes were kept (pipes.output_file_bytes)")
    elif not page.complete:
        invocation.notice(f"pxctl: {page.end} of {page.total} bytes so far; go on with --offset {page.end}")
