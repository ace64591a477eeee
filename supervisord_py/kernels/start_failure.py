"""Why a kernel did not come up, in words: what its launcher said, how it ended, the end of its log. Pure."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError, PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.kernel_endings import how_it_ended, last_lines
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.kernel_endings import KernelEnd

SAID = "px-launch: "
_TAIL_LINES_SHOWN = 1


def early_exit(launch: Launch, end: KernelEnd) -> PxError:
    """Return the error of a start whose process ended before it answered."""
    said = launcher_said(end.tail)
    facts = {**end.facts(), "interpreter": launch.interpreter, "kernelspec": launch.kernelspec}
    if str(said.get("error")) in _KINDS:
        return _as_it_said(launch, said, facts)
    words = last_lines(end.tail, _TAIL_LINES_SHOWN).strip()[:300]
    return StartFailedError(
        f"{_unit(launch)} {how_it_ended(end)} before it was ready: {words or 'it wrote nothing to stderr'}",
        hint=f"see `pxctl logs {_unit(launch)}`",
        unit=_unit(launch),
        **facts,
    )


def not_ready(launch: Launch, seconds: float, seen: str, tail: str) -> PxError:
    """Return the error of a start that lives but did not answer in time.

    Args:
        launch: What was started.
        seconds: How long it had.
        seen: What was heard of it, as a clause.
        tail: The end of its stderr.
    """
    return ReadinessTimeoutError(
        f"{_unit(launch)} was not ready within {seconds:.1f} s: {seen}",
        hint=f"give the call more time (`--timeout`), or see `pxctl logs {_unit(launch)}`",
        unit=_unit(launch),
        reason=Reason.READINESS_TIMEOUT.value,
        interpreter=launch.interpreter,
        kernelspec=launch.kernelspec,
        stderr_tail=tail,
    )


def no_place(launch: Launch, error: OSError) -> PxError:
    """Return the error of a start whose run folder could not be made."""
    return StartFailedError(
        f"{_unit(launch)} was not started: its connection file cannot be written: {error}",
        hint="see `pxctl doctor`",
        unit=_unit(launch),
        reason=Reason.SPAWN_FAILED.value,
        stage="connection_file",
        errno=error.errno,
    )


def launcher_said(tail: str) -> dict[str, Any]:
    """Return the last word of our launcher in the end of a kernel's stderr; {} where it said nothing."""
    for line in reversed(tail.splitlines()):
        if line.startswith(SAID):
            try:
                said = json.loads(line.removeprefix(SAID))
            except ValueError:
                return {}
            return said if isinstance(said, dict) else {}
    return {}


def _unit(launch: Launch) -> str:
    return f"kernel:{launch.session_id}"


_PIP = "run `{python} -m pip install ipykernel`"
_KINDS = {
    "ipykernel": ("{interpreter} (Python {version}) cannot import ipykernel: {detail}", _PIP),
    "overlay": ("the overlay {path} does not serve: {detail}", _PIP + ", or remove {path} to have it built anew"),
    "module": ("module {where}: {detail}", "correct {where}, or move the file away"),
    "old_python": ("{interpreter}: {detail}", "name another interpreter: `pxctl kernel start --python PATH`"),
    "usage": ("the launcher refused its options: {detail}", "daemon and launcher differ: `pxctl daemon restart`"),
}
"""What the launcher may say: the sentence and the hint."""


def _as_it_said(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    kind, line = str(said["error"]), said.get("line")
    told: dict[str, Any] = dict.fromkeys(("version", "detail", "path", "file")) | said
    told |= {"interpreter": launch.interpreter, "python": shlex.quote(str(launch.interpreter))}
    told["where"] = f"{told['file']}:{line}" if isinstance(line, int) else str(told["file"])
    what, hint = (text.format(**told) for text in _KINDS[kind])
    if kind == "module":
        facts = {**facts, "file": said.get("file"), "line": line}
    error = ConfigError if kind == "module" else StartFailedError
    return error(f"{_unit(launch)} was not started: {what}", hint=hint, unit=_unit(launch), **facts)
