"""What an interpreter is wanted for, what was chosen, and why this one and not another. Values, no I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.kernels.environment import NOTHING
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.environment import Filtered
    from supervisord_py.process.child_environment import Environment

BASH = "bash"
PYTHON = "python"
PROGRAMS = "kernel-"  # how the names of programs begin that are run for kernels
SPEC_PREFIX = "spec:"  # before the name of a kernelspec that is a session's interpreter


def shortened(text: str, most: int = 200) -> str:
    """Return what somebody sent as it is repeated to them: at most `most` characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]}… and {len(text) - most} characters more"


class ChooseRequest(msgspec.Struct, frozen=True):
    """For what an interpreter and an environment are wanted."""

    cwd: str | None = None  # absolute; None is the home directory
    interpreter: str | None = None  # a path (of a program, or of an environment), a name on PATH, or `managed`
    kernelspec: str | None = None  # `python3` leaves the choice to us unless one of that name says which
    backend: BackendName = BackendName.DIRECT
    language: str = PYTHON  # or `bash`; a kernelspec has its own
    extra: Mapping[str, str] = NOTHING  # of the session (Jupyter's), over everything else
    environ: Mapping[str, str] = NOTHING  # of the caller; passes the same filter as the daemon's
    deadline: float | None = None  # loop time

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


DECISIVE = frozenset({Source.REQUEST, Source.SETTING, Source.KERNELSPEC})
"""What somebody named: nothing else is taken in its place."""


class CandidateVerdict(StrEnum):
    """What came of a candidate. The words are machine-readable; `Attempt.detail` is for people."""

    TAKEN = "taken"
    MISSING = "missing"
    UNUSABLE = "unusable"
    NOT_NEEDED = "not_needed"


class Attempt(msgspec.Struct, frozen=True):
    """One candidate and what came of it."""

    source: Source
    path: str  # of the interpreter, or where it would be
    verdict: CandidateVerdict = msgspec.field(default=CandidateVerdict.NOT_NEEDED, name="reason")
    detail: str = "was not needed: an earlier one runs"  # a phrase that can follow its name
    version: str | None = None
    remedy: str | None = None  # the command that would make it usable
    overlay: str | None = None  # folder with ipykernel, where it has none itself

    @property
    def sentence(self) -> str:
        return f"{self.path} ({self.source.value}) {self.detail}"

    def document(self) -> dict[str, Any]:
        return {**msgspec.to_builtins(self), "taken": self.verdict is CandidateVerdict.TAKEN}


class Choice(msgspec.Struct, frozen=True):
    """Everything that a start needs to know about where and with what, and how it came about; or why there is none."""

    cwd: str  # real path
    key: str  # for `SessionKey.interpreter`
    backend: BackendName  # BASH for bash cells, else as asked for
    environment: Filtered  # complete; for an external gateway only what the session brings
    attempts: tuple[Attempt, ...] = ()  # all candidates in their order
    language: str = PYTHON  # `python`, `bash`, or that of the kernelspec
    interpreter: str | None = None  # Python for our launcher; the bash, for bash cells
    overlay: str | None = None  # folder with ipykernel to be appended to sys.path
    modules: tuple[str, ...] = ()  # folders that exist, the user's before the project's
    kernelspec: str | None = None  # one that was asked for, or is to be asked for at a gateway
    kernelspec_argv: tuple[str, ...] | None = None  # with `{connection_file}`; None where `interpreter` is to be run
    interrupt_mode: str = "signal"  # or `message`
    notices: tuple[str, ...] = ()  # for people
    failure: str | None = None  # why nothing can be started

    @property
    def env(self) -> Environment:
        return self.environment.env

    def document(self) -> dict[str, Any]:
        dropped = [{"name": name, "why": why.value} for name, why in self.environment.dropped.items()]
        return {
            "cwd": self.cwd,
            "kernelspec": self.kernelspec,
            "interpreter": self.interpreter,
            "overlay": self.overlay,
            "candidates": [each.document() for each in self.attempts],
            "environment": {"passed": sorted(self.env), "dropped": dropped},
            "modules": list(self.modules),
            "failure": self.failure,
        }
