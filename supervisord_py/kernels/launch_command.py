"""The command line of a kernel: our launcher in the project's own interpreter, or the kernelspec's argv. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError
from supervisord_py.kernels import inside

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Launch

LAUNCHER = Path(inside.__path__[0]) / "launch.py"
CONNECTION_FILE = "{connection_file}"
"""Stands for the path in the argv of a kernelspec."""


def command(launch: Launch, connection_file: str) -> tuple[str, ...]:
    """Return program and arguments of a kernel.

    Raises:
        ConfigError: The kernelspec has no argv, or one that names no connection file.
    """
    if launch.interpreter is not None:
        return launcher_command(launch.interpreter, launch, connection_file)
    argv = launch.kernelspec_argv or ()
    if not any(CONNECTION_FILE in word for word in argv):
        raise ConfigError(
            f"kernelspec {launch.kernelspec!r} cannot be started: its argv has no {CONNECTION_FILE}",
            hint="correct its kernel.json (`jupyter kernelspec list` tells where it is)",
            unit=f"kernel:{launch.session_id}",
        )
    return (*(word.replace(CONNECTION_FILE, connection_file) for word in argv), *launch.arguments)


def launcher_command(interpreter: str, launch: Launch, connection_file: str) -> tuple[str, ...]:
    """Return the command line of our launcher; `connection_file` may be the placeholder of a kernelspec."""
    words = [interpreter, str(LAUNCHER), "-f", connection_file]
    if launch.overlay is not None:
        words += ["--px-overlay", launch.overlay]
    for folder in launch.modules:
        words += ["--px-modules", folder]
    return (*words, *launch.arguments)
