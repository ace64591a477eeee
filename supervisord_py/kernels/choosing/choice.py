"""What is asked of this room, what it answers, and why this interpreter and not another: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.choosing.environment import NOTHING
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.choosing.candidates import Source
    from supervisord_py.kernels.choosing.environment import Filtered

OLDEST = (3, 8)
"""Python versions below it run no kernel of ours."""
BASH = "bash"
PYTHON = "python"


@dataclass(frozen=True, slots=True)
class ChooseRequest:
    """For what an interpreter and an environment are wanted.

    Attributes:
        cwd: Absolute; None is the home directory.
        interpreter: A path (of a program, or of an environment), a name on PATH, or `managed`.
        kernelspec: A name; `python3` leaves the choice to us unless a kernelspec of that name says which.
        language: `python` or `bash`; a kernelspec has its own.
        extra: Environment of the session (Jupyter's), over everything else. Not in repr.
        environ: Of the caller: VIRTUAL_ENV, CONDA_PREFIX, PATH, PI_…; passes the same filter as the daemon's.
        deadline: Loop time.
    """

    cwd: str | None = None
    interpreter: str | None = None
    kernelspec: str | None = None
    backend: BackendName = BackendName.DIRECT
    language: str = PYTHON
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything that a start needs to know about where and with what.

    Attributes:
        cwd: Real path.
        key: For `SessionKey.interpreter`.
        backend: BASH for bash cells, else as asked for.
        language: `python`, `bash`, or that of the kernelspec.
        interpreter: Python for our launcher; None where there is none to be launched by us.
        env: Complete and filtered; its repr shows names only. For an external gateway only what the session brings.
        overlay: Folder with ipykernel to be appended to sys.path, or None.
        modules: Folders of modules that exist, the user's before the project's.
        kernelspec: Its name, where one was asked for or is to be asked for at a gateway.
        kernelspec_argv: What to run, with `{connection_file}`; None where `interpreter` is what to run.
        interrupt_mode: `signal` or `message`.
        shell: The bash, for bash cells.
        explanation: How it came about.
        notices: For people.
    """

    cwd: str
    key: str
    backend: BackendName
    language: str
    explanation: Explanation
    env: Environment = NOTHING
    interpreter: str | None = None
    overlay: str | None = None
    modules: tuple[str, ...] = ()
    kernelspec: str | None = None
    kernelspec_argv: tuple[str, ...] | None = None
    interrupt_mode: str = "signal"
    shell: str | None = None
    notices: tuple[str, ...] = ()


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
