"""`pxctl logs`: a unit's output, byte for byte, followed over restarts and rotation."""

from __future__ import annotations

import binascii
import json

import click

from pxctl.client import query, quote
from pxctl.commanding import READS, declare
from pxctl.completing import unit_names
from pxctl.failure import OK, USAGE, Failure
from pxctl.following import ndjson_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pxctl.invocation import Invocation


@declare(
    "logs",
    effect=READS,
    examples=[
        "pxctl logs lorenz-ode-solver",
        "pxctl logs lorenz-ode-solver -f -n 20 --timestamps",
        "pxctl logs lorenz-ode-solver --stderr --since 10m",
        "pxctl logs lorenz-ode-solver --since 2026-01-31T12:00:00Z --json",
    ],
)
@click.argument("unit", metavar="UNIT", shell_complete=unit_names)
@click.option("-f", "--follow", is_flag=True, help="Go on as output comes; survives a restart of the control plane.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="The last N lines only.")
@click.option("--since", metavar="T", help="From a time (RFC 3339) or an age (90s, 10m, 2h, 1d) on.")
@click.option("--stdout", is_flag=True, help="Only what came on stdout.")
@click.option("--stderr", is_flag=True, help="Only what came on stderr.")
@click.option("--timestamps", is_flag=True, help="Begin each line with the time of its output.")
def command(
    invocation: Invocation,
    unit: str,
    follow: bool,
    lines: int | None,
    since: str | None,
    stdout: bool,
    stderr: bool,
    timestamps: bool,
) -> int:
    """Show the output of a unit as it came; with --json a line of NDJSON for each piece.

    Where output was lost, a note on stderr says how much.
    """
    invocation.action = f"read the logs of {unit}"
    if stdout and stderr:
        raise Failure(
            "--stdout and --stderr exclude each other; without both, both are shown",
            kind="usage",
            hint=f"pxctl logs {unit}",
            exit_code=USAGE,
        )
    wish = _Wish(unit, "stdout" if stdout else "stderr" if stderr else None, lines, since, follow=follow)
    wish.encoding = None if invocation.json else "base64"
    try:
        if invocation.json:
            for line, _ in wish.pieces(invocation):
                invocation.write(line + b"\n")
        else:
            _show(invocation, wish, timestamps=timestamps)
    except KeyboardInterrupt:
        return OK
    return OK


class _Wish:
    """What is to be shown, and how far it was shown already."""

    def __init__(self, unit: str, stream: str | None, lines: int | None, since: str | None, *, follow: bool) -> None:
        self._unit = unit
        self._stream = stream
        self._lines = lines
        self._since = since
        self._follow = follow
        self._cursor: int | None = None
        self.encoding: str | None = None

    def target(self) -> str:
        """Return the request; after a loss it begins where the last piece ended."""
        fresh = self._cursor is None
        return query(
            f"/api/units/{quote(self._unit)}/logs",
            [
                ("follow", True if self._follow else None),
                ("since", self._since if fresh else None),
                ("lines", self._lines if fresh else None),
                ("cursor", self._cursor),
                ("stream", self._stream),
                ("encoding", self.encoding),
            ],
        )

    def pieces(self, invocation: Invocation) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield each piece of output as its line and what the line says."""
        for line in ndjson_lines(invocation, self.target, follow=self._follow):
            try:
                piece = json.loads(line)
            except ValueError as error:
                raise Failure(f"the daemon sent a line that is not JSON: {error}", kind="bad_answer") from error
            yield line, piece
            following = piece.get("next_position")
            self._cursor = following if isinstance(following, int) else self._cursor


def _show(invocation: Invocation, wish: _Wish, *, timestamps: bool) -> None:
    write: Callable[[bytes, str], None] = _Stamper(invocation) if timestamps else _plainly(invocation)
    for _, piece in wish.pieces(invocation):
        if "gap_bytes" in piece:
            invocation.warn(f"pxctl: {piece['gap_bytes']} bytes of output were lost here")
            continue
        write(_bytes_of(piece), str(piece.get("time") or ""))


def _plainly(invocation: Invocation) -> Callable[[bytes, str], None]:
    def write(content: bytes, _: str) -> None:
        invocation.write(content)

    return write


def _bytes_of(piece: dict[str, Any]) -> bytes:
    """Return the bytes of a piece: exactly, where the daemon sent base64."""
    if isinstance(piece.get("base64"), str):
        return binascii.a2b_base64(piece["base64"])
    return str(piece.get("text", "")).encode()


class _Stamper:
    """Begins each line with the time at which its first piece came."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._fresh = True

    def __call__(self, content: bytes, stamp: str) -> None:
        """Write one piece."""
        prefix = f"{stamp} ".encode()
        for line in _cut_at_newlines(content):
            self._invocation.write(prefix + line if self._fresh else line)
            self._fresh = line.endswith(b"\n")


def _cut_at_newlines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; only a newline ends one, so that a progress bar stays in its line."""
    *lines, last = content.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])
