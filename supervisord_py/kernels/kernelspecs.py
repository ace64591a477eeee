"""Jupyter's kernelspecs: which there are, and how one of them is run by us.

A kernelspec is run from its own argv, never through a provisioner, ours least of all: a gateway that started a kernel
by our provisioner would ask this daemon, which would ask the gateway. jupyter_client is imported at the first look,
in a thread: that takes longer than a cell.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.kernels import inside
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import Launch

NATIVE = "python3"
OUR_PROVISIONER = "supervisord-py"
LOCAL_PROVISIONER = "local-provisioner"
_BARE_PYTHON = re.compile(r"python3?")
_TEMPLATE = re.compile(r"\{(?:resource_dir|prefix)\}")
LAUNCHER = Path(inside.__path__[0]) / "launch.py"
CONNECTION_FILE = "{connection_file}"  # stands for the path in the argv of a kernelspec
_LAUNCHED = ("-m", "ipykernel_launcher", "-f", CONNECTION_FILE)
_DEFAULTS: Mapping[str, Any] = {
    "env": {},
    "interrupt_mode": "signal",
    "metadata": {},
    "kernel_protocol_version": "5.5",
    "resource_dir": "",
}


class Kernelspec(msgspec.Struct, frozen=True):
    """A kernelspec that can be run here; `file` is "" for the native one. `env` may hold secrets: not in repr."""

    name: str
    argv: tuple[str, ...]
    language: str
    interrupt_mode: str = "signal"
    env: Mapping[str, str] = {}
    file: str = ""

    def __repr__(self) -> str:
        return f"Kernelspec({self.name!r}, {self.argv!r}, {self.file!r})"

    @property
    def native(self) -> bool:
        """Whether it says no more than "some Python": then our order of candidates decides."""
        return self._by_our_launcher and _BARE_PYTHON.fullmatch(self.argv[0]) is not None

    @property
    def python(self) -> str | None:
        """The interpreter that it names, where our launcher can take the place of ipykernel's; else None."""
        return self.argv[0] if self._by_our_launcher and not self.native else None

    @property
    def _by_our_launcher(self) -> bool:
        rest = tuple(word for word in self.argv[1:] if not word.startswith("-X"))
        return self.language.lower() == "python" and rest == _LAUNCHED

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """Return what it sets, with `${NAME}` filled in from an environment as Jupyter does it."""
        return {name: Template(value).safe_substitute(around) for name, value in self.env.items()}


async def documents() -> dict[str, dict[str, Any]]:
    """Return all kernelspecs: `{name: {display_name, language, argv, env, interrupt_mode, metadata, resource_dir}}`.

    A broken one is left out; the native one is always there.
    """

    def read() -> dict[str, dict[str, Any]]:
        native = {"argv": ["python3", *_LAUNCHED], "display_name": "Python 3", "language": "python"}
        found = {NATIVE: {**_DEFAULTS, **native}}
        for name, folder in sorted(_folders().items()):
            with suppress(ConfigError):
                filled = {key: value for key, value in _read(name, folder).to_dict().items() if value}
                found[name] = {**_DEFAULTS, "display_name": name, "language": "", **filled, "resource_dir": folder}
        return found

    return await asyncio.to_thread(read)


async def find_kernelspec(name: str, backend: BackendName, path: str) -> Kernelspec:
    """Return the kernelspec of a name, ready to be run by a backend; its program is looked for on `path`.

    InvalidInputError: none has that name, `nearest` and `kernelspecs` say which there are; ConfigError: its file is
    broken, its program is not there, or that backend must not run it.
    """
    return await asyncio.to_thread(_find, name, backend, path)


def _find(name: str, backend: BackendName, path: str) -> Kernelspec:
    folders, wanted = _folders(), name.lower()
    if wanted not in folders:
        if wanted == NATIVE:
            return Kernelspec(NATIVE, ("python3", *_LAUNCHED), "python")
        names = sorted({NATIVE, *folders})
        near = next(iter(difflib.get_close_matches(wanted, names, n=1)), None)
        meant = f"; did you mean {near}?" if near else "."
        message = f"there is no kernelspec {name[:80]!r}{meant} There are: {', '.join(names)}."
        hint = "`jupyter kernelspec list` shows where they are looked for."
        errors = [{"pointer": "/kernelspec", "message": message}]
        raise InvalidInputError(message, hint=hint, errors=errors, nearest=near, kernelspecs=names)
    folder = folders[wanted]
    said = _read(wanted, folder)
    file = str(Path(folder, "kernel.json"))
    known = {"{resource_dir}": folder, "{prefix}": sys.prefix}  # the connection file is put in by the start
    argv = tuple(_TEMPLATE.sub(lambda found: known[found[0]], word) for word in said.argv)
    stanza = said.metadata.get("kernel_provisioner")
    provisioner = (isinstance(stanza, dict) and stanza.get("provisioner_name")) or LOCAL_PROVISIONER
    is_direct = backend is BackendName.DIRECT
    if provisioner != LOCAL_PROVISIONER and (provisioner == OUR_PROVISIONER) is not is_direct:
        other = BackendName.GATEWAY_LOCAL if is_direct else BackendName.DIRECT
        why = "cannot do that" if is_direct else "would ask this daemon, which would ask it again, without end"
        raise ConfigError(
            f"the kernelspec {wanted} ({file}) starts its kernels by the provisioner {provisioner}: {backend} {why}",
            hint=f"use --backend {other}, or another kernelspec",
            kernelspec=wanted,
        )
    spec = Kernelspec(wanted, argv, said.language, said.interrupt_mode, said.env, file)
    if spec.native:
        return spec
    program = shutil.which(argv[0], path=path)
    if _BARE_PYTHON.fullmatch(argv[0]):  # a mere "python" is that of the environment it was installed in
        prefix = file.removesuffix(f"/share/jupyter/kernels/{wanted}/kernel.json")
        program = shutil.which(f"{prefix}/bin/{argv[0]}") or program
    if program is None:
        raise _broken(wanted, file, f"its program {argv[0]} is not there or cannot be executed")
    return msgspec.structs.replace(spec, argv=(program, *argv[1:]))


def _folders() -> dict[str, str]:
    """Return name → folder of all kernelspecs, without the one that Jupyter makes up for its own interpreter."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_core.paths import jupyter_path

    manager = KernelSpecManager(kernel_dirs=jupyter_path("kernels"), ensure_native_kernel=False)
    found: dict[str, str] = manager.find_kernel_specs()
    return found


def _read(name: str, folder: str) -> Any:
    """Return Jupyter's `KernelSpec` of a folder; raise ConfigError where it is broken."""
    from jupyter_client.kernelspec import KernelSpec
    from traitlets import TraitError

    file = Path(folder, "kernel.json")
    try:  # without members that it does not know: traitlets will refuse them one day
        members = {k: v for k, v in dict(json.loads(file.read_text("utf-8"))).items() if k in KernelSpec.class_traits()}
        said = KernelSpec(resource_dir=folder, **members)
    except (OSError, ValueError, TypeError, TraitError) as error:
        raise _broken(name, str(file), f"cannot be read: {error}") from error
    if not said.argv or not all(isinstance(word, str) for word in (*said.argv, *said.env.values())):
        raise _broken(name, str(file), "it must have `argv`, a list of texts; `env` maps names to texts")
    return said


def _broken(name: str, file: str, why: str) -> ConfigError:
    detail, hint = f"the kernelspec {name} cannot be used: {file}: {why}", f"mend {file}, or install that kernel again"
    return ConfigError(detail, hint=hint, kernelspec=name, file=file)


# -- command lines -----------------------------------------------------------------------------------------------------


def command(launch: Launch, connection_file: str) -> tuple[str, ...]:
    """Return program and arguments of a kernel.

    Raises ConfigError: The kernelspec has no argv, or one that names no connection file.
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
