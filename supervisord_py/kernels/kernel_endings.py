"""How a kernel ended, in words: for the cell it died in, for whoever waits for it, for the log. Pure."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.cell import CellError
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.process.model import ExitRecord

TAIL_LINES = 12
_FATAL = "Fatal Python error"
"""How faulthandler begins."""
_MIB = 1024 * 1024
_WHY = {
    Reason.STOPPED: "it was stopped on request",
    Reason.EVICTED_LRU: "room was needed for another session",
    Reason.EVICTED_TTL: "it was not used for its idle time",
    Reason.REPLACED: "it was replaced on request",
    Reason.TIMEOUT: "the call's time was over and the cell did not yield to an interrupt",
    Reason.CANCELLED: "the call was cancelled and the cell did not yield to an interrupt",
    Reason.SHUTDOWN: "the daemon stopped",
    Reason.INTERRUPTED: "the daemon was cut off",
}

AT_ITS_SERVER = "ended at its server"
"""Of a kernel behind a gateway nobody tells code or signal."""
_LIMITS = frozenset({Reason.MEMORY_LIMIT, Reason.OOM_KILL, Reason.CPU_LIMIT})


@dataclass(frozen=True, slots=True)
class KernelEnd:
    """How a kernel ended, with what it had to say.

    Attributes:
        reason: From the closed list.
        record: The exit record; None where there is no process of ours.
        tail: The end of its log, decoded.
    """

    reason: Reason
    record: ExitRecord | None = None
    tail: str = ""

    @property
    def code(self) -> int | None:
        """The exit code, if it exited."""
        return self.record.code if self.record else None

    @property
    def signal(self) -> int | None:
        """The signal, if one ended it."""
        return self.record.signal if self.record else None

    def verdict(self) -> dict[str, Any] | None:
        """Return what the killer wrote down, as JSON values."""
        verdict = self.record.verdict if self.record else None
        if verdict is None:
            return None
        return {
            "by": verdict.by,
            "rss_bytes": verdict.rss_bytes,
            "limit_bytes": verdict.limit_bytes,
            "signal": verdict.signal,
            "time": verdict.time,
        }

    def facts(self) -> dict[str, Any]:
        """Return the members of a problem document that describe this end."""
        told = {"reason": self.reason.value, "code": self.code, "signal": self.signal, "stderr_tail": self.tail}
        verdict = self.verdict()
        return told if verdict is None else {**told, "verdict": verdict}


def how_it_ended(end: KernelEnd) -> str:
    """Say it as a verb phrase: `exited with code 3`, `was killed by SIGSEGV`, `was ended: it was stopped`."""
    if end.reason in {Reason.MEMORY_LIMIT, Reason.OOM_KILL}:
        return _memory(end)
    if end.reason is Reason.CPU_LIMIT:
        return "was killed: its limit of CPU seconds was reached"
    if end.reason in _WHY:
        return f"was ended: {_WHY[end.reason]}"
    if end.signal is not None:
        unknown = end.signal == signals.SIGKILL
        return f"was killed by {signal_name(end.signal)}" + (
            " (not sent by pxd; possibly the kernel's OOM killer)" if unknown else ""
        )
    return f"exited with code {end.code}" if end.code is not None else AT_ITS_SERVER


def signal_name(number: int) -> str:
    """Return SIGSEGV for 11."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def death_in_cell(end: KernelEnd) -> CellError:
    """Return the error of the cell in which a kernel died."""
    text = f"The kernel {how_it_ended(end)} while the cell ran. The cell is not run again; all variables are lost."
    if end.tail:
        text += "\nLast words of the kernel:\n" + last_lines(end.tail)
    return CellError("ResourceLimitExceeded" if end.reason in _LIMITS else "KernelDied", text)


def last_lines(text: str, count: int = TAIL_LINES) -> str:
    """Return the last lines of a text; of a crash report the first ones, where the crash is."""
    lines = text.rstrip().splitlines()
    fatal = next((number for number, line in enumerate(lines) if line.startswith(_FATAL)), None)
    return "\n".join(lines[-count:] if fatal is None else lines[fatal : fatal + count])


def decode_tail(raw: bytes, limit: int) -> str:
    """Decode the last `limit` bytes; what is no UTF-8 is shown as U+FFFD, a first character that was cut is dropped."""
    tail = raw[-limit:] if limit else b""
    if len(raw) > limit:
        while tail and tail[0] & 0xC0 == 0x80:
            tail = tail[1:]
    return tail.decode(errors="replace")


def _memory(end: KernelEnd) -> str:
    verdict = end.record.verdict if end.record else None
    figures = ""
    if verdict is not None and verdict.limit_bytes is not None:
        held = f"{verdict.rss_bytes // _MIB} MiB resident, " if verdict.rss_bytes is not None else ""
        figures = f" ({held}limit {verdict.limit_bytes // _MIB} MiB)"
    if end.reason is Reason.OOM_KILL:
        return f"was killed by the kernel: out of memory{figures}"
    return f"was killed: it was over its memory limit{figures}"
