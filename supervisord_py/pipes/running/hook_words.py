"""What a hook is told, as JSON and as variables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.process.child_environment import passed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.counting import Notice


def facts_of(execution: Execution, notice: Notice) -> dict[str, Any]:
    """Return what is told: JSON values."""
    return {
        "schema": "px.pipe-notice/1",
        "event": notice.kind.value,
        "pipe": execution.pipe_name,
        "failures": notice.failures,
        "execution": execution.id,
        "status": execution.status.value,
        "error_type": None if execution.error_type is None else execution.error_type.value,
        "error_message": execution.error_message,
        "output_dir": execution.output_dir,
    }


def variables_of(environ: Mapping[str, str], allowed: Sequence[str], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command: what is let through, and the facts as PX_… variables."""
    found = passed(environ, allowed)
    names = {"execution": "PX_EXECUTION_ID", "pipe": "PX_PIPE", "output_dir": "PX_OUTPUT_DIR", "event": "PX_EVENT"}
    for key, value in facts.items():
        if key != "schema":
            found[names.get(key, f"PX_{key.upper()}")] = "" if value is None else str(value)
    return found
