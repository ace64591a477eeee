"""Following an endless answer of the daemon over a restart of its control plane.

Law: what was seen is not shown twice and what was not seen is not left out: after each loss the stream is taken up
again at the place that the caller remembers.
"""

from __future__ import annotations

import time

from pxctl import interrupts
from pxctl.failure import Interrupted, Problem, Unreachable
from pxctl.streams import split_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pxctl.failure import Failure
    from pxctl.invocation import Invocation

AWAY_SECONDS = 60.0
"""How long a daemon may be away before following ends with an error."""
CUT_OFF = frozenset({"shutdown", "interrupted"})
"""What the daemon answers while its control plane goes: another one follows."""
_PAUSE_SECONDS = 0.2
_READ_SECONDS = 60.0
_NDJSON = {"Accept": "application/x-ndjson"}


class Patience:
    """Bears the absence of a daemon that was there before, for a while."""

    def __init__(self, seconds: float = AWAY_SECONDS) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._met = False

    def met(self) -> None:
        """Note that the daemon answered."""
        self._met = True
        self._since = None

    def bear(self, failure: Failure) -> None:
        """Pause; raise `failure` where it is of another kind, or the daemon was never there, or is away too long."""
        away = isinstance(failure, Unreachable | Interrupted) or (
            isinstance(failure, Problem) and failure.kind in CUT_OFF
        )
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not away or not self._met or now - self._since > self._seconds:
            raise failure
        interrupts.pause(_PAUSE_SECONDS)


def ndjson_lines(invocation: Invocation, target: Callable[[], str], *, follow: bool) -> Iterator[bytes]:
    """Yield the lines of an NDJSON answer. `target` is asked anew at each connection: it names the place."""
    patience = Patience()
    while True:
        try:
            timeout = None if follow else _READ_SECONDS
            with invocation.client().open("GET", target(), fields=_NDJSON, timeout=timeout) as exchange:
                patience.met()
                for line in split_lines(exchange.chunks()):
                    if line.strip():
                        yield line
        except (Unreachable, Interrupted, Problem) as failure:
            if not follow:
                raise
            patience.bear(failure)
            continue
        if not follow:
            return
        # An orderly end of an endless answer: the control plane is being replaced.
        interrupts.pause(_PAUSE_SECONDS)
