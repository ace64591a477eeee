"""The words of a validation: a check has a status, a report is as bad as its worst check."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

NAMES = (
    "folder_structure",
    "tool_json_parses",
    "schemas_coherent",
    "pyproject_ok",
    "venv_functional",
    "tool_spawns",
    "schema_matches_disk",
    "sample_input_run",
    "output_conforms",
    "streaming_check",
    "clean_shutdown",
    "reference_fixtures_match",
)
"""The twelve checks in their order."""


class Status(StrEnum):
    """How a check came out."""

    PASS = "pass"  # noqa: S105 - the word of the report, no password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a line for people, and details of several lines where there are any."""

    name: str
    status: Status
    message: str
    details: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a validation found. `sample_inputs` and `sample_output` are JSON values, None where it came not so far."""

    tool_id: str
    tool_path: Path
    timestamp: datetime
    checks: tuple[Check, ...]
    sample_inputs: Any = None
    sample_output: Any = None
    spawn_log: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def overall(self) -> Status:
        """`fail` if any check failed, else `warn` if any warned, else `pass`."""
        found = {check.status for check in self.checks}
        return next((status for status in (Status.FAIL, Status.WARN) if status in found), Status.PASS)

    def document(self) -> dict[str, Any]:
        """Return the JSON document, schema `px.validation/1`."""
        return {
            "schema": "px.validation/1",
            "tool_id": self.tool_id,
            "tool_path": str(self.tool_path),
            "timestamp": self.timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "overall": self.overall.value,
            "checks": [
                {"name": each.name, "status": each.status.value, "message": each.message, "details": each.details}
                for each in self.checks
            ],
            "sample_inputs": self.sample_inputs,
            "sample_output": self.sample_output,
            "spawn_log": self.spawn_log,
            "warnings": list(self.warnings),
        }


def completed(checks: list[Check], why: str) -> tuple[Check, ...]:
    """Return all twelve checks in their order; the ones that are not there were skipped because of `why`."""
    known = {check.name: check for check in checks}
    return tuple(known.get(name, Check(name, Status.SKIP, why)) for name in NAMES)
