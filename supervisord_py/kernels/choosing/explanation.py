"""Why this interpreter and not another, why this variable and not that one: frozen values, told by name. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisord_py.kernels.choosing.candidates import Source
    from supervisord_py.kernels.choosing.environment import Filtered

OLDEST = (3, 8)
"""Python versions below it run no kernel of ours."""


class Verdict(StrEnum):
    """What came of a candidate. The words are machine-readable; `Attempt.detail` is for people."""

    TAKEN = "taken"
    MISSING = "missing"
    NOT_EXECUTABLE = "not_executable"
    NOT_BUILT = "not_built"
    NOT_TRUSTED = "not_trusted"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    TOO_OLD = "too_old"
    NO_IPYKERNEL = "no_ipykernel"
    NOT_NEEDED = "not_needed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate and what came of it.

    Attributes:
        path: The interpreter, or where it would be.
        detail: A phrase that can follow "python of .venv": "is not there".
        version: As text, where it was asked and answered.
        remedy: The command that would make it usable, where there is one.
    """

    source: Source
    path: str
    verdict: Verdict
    detail: str = ""
    version: str | None = None
    remedy: str | None = None

    @property
    def passed_over(self) -> bool:
        """Whether it was looked at and could not be taken, although it is there."""
        return self.verdict not in {Verdict.TAKEN, Verdict.NOT_NEEDED, Verdict.MISSING, Verdict.NOT_BUILT}

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        return f"{self.path} ({self.source.value}) {self.detail or self.verdict.value}"

    def document(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "source": self.source.value,
            "path": self.path,
            "taken": self.verdict is Verdict.TAKEN,
            "reason": self.verdict.value,
            "version": self.version,
            "detail": self.detail or None,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a choice came about, or why there is none.

    Attributes:
        cwd: Real path.
        interpreter: Taken; None where there is none, or where another language needs none.
        attempts: All candidates in their order.
        environment: Of the kernel; None where it did not come to that.
        failure: Why there is no choice; None where there is one.
    """

    cwd: str
    attempts: tuple[Attempt, ...] = ()
    interpreter: str | None = None
    kernelspec: str | None = None
    overlay: str | None = None
    environment: Filtered | None = None
    modules: tuple[str, ...] = field(default=())
    failure: str | None = None

    def document(self) -> dict[str, Any]:
        """Return JSON values; of the environment names only."""
        filtered = self.environment
        return {
            "cwd": self.cwd,
            "kernelspec": self.kernelspec,
            "interpreter": self.interpreter,
            "overlay": self.overlay,
            "candidates": [attempt.document() for attempt in self.attempts],
            "environment": None
            if filtered is None
            else {
                "passed": list(filtered.passed),
                "dropped": [{"name": each.name, "why": each.why.value} for each in filtered.dropped],
            },
            "modules": list(self.modules),
            "failure": self.failure,
        }
