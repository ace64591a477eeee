"""What an interpreter is wanted for, what was chosen, and why this one and not another. Values, no I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.kernels.environment import NOTHING
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.environment import Filtered

BASH = "bash"
PYTHON = "python"
SPEC_PREFIX = "spec:"
"""Before the name of a kernelspec that is a session's interpreter."""


class ChooseRequest(msgspec.Struct, frozen=True):
    """For what an interpreter and an environment are wanted.

    Attributes:
        cwd: Absolute; None is the home directory.
        interpreter: A path (of a program, or of an environment), a name on PATH, or `managed`.
        kernelspec: A name; `python3` leaves the choice to us unless a kernelspec of that name says which.
        language: `python` or `bash`; a kernelspec has its own.
        extra: Environment of the session (Jupyter's), over everything else.
        environ: Of the caller: VIRTUAL_ENV, CONDA_PREFIX, PATH, PI_…; passes the same filter as the daemon's.
        deadline: Loop time.
    """

    cwd: str | None = None
    interpreter: str | None = None
    kernelspec: str | None = None
    backend: BackendName = BackendName.DIRECT
    language: str = PYTHON
    extra: Mapping[str, str] = NOTHING
    environ: Mapping[str, str] = NOTHING
    deadline: float | None = None

    def __repr__(self) -> str:
        return f"ChooseRequest({self.cwd!r}, {self.interpreter!r}, {self.kernelspec!r}, {self.backend})"


class Source(StrEnum):
    """Where a candidate comes from, in the words that people are shown."""

    REQUEST = "request"
    SETTING = "kernels.python"
    KERNELSPEC = "kernelspec"
    VIRTUAL_ENV = "VIRTUAL_ENV"
    CONDA_PREFIX = "CONDA_PREFIX"
    DOT_VENV = ".venv"
    VENV = "venv"
    MANAGED = "managed"
    PATH = "PATH"

    @property
    def decisive(self) -> bool:
        """Whether somebody named it: then nothing else is taken in its place."""
        return self in {Source.REQUEST, Source.SETTING, Source.KERNELSPEC}


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


class Attempt(msgspec.Struct, frozen=True):
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
        """Whether it is there, was looked at, and could not be taken."""
        return self.verdict not in {Verdict.TAKEN, Verdict.NOT_NEEDED, Verdict.MISSING, Verdict.NOT_BUILT}

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        return f"{self.path} ({self.source.value}) {self.detail or self.verdict.value}"


class Explanation(msgspec.Struct, frozen=True):
    """How a choice came about, or why there is none (`failure`). `attempts` are all candidates in their order."""

    cwd: str
    attempts: tuple[Attempt, ...] = ()
    interpreter: str | None = None
    kernelspec: str | None = None
    overlay: str | None = None
    environment: Filtered | None = None
    modules: tuple[str, ...] = ()
    failure: str | None = None

    def document(self) -> dict[str, Any]:
        """Return JSON values; of the environment names only."""
        found = self.environment
        return {
            "cwd": self.cwd,
            "kernelspec": self.kernelspec,
            "interpreter": self.interpreter,
            "overlay": self.overlay,
            "candidates": [
                {
                    "source": each.source.value,
                    "path": each.path,
                    "taken": each.verdict is Verdict.TAKEN,
                    "reason": each.verdict.value,
                    "version": each.version,
                    "detail": each.detail or None,
                    "remedy": each.remedy,
                }
                for each in self.attempts
            ],
            "environment": found
            and {
                "passed": sorted(found.env),
                "dropped": [{"name": name, "why": why.value} for name, why in found.dropped.items()],
            },
            "modules": list(self.modules),
            "failure": self.failure,
        }


class Choice(msgspec.Struct, frozen=True):
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
