"""Failures in words: what happened to an instance, the evidence, and the one next step. No I/O.

Law: a limit is named only where its enforcer said so (a verdict, SIGXCPU under our own RLIMIT_CPU,
a timer of ours). What is merely likely from stderr is called suspected.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from supervisord_py import errors
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import PxError
from supervisord_py.process.instance import End, signal_name
from supervisord_py.process.model import Reason, StopReport
from supervisord_py.process.pool import Refusal, Refuse
from supervisord_py.tools.causes import CauseKind, find_cause, hint_of, missing_program_step
from supervisord_py.tools.manifest import MEBIBYTE, ToolSpec

_LIMIT_WORDS = {
    Reason.MEMORY_LIMIT: "memory", Reason.OOM_KILL: "memory", Reason.CPU_LIMIT: "cpu",
    Reason.RUNTIME_LIMIT: "runtime",
}  # fmt: skip


_SHOWN = 300  # characters of a cause, or of an answer


def plain_port_hint(spec: ToolSpec) -> str:
    return (
        f'Set "listen": "port" in {spec.settings_file}: the program then binds a free port itself.'
    )


def hint_for(spec: ToolSpec, stderr_tail: str) -> str | None:
    """Return the next step that stderr suggests, or None."""
    cause = find_cause(stderr_tail, str(spec.folder))
    return None if cause is None else hint_of(cause, spec)


def how_it_ended(ended: End) -> str:
    """Say it as a verb phrase: 'exited with code 3', 'was killed by SIGSEGV'."""
    if ended.signal is None:
        return f"exited with code {ended.code}" if ended.code is not None else "ended"
    verb = f"was killed by {signal_name(ended.signal)}"
    if ended.signal == signal.SIGKILL and ended.reason is Reason.SIGNAL:
        return f"{verb} (not by pxd; possibly out of memory)"
    return verb


def _look(spec: ToolSpec) -> str:
    return f"See `pxctl logs {spec.unit}` and `pxctl tools debug {spec.name}`."


def is_the_tools(error: BaseException) -> bool:
    """Say whether a run failed through its tool.

    A start that failed is no run: it has an event of its own.
    """
    is_answer = isinstance(error, errors.ToolFailedError) and error.status >= 500
    return is_answer or isinstance(error, errors.ResourceLimitError | errors.TimedOutError)


def is_refusal(status: int) -> bool:
    """Return whether a tool's answer refuses a run, but not because of the input (422).

    That may be right (it knows no such record) or a fault of the tool (it has no POST /run).
    """
    return 400 <= status < 500 and status != 422


def early_exit(spec: ToolSpec, ended: End) -> PxError:
    if ended.reason in _LIMIT_WORDS:
        return limit_exceeded(spec, ended)
    detail, hint = (
        f"{spec.unit} {how_it_ended(ended)} before it was "
        f"ready{_last_words(spec, ended.stderr_tail)}",
        _look(spec),
    )
    cause = find_cause(ended.stderr_tail, str(spec.folder))
    if cause is not None:
        hint = hint_of(cause, spec) or hint
    elif ended.code == 0:
        hint = _stay_step(spec)
    facts = ended.facts()
    if cause is not None and cause.kind is CauseKind.MISSING_PROGRAM:
        facts["program"] = cause.subject
    return errors.StartFailedError(detail, hint=hint, unit=spec.unit, **facts)


_DETACHING = frozenset(
    {"--daemon", "--daemonize", "--detach", "--background", "--fork", "-D", "-d", "&"}
)
"""Arguments with which servers go into the background."""


def _stay_step(spec: ToolSpec) -> str:
    """Return the next step for a program that ended with 0 before it served."""
    if not spec.command:
        guard = '`if __name__ == "__main__":`'
        return f"Start the server at the end of {spec.entrypoint}, under {guard}, and stay in it."
    detaching = [
        word for argument in spec.command for word in argument.split() if word in _DETACHING
    ]
    if detaching:
        return f"Leave {detaching[0]} out of `command`: the server must stay in the foreground."
    return (
        "Let `command` stay in the foreground until it is stopped: without an option that makes it "
        "a daemon,"
        " and with one that keeps it from ending at the end of standard input, which is empty."
    )


def exec_step(spec: ToolSpec, facts: Mapping[str, Any]) -> str | None:
    """Return the next step for a program of a tool that was not executed, where its folder tells a
    better one.

    `facts` are those of the refusal: `program` as it was looked up.
    """
    program = str(facts.get("program") or "")
    return missing_program_step(program, spec) if program else None


def _last_words(spec: ToolSpec, stderr_tail: str) -> str:
    """Return the end of a sentence: the cause that stderr tells, else its last line."""
    cause = find_cause(stderr_tail, str(spec.folder))
    if cause is not None:
        return f": {str(cause)[:_SHOWN]}"
    lines = [line for line in stderr_tail.splitlines() if line.strip()]
    return f": {lines[-1].strip()[:_SHOWN]}" if lines else "; it wrote nothing to stderr."


def not_ready(
    spec: ToolSpec, port: int, listening: Sequence[tuple[str, int]], answer: int, stderr_tail: str
) -> PxError:
    """`listening`: where its tree listens; `answer`: the last one to `/healthz`, 0 for none."""
    elsewhere = [show_place(place) for place in listening if not _is_reached(place, port)]
    why, hint = "it listens on no port", _look(spec)
    if elsewhere:
        why = f"it listens on {', '.join(elsewhere)} instead of 127.0.0.1:{port}"
        hint = plain_port_hint(spec) if spec.listen == "handover" else _bind_step(spec)
    elif answer:
        why = f"GET /healthz answered {answer}"
        hint = "Answer 200 on GET /healthz once the tool can work."
    elif listening:
        why = f"it holds port {port} but nobody answers there"
    return errors.ReadinessTimeoutError(
        f"{spec.unit} was not ready within {spec.start_timeout_seconds:g} s: "
        f"{why}{_last_words(spec, stderr_tail)}",
        hint=hint_for(spec, stderr_tail) or hint,
        unit=spec.unit,
        reason=Reason.READINESS_TIMEOUT.value,
        stderr_tail=stderr_tail,
    )


def show_place(place: tuple[str, int]) -> str:
    """Return an address and port as in a URL: an address of IPv6 has brackets."""
    address, port = place
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _is_reached(place: tuple[str, int], port: int) -> bool:
    """Say whether a connection to 127.0.0.1:port arrives at a place, as far as its address tells.

    `::` may take IPv4 as well; one that is asked about did not answer, so it does not.
    """
    address, number = place
    return number == port and ":" not in address.removeprefix("::ffff:")


def _bind_step(spec: ToolSpec) -> str:
    if spec.command:
        return "Let `command` bind 127.0.0.1 on the port that {port} stands for."
    return f"Let {spec.entrypoint} bind 127.0.0.1 on the port that `--port` gives."


def not_bound(
    spec: ToolSpec, port: int, listening: Sequence[tuple[str, int]], stderr_tail: str
) -> errors.StartFailedError:
    """Describe a start with the handed-over socket that the program does not take; `listening`:
    where its tree does.
    """
    elsewhere = ", ".join(show_place(place) for place in listening if not _is_reached(place, port))
    why = f"it listens on {elsewhere}" if elsewhere else "it has started other processes"
    detail = f"{spec.unit} did not bind the socket of port {port} that was handed over: {why}"
    return errors.StartFailedError(
        f"{detail}{_last_words(spec, stderr_tail)}",
        hint=plain_port_hint(spec),
        unit=spec.unit,
        reason=Reason.EARLY_EXIT.value,
        stderr_tail=stderr_tail,
    )


def ipv6_alone(
    spec: ToolSpec, port: int, listening: Sequence[tuple[str, int]], stderr_tail: str
) -> errors.StartFailedError:
    """Describe a start whose program listens at its port, but not for IPv4; `listening`: where
    its tree does.
    """
    places = ", ".join(show_place(place) for place in listening if place[1] == port)
    detail = f"{spec.unit} is not ready: it listens on {places}, and not on 127.0.0.1:{port}"
    return errors.StartFailedError(
        f"{detail}{_last_words(spec, stderr_tail)}",
        hint="Let it bind 127.0.0.1, or both (`::` with IPV6_V6ONLY off).",
        unit=spec.unit,
        reason=Reason.EARLY_EXIT.value,
        stderr_tail=stderr_tail,
    )


def port_taken(spec: ToolSpec, port: int) -> errors.StartFailedError:
    text = f"{spec.unit}: the listener on port {port} is not the tool's own."
    hint = "See which program takes ports on this machine (`ss -ltnp`), then ask again."
    return errors.StartFailedError(text, hint=hint, unit=spec.unit, reason=Reason.EARLY_EXIT.value)


def late(
    spec: ToolSpec, timeout_seconds: float, *, beside: int, silent_since: float | None = None
) -> errors.TimedOutError:
    """Describe a run that was given up at its caller's deadline; `beside`: as in `limit_exceeded`.

    `silent_since`: the Unix seconds since which the tool has answered nothing at all, None where it
    has.
    """
    detail = f"{spec.unit} did not answer within the {timeout_seconds:g} s that the request allowed"
    if silent_since is not None:
        detail = f"{detail}: it is unresponsive, and {how_silent(silent_since)}."
        return errors.TimedOutError(
            detail, hint=f"Run `pxctl restart {spec.name}`.", unit=spec.unit
        )
    detail += "."
    return errors.TimedOutError(
        detail, hint="Ask with a longer --timeout." + _if_serial(beside), unit=spec.unit
    )


def _if_serial(beside: int) -> str:
    if not beside:
        return ""
    runs = "another run" if beside == 1 else f"{beside} other runs"
    return (
        f" It was sent beside {runs}: if the server works on one request at a time, set"
        ' "concurrency": 1.'
    )


def limit_exceeded(spec: ToolSpec, ended: End, *, beside: int = 0) -> errors.ResourceLimitError:
    """Describe an end by a limit; `limit` is memory, runtime or cpu.

    `beside`: how many other runs the tool worked on when the one was sent that was over its time.
    """
    word, verdict = _LIMIT_WORDS[ended.reason], ended.record and ended.record.verdict
    detail = f"the run took longer than {spec.max_runtime_seconds:g} s"
    hint = "Raise max_runtime_seconds, or ask for less work at a time."
    if word == "memory":
        known = (
            (verdict.rss_bytes, verdict.limit_bytes or spec.max_rss_bytes)
            if verdict
            else (None, spec.max_rss_bytes)
        )
        used, limit = (
            f"{each / MEBIBYTE:.0f} MiB" if each else "an unknown amount" for each in known
        )
        detail, hint = (
            f"{used} resident, {limit} allowed",
            "Raise max_memory_mb, or let the tool use less.",
        )
    elif word == "cpu":
        detail = f"{spec.limits.cpu_seconds} s of CPU time were used up"
        hint = "Raise limits.cpu_seconds; it counts over the whole life of a process."
    else:
        hint += _if_serial(beside)
    said = f"ResourceLimitExceeded: {word}: {spec.unit}: {detail}."
    return errors.ResourceLimitError(said, hint=hint, unit=spec.unit, **ended.facts(), limit=word)


def stopped_during_run(spec: ToolSpec, reason: Reason) -> PxError:
    unit, said, hint = spec.unit, f"{spec.unit} was stopped during the run", "Ask again."
    if reason is Reason.SHUTDOWN:
        return errors.ShuttingDownError(
            f"{said}: the daemon stops.", hint="Ask again once it runs.", unit=unit
        )
    if reason is Reason.WATCHDOG:
        said = f"{said}: it had stopped answering."
        return errors.InterruptedRunError(said, hint=hint, unit=unit, reason=reason.value)
    if reason is Reason.RUNTIME_LIMIT:
        said = f"{said}, because another run on it broke a limit; this run is collateral."
        return errors.InterruptedRunError(
            said, hint=hint, unit=unit, collateral=True, reason=reason.value
        )
    return errors.CancelledRunError(f"{said}.", hint=hint, unit=unit, reason=reason.value)


def cut_off(spec: ToolSpec) -> errors.InterruptedRunError:
    said = "The control plane is being replaced; the tool itself goes on."
    return errors.InterruptedRunError(said, hint="Ask again.", unit=spec.unit)


def how_silent(since: float) -> str:
    """Return the verb phrase of a tool that has answered nothing since a moment in Unix seconds."""
    moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"has answered neither a call nor GET /healthz since {moment}"


def unresponsive(spec: ToolSpec, since: float) -> errors.TimedOutError:
    """Describe a tool that runs, but has answered nothing since a moment in Unix seconds."""
    text = f"{spec.unit} is unresponsive: it runs, but {how_silent(since)}."
    return errors.TimedOutError(text, hint=f"Run `pxctl restart {spec.name}`.", unit=spec.unit)


def survived(unit: str, report: StopReport) -> errors.SurvivorsError:
    """Describe a stop that left something; `survivors` lists pid, name, start time."""
    names = ", ".join(f"{each.name} ({each.pid})" for each in report.survivors)
    hint = (
        "It is stopped again every few seconds; a process in uninterruptible sleep ends with its "
        "I/O."
    )
    left = [msgspec.to_builtins(each) for each in report.survivors]
    return errors.SurvivorsError(
        f"Survived the stop: {names}.", hint=hint, unit=unit, survivors=left
    )


def died_during_run(spec: ToolSpec, ended: End, error: PxError | None = None) -> PxError:
    """Describe a run whose instance ended under it; `error` is why nothing more can be known."""
    if isinstance(error, errors.KeeperLostError):
        return error.fresh()
    if ended.reason in _LIMIT_WORDS:
        return limit_exceeded(spec, ended)
    if ended.reason in {Reason.SHUTDOWN, Reason.STOPPED, Reason.REPLACED, Reason.WATCHDOG}:
        return stopped_during_run(spec, ended.reason)
    text = f"{spec.unit} {how_it_ended(ended)} during the run{_last_words(spec, ended.stderr_tail)}"
    hint = hint_for(spec, ended.stderr_tail) or f"{_look(spec)} The next request starts it anew."
    return errors.ToolFailedError(text, hint=hint, unit=spec.unit, **ended.facts())


def bad_answer(
    spec: ToolSpec,
    what: str,
    stderr_tail: str,
    *,
    words: str = "",
    is_ours: bool = True,
    **more: Any,
) -> errors.ToolFailedError:
    """Describe an answer that is none: `what` the tool did, and why, as far as stderr tells the
    cause.

    `words`: what it said itself, where stderr tells nothing. `is_ours`: the tool blames itself (a
    5xx, a connection that it broke off); where it refuses the input, what it wrote to stderr is no
    cause.
    """
    cause = find_cause(stderr_tail, str(spec.folder)) if is_ours else None
    if cause is not None:
        words = str(cause)
    detail = f"{spec.unit} {what}: {words[:_SHOWN]}" if words else f"{spec.unit} {what}."
    hint = hint_of(cause, spec) if cause is not None else None
    return errors.ToolFailedError(
        detail, hint=hint or _look(spec), unit=spec.unit, stderr_tail=stderr_tail, **more
    )


def redirect(spec: ToolSpec, what: str, stderr_tail: str) -> errors.ToolFailedError:
    """Describe a run that was answered by a redirect that is not followed."""
    error = bad_answer(spec, what, stderr_tail, is_ours=False)
    error.hint = (
        "Let it answer that request itself; some frameworks redirect /run to /run/, or back."
    )
    return error


def encoding(spec: ToolSpec, what: str, stderr_tail: str) -> errors.ToolFailedError:
    """Describe an answer with a Content-Encoding that cannot be decoded."""
    error = bad_answer(spec, f"gave an answer that {what}", stderr_tail, is_ours=False)
    error.hint = (
        "Let it send its answers without an encoding, which pxd does not ask for, or with gzip."
    )
    return error


_EVIDENCE = ("reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit")
_MORE = "Ask again later, or raise tools.{} or the tool's concurrency."
_AGAIN = "Ask again."
_REFUSED: dict[Refusal, tuple[type[PxError], str, str | None]] = {
    Refusal.QUEUE_FULL: (
        errors.OverloadedError,
        "{unit} is busy, and its line is full.",
        _MORE.format("queue_max"),
    ),
    Refusal.DEADLINE: (
        errors.OverloadedError,
        "No place for {unit} came free in time.",
        _MORE.format("warm_keep_max"),
    ),
    Refusal.DEADLINE_STARTING: (
        errors.TimedOutError,
        "{unit} was still starting when the request's time was over; the start goes on.",
        _AGAIN,
    ),
    Refusal.ALL_PINNED: (
        errors.OverloadedError,
        "No place for {unit}: all {pool.warm_keep_max} are held by pinned tools.",
        "Unpin one (`pxctl unpin TOOL`), or raise tools.warm_keep_max.",
    ),
    Refusal.FAILING: (
        errors.StartFailedError,
        "{unit} failed to start; the next try is due in {after} s, later than the request "
        "can wait.",
        "See `pxctl why {unit}`.",
    ),
    Refusal.STOPPED: (
        errors.CancelledRunError,
        "{unit} was stopped while the request waited.",
        _AGAIN,
    ),
    Refusal.REMOVED: (
        errors.UnknownUnitError,
        "{unit} was removed while the request waited.",
        None,
    ),
    Refusal.CLOSING: (
        errors.ShuttingDownError,
        "The daemon is stopping.",
        "Ask again once it runs.",
    ),
}


def refusal_error(
    refuse: Refuse, settings: ToolsSettings, last_failure: Mapping[str, Any] | None
) -> PxError:
    """Return the error of a request that gets no instance; `retry_after_seconds` is a whole
    number.
    """
    unit, after = f"tool:{refuse.unit}", max(1, math.ceil(refuse.retry_after))
    kind, said, hint = _REFUSED[refuse.refusal]
    said, hint = said.format(unit=unit, pool=settings, after=after), hint and hint.format(unit=unit)
    extra: dict[str, Any] = {}
    if kind in {errors.OverloadedError, errors.TimedOutError, errors.StartFailedError}:
        extra["retry_after_seconds"] = after
    if refuse.refusal is Refusal.FAILING and last_failure:
        said, hint = f"{said} Last: {last_failure.get('detail')}", last_failure.get("hint") or hint
        extra |= {key: last_failure[key] for key in _EVIDENCE if key in last_failure}
    return kind(said, hint=hint, unit=unit, **extra)
