"""What is asked of this room, and what it answers: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisord_py.kernels.choosing.environment import NOTHING, Environment
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.choosing.explanation import Explanation

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
