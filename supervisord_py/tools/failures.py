"""Failures in words: what happened to an instance, the evidence, and the one next step. No I/O.

Law: a limit is named only where its enforcer said so (a verdict, SIGXCPU under our own RLIMIT_CPU, a timer of ours).
What is merely likely from stderr is called suspected.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    CancelledRunError,
    InterruptedRunError,
    KeeperLostError,
    OverloadedError,
    PxError,
    ReadinessTimeoutError,
    ResourceLimitError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
    ToolFailedError,
    UnknownUnitError,
)
from supervisord_py.process.instance import End, signal_name
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import Refusal, Refuse
from supervisord_py.tools.manifest import MEBIBYTE, ToolSpec

_LIMIT_WORDS = {
    Reason.MEMORY_LIMIT: "memory",
    Reason.OOM_KILL: "memory",
    Reason.CPU_LIMIT: "cpu",
    Reason.RUNTIME_LIMIT: "runtime",
}
MEMORY_SIGNS = re.compile(
    r"MemoryError|_ArrayMemoryError|std::bad_alloc|Memory allocation still failed|can't start new thread"
    r"|Cannot allocate memory|JavaScript heap out of memory"
)
IN_USE = re.compile(r"(?i)address already in use|EADDRINUSE")
_NO_MODULE = re.compile(r"(?:(?:ModuleNotFound|Import)Error: No module named|Cannot find module) '?([\w./@-]+)")
_SYNTAX = re.compile(
    r'File "([^"]+)", line (\d+)\n(?:(?!File ")[^\n]*\n){0,4}(?:SyntaxError|IndentationError|TabError):'
)
_HINTS = (
    (_NO_MODULE, "Module {1} is missing: name it in requirements.txt, and run `pxctl tools sync {spec.name}`."),
    (IN_USE, "The tool binds a port that is taken: let it bind 127.0.0.1 on the port of --port{or_listen}."),
    (_SYNTAX, "Correct the syntax error in {1}:{2}."),
    (
        MEMORY_SIGNS,
        "memory (suspected): it ran out of it by its own account; raise max_memory_mb ({spec.max_memory_mb}).",
    ),
)
"""What stderr says, and the next step; {1} is the pattern's first group."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)


def hint_for(spec: ToolSpec, stderr_tail: str) -> str | None:
    """Return the next step that stderr suggests, or None."""
    for pattern, step in _HINTS:
        if match := pattern.search(stderr_tail):
            or_listen = ', or set "listen": "port"' if spec.listen == "handover" else ""
            return step.format(match[0], *match.groups(), spec=spec, or_listen=or_listen)
    # Else, when the last words are a traceback, its innermost line that is the tool's own.
    _, begin, trace = stderr_tail.rpartition("Traceback (most recent call last):\n")
    files = [found for found in _FRAME.findall(trace) if "/.venv/" not in found[0]]
    own = [found for found in files if found[0].startswith(f"{spec.folder}/") or found[0][0] not in "/<"]
    error = trace.rstrip().rpartition("\n")[2].partition(":")[0]
    if begin and own and error.replace(".", "").isidentifier():
        return f"Mend {own[-1][0]}:{own[-1][1]}, which raised {error}."
    return None


def how_it_ended(ended: End) -> str:
    """Say it as a verb phrase: 'exited with code 3', 'was killed by SIGSEGV'."""
    if ended.signal is None:
        return f"exited with code {ended.code}" if ended.code is not None else "ended"
    unknown = ended.signal == signal.SIGKILL and ended.reason is Reason.SIGNAL
    return f"was killed by {signal_name(ended.signal)}{' (not by pxd; possibly out of memory)' if unknown else ''}"


def _look(spec: ToolSpec) -> str:
    return f"See `pxctl logs {spec.unit}` and `pxctl tools debug {spec.name}`."


def is_the_tools(error: BaseException) -> bool:
    """Say whether a run failed through its tool: neither its input, nor whoever asked, nor the daemon is to blame.

    A start that failed is not a run; it is told by an event of its own.
    """
    if isinstance(error, ToolFailedError):
        return error.status >= 500
    return isinstance(error, ResourceLimitError | TimedOutError)


def early_exit(spec: ToolSpec, ended: End) -> PxError:
    """Describe a start whose process ended before it was ready."""
    if ended.reason in _LIMIT_WORDS:
        return limit_exceeded(spec, ended)
    detail, hint = f"{spec.unit} {how_it_ended(ended)} before it was ready{_last_line(ended.stderr_tail)}", _look(spec)
    if ended.code == 0:
        detail = f"{spec.unit} exited 0 before serving: is the server started under __main__?"
        hint = f'Start the server at the end of {spec.entrypoint}, under `if __name__ == "__main__":`, and stay in it.'
    return StartFailedError(detail, hint=hint_for(spec, ended.stderr_tail) or hint, unit=spec.unit, **ended.facts())


def _last_line(stderr_tail: str) -> str:
    lines = [line for line in stderr_tail.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:300]}" if lines else "; it wrote nothing to stderr."


def not_ready(
    spec: ToolSpec, port: int, listening: Sequence[tuple[str, int]], answer: int, stderr_tail: str
) -> PxError:
    """Describe a start that lives but was not ready in time.

    `listening`: where its tree listens; `answer`: the last one to `/healthz`, 0 for none.
    """
    elsewhere = [f"{address}:{number}" for address, number in listening if number != port]
    why, hint = "it listens on no port", _look(spec)
    if elsewhere:
        why = f"it listens on {', '.join(elsewhere)} instead of 127.0.0.1:{port}"
        hint = f"Let {spec.entrypoint} bind 127.0.0.1 on the port that `--port` gives."
    elif answer:
        why = f"GET /healthz answered {answer}"
        hint = "Answer 200 on GET /healthz once the tool can work."
    elif listening:
        why = f"it holds port {port} but nobody answers there"
    return ReadinessTimeoutError(
        f"{spec.unit} was not ready within {spec.start_timeout_seconds:g} s: {why}{_last_line(stderr_tail)}",
        hint=hint_for(spec, stderr_tail) or hint,
        unit=spec.unit,
        reason=Reason.READINESS_TIMEOUT.value,
        start_timeout_seconds=spec.start_timeout_seconds,
        port=port,
        stderr_tail=stderr_tail,
    )


def port_taken(spec: ToolSpec, port: int) -> StartFailedError:
    """Describe a start that was given up because its port was somebody else's."""
    return StartFailedError(
        f"{spec.unit}: the listener on port {port} is not the tool's own.",
        hint="See which program takes ports on this machine (`ss -ltnp`), then ask again.",
        unit=spec.unit,
        reason=Reason.EARLY_EXIT.value,
        stage="port",
        port=port,
    )


def limit_exceeded(spec: ToolSpec, ended: End) -> ResourceLimitError:
    """Describe an end by a limit; `limit` is memory, runtime or cpu."""
    word = _LIMIT_WORDS[ended.reason]
    facts: dict[str, Any] = {"limit_seconds": spec.max_runtime_seconds}
    detail = f"the run took longer than {spec.max_runtime_seconds:g} s"
    hint = "Raise max_runtime_seconds, or ask for less work at a time."
    if word == "memory":
        verdict = ended.record.verdict if ended.record else None
        limit = verdict.limit_bytes if verdict and verdict.limit_bytes else spec.max_rss_bytes
        facts = {"limit_bytes": limit, "rss_bytes": verdict.rss_bytes if verdict else None}
        sizes = (facts["rss_bytes"], limit)
        used, allowed = ("an unknown amount" if each is None else f"{each / MEBIBYTE:.0f} MiB" for each in sizes)
        detail, hint = f"{used} resident, {allowed} allowed", "Raise max_memory_mb, or let the tool use less."
    elif word == "cpu":
        facts = {"limit_seconds": spec.limits.cpu_seconds}
        detail = f"{spec.limits.cpu_seconds} s of CPU time were used up"
        hint = "Raise limits.cpu_seconds; it counts over the whole life of a process."
    said = f"ResourceLimitExceeded: {word}: {spec.unit}: {detail}."
    return ResourceLimitError(said, hint=hint, unit=spec.unit, **ended.facts(), limit=word, **facts)


def stopped_during_run(spec: ToolSpec, reason: Reason) -> PxError:
    """Describe a run whose instance was stopped on purpose, or because another run on it took too long."""
    if reason is Reason.SHUTDOWN:
        said = f"The daemon stops, and {spec.unit} with it."
        return ShuttingDownError(said, hint="Ask again once it runs.", unit=spec.unit)
    if reason is Reason.RUNTIME_LIMIT:
        said = f"{spec.unit} was stopped because another run on it broke a limit; this run is collateral."
        return InterruptedRunError(said, hint="Ask again.", unit=spec.unit, collateral=True, reason=reason.value)
    said = f"{spec.unit} was stopped during the run."
    return CancelledRunError(said, hint="Ask again.", unit=spec.unit, reason=reason.value)


def died_during_run(spec: ToolSpec, ended: End, error: PxError | None = None) -> PxError:
    """Describe a run whose instance ended under it; `error` is why nothing more can be known."""
    if isinstance(error, KeeperLostError):
        return error.fresh()
    if ended.reason in _LIMIT_WORDS:
        return limit_exceeded(spec, ended)
    if ended.reason in {Reason.SHUTDOWN, Reason.STOPPED, Reason.REPLACED}:
        return stopped_during_run(spec, ended.reason)
    return ToolFailedError(
        f"{spec.unit} {how_it_ended(ended)} during the run{_last_line(ended.stderr_tail)}",
        hint=hint_for(spec, ended.stderr_tail) or f"{_look(spec)} The next request starts it anew.",
        unit=spec.unit,
        **ended.facts(),
    )


def bad_answer(spec: ToolSpec, what: str, stderr_tail: str, **more: Any) -> ToolFailedError:
    """Describe an answer that cannot be passed on."""
    hint = hint_for(spec, stderr_tail) or _look(spec)
    return ToolFailedError(f"{spec.unit} {what}", hint=hint, unit=spec.unit, stderr_tail=stderr_tail, **more)


_EVIDENCE = ("reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit")
_MORE = "Ask again later, or raise tools.{} or the tool's concurrency."
_REFUSED: dict[Refusal, tuple[type[PxError], str, str | None]] = {
    Refusal.QUEUE_FULL: (OverloadedError, "{unit} is busy, and its line is full.", _MORE.format("queue_max")),
    Refusal.DEADLINE: (OverloadedError, "No place for {unit} came free in time.", _MORE.format("warm_keep_max")),
    Refusal.DEADLINE_STARTING: (
        TimedOutError,
        "{unit} was still starting when the request's time was over; the start goes on.",
        "Ask again: it may be ready by then.",
    ),
    Refusal.ALL_PINNED: (
        OverloadedError,
        "No place for {unit}: all {pool.warm_keep_max} are held by pinned tools.",
        "Unpin one (`pxctl unpin TOOL`), or raise tools.warm_keep_max.",
    ),
    Refusal.FAILING: (
        StartFailedError,
        "{unit} failed to start; the next try is due in {after} s, later than the request can wait.",
        "See `pxctl why {unit}`.",
    ),
    Refusal.STOPPED: (CancelledRunError, "{unit} was stopped while the request waited.", "Ask again."),
    Refusal.REMOVED: (UnknownUnitError, "{unit} was removed while the request waited.", None),
    Refusal.CLOSING: (ShuttingDownError, "The daemon is stopping.", "Ask again once it runs."),
}


def refusal_error(refuse: Refuse, settings: ToolsSettings, last_failure: Mapping[str, Any] | None) -> PxError:
    """Return the error of a request that gets no instance; `retry_after_seconds` is a whole number."""
    unit, after = f"tool:{refuse.unit}", max(1, math.ceil(refuse.retry_after))
    kind, said, hint = _REFUSED[refuse.refusal]
    said, hint = said.format(unit=unit, pool=settings, after=after), hint and hint.format(unit=unit)
    extra: dict[str, Any] = {}
    if kind in (OverloadedError, TimedOutError, StartFailedError):
        extra["retry_after_seconds"] = after
    if refuse.refusal is Refusal.FAILING and last_failure:
        said, hint = f"{said} Last: {last_failure.get('detail')}", last_failure.get("hint") or hint
        extra |= {key: last_failure[key] for key in _EVIDENCE if key in last_failure}
    return kind(said, hint=hint, unit=unit, **extra)
