"""Why a kernel did not come up, in words: what its launcher said, how it ended, the end of its log. Pure.

Law: the launcher's own word (one line `px-launch: {…}` on stderr) goes before the exit code, and each kind of trouble
has its one next step.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError, PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.kernel_endings import how_it_ended, last_lines
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.kernel_endings import KernelEnd

    Explain = Callable[[Launch, dict[str, Any], dict[str, Any]], PxError]

SAID = "px-launch: "
_TAIL_LINES_SHOWN = 1


def early_exit(launch: Launch, end: KernelEnd) -> PxError:
    """Return the error of a start whose process ended before it answered."""
    said = launcher_said(end.tail)
    facts = {**end.facts(), "interpreter": launch.interpreter, "kernelspec": launch.kernelspec}
    explain = _KINDS.get(str(said.get("error")))
    if explain is not None:
        return explain(launch, said, facts)
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


def _no_ipykernel(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    python = str(launch.interpreter)
    return StartFailedError(
        f"{_unit(launch)} was not started: {python} (Python {said.get('version')}) cannot import ipykernel: "
        f"{said.get('detail')}",
        hint=f"run `{shlex.quote(python)} -m pip install ipykernel`",
        unit=_unit(launch),
        **facts,
    )


def _bad_overlay(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    path = str(said.get("path"))
    return StartFailedError(
        f"{_unit(launch)} was not started: the overlay {path} does not serve: {said.get('detail')}",
        hint=f"run `{shlex.quote(str(launch.interpreter))} -m pip install ipykernel`, or remove {path} to have it "
        "built anew",
        unit=_unit(launch),
        **facts,
    )


def _bad_module(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    line = said.get("line")
    where = f"{said.get('file')}:{line}" if isinstance(line, int) else str(said.get("file"))
    return ConfigError(
        f"{_unit(launch)} was not started: module {where}: {said.get('detail')}",
        hint=f"correct {where}, or move the file away",
        unit=_unit(launch),
        file=said.get("file"),
        line=line,
        **facts,
    )


def _old_python(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    return StartFailedError(
        f"{_unit(launch)} was not started: {launch.interpreter}: {said.get('detail')}",
        hint="name another interpreter: `pxctl kernel start --python PATH`",
        unit=_unit(launch),
        **facts,
    )


def _usage(launch: Launch, said: dict[str, Any], facts: dict[str, Any]) -> PxError:
    return StartFailedError(
        f"{_unit(launch)} was not started: the launcher refused its options: {said.get('detail')}",
        hint="daemon and launcher differ: `pxctl daemon restart`",
        unit=_unit(launch),
        **facts,
    )


_KINDS: dict[str, Explain] = {
    "ipykernel": _no_ipykernel,
    "overlay": _bad_overlay,
    "module": _bad_module,
    "old_python": _old_python,
    "usage": _usage,
}
