"""With what, and how, ipykernel is installed: uv where there is one, else pip; and the same as a line for people.

Nothing is installed here: plans say what is to be run, `building` runs it.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.kernels.choosing.building import part_of

if TYPE_CHECKING:
    from supervisord_py.kernels.choosing.probe import Interpreter

REQUIREMENT = "ipykernel>=6.29,<8"
"""Kernels that we are tested with; 6.29 is the last one for Python 3.8."""
PACKAGE = "ipykernel"
_PLAIN = ("--no-input", "--disable-pip-version-check")
INSTALLER_SETTINGS = ("UV_", "PIP_", "NETRC")
"""A person's own settings of the installers (indexes, caches, certificates) pass to a build, not to kernels."""


@dataclass(frozen=True, slots=True)
class Installers:
    """What this daemon can install with.

    Attributes:
        python: The daemon's own interpreter: makes virtual environments.
        pip: The daemon's interpreter has a pip, one that can install for other interpreters.
        uv: Path of uv; None where there is none.
    """

    python: str
    pip: bool = False
    uv: str | None = None


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Something to be made.

    Attributes:
        target: Where it will be.
        what: In words for people.
        name: For the unit of the builders.
        tool: What it is made with, for people.
        steps: The commands; `{place}` is replaced by where it is made.
        by_hand: The command that a person can run instead.
        in_place: It is made where it will be, because it knows its own path.
        proof: What must be there in it.
    """

    target: Path
    what: str
    name: str
    tool: str
    steps: tuple[tuple[str, ...], ...]
    by_hand: str
    in_place: bool = False
    proof: str = ""

    def commands(self, place: str) -> tuple[tuple[str, ...], ...]:
        """Return the commands with the place put in."""
        return tuple(tuple(each.replace("{place}", place) for each in step) for step in self.steps)

    def is_complete(self) -> bool:
        """Say whether it is there, whole. File I/O."""
        marked = self.in_place and os.path.lexists(part_of(self.target))
        return not marked and os.path.exists(self.target / self.proof)


def find_installers(path: str) -> Installers:
    """Return what there is to install with, uv looked for beside the daemon's interpreter and on `path`. File I/O."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv", path=path)
    return Installers(sys.executable, pip=importlib.util.find_spec("pip") is not None, uv=uv)


def overlay_plan(interpreter: Interpreter, installers: Installers) -> BuildPlan | None:
    """Return how the overlay of an interpreter is built; None where there is nothing to build it with."""
    python = interpreter.executable
    start: tuple[str, ...]
    if installers.uv is not None:
        tool, start = "uv", (installers.uv, "pip", "install", "--python", python, "--compile-bytecode")
    elif interpreter.pip:
        tool, start = "its own pip", (python, "-m", "pip", "install", *_PLAIN)
    elif installers.pip:
        tool, start = "the daemon's pip", (installers.python, "-m", "pip", "--python", python, "install", *_PLAIN)
    else:
        return None
    target = Path(interpreter.overlay)
    return BuildPlan(
        target=target,
        what=f"an overlay with ipykernel for {python}",
        name=f"overlay-{target.name}",
        tool=tool,
        steps=((*start, "--target", "{place}", REQUIREMENT),),
        by_hand=add_ipykernel(interpreter, installers),
        proof=PACKAGE,
    )


def managed_plan(root: Path, installers: Installers) -> BuildPlan:
    """Return how the managed environment is built."""
    python = f"{root}/bin/python"
    if installers.uv is not None:
        uv = installers.uv
        steps: tuple[tuple[str, ...], ...] = (
            (uv, "venv", "--seed", "--python", installers.python, "{place}"),
            (uv, "pip", "install", "--compile-bytecode", "--python", python, REQUIREMENT),
        )
    else:
        steps = (
            (installers.python, "-m", "venv", "{place}"),
            (python, "-m", "pip", "install", *_PLAIN, REQUIREMENT),
        )
    by_hand = " && ".join(shlex.join(step) for step in steps).replace("'{place}'", shlex.quote(str(root)))
    return BuildPlan(
        target=root,
        what="the managed environment",
        name="managed",
        tool="uv" if installers.uv is not None else "venv and pip",
        steps=steps,
        by_hand=by_hand,
        in_place=True,
        proof="bin/python",
    )


def add_ipykernel(interpreter: Interpreter, installers: Installers) -> str:
    """Return the exact command that gives an interpreter its own ipykernel."""
    python = interpreter.executable
    if interpreter.pip:
        return shlex.join((python, "-m", "pip", "install", PACKAGE))
    if installers.uv is not None:
        return shlex.join((installers.uv, "pip", "install", "--python", python, PACKAGE))
    if installers.pip:
        return shlex.join((installers.python, "-m", "pip", "--python", python, "install", PACKAGE))
    return f"{shlex.join((python, '-m', 'ensurepip'))} && {shlex.join((python, '-m', 'pip', 'install', PACKAGE))}"
