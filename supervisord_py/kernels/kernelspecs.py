"""Jupyter's kernelspecs: which there are, and how one of them is run by us.

A kernelspec is run from its own argv, never through a provisioner. jupyter_client is imported at
the first look, in a thread: that takes longer than a cell.
"""

from __future__ import annotations

import difflib
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.kernels import inside

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import Launch  # a front end's process has no need of it

NATIVE = "python3"
OUR_PROVISIONER = "supervisord-py"
LOCAL_PROVISIONER = "local-provisioner"
_BARE_PYTHON = re.compile(r"python3?")
LAUNCHER = Path(inside.__path__[0]) / "launch.py"
CONNECTION_FILE = "{connection_file}"  # stands for the path in the argv of a kernelspec
_LAUNCHED = ("-m", "ipykernel_launcher", "-f", CONNECTION_FILE)


class Kernelspec(msgspec.Struct, frozen=True):
    """A `kernel.json`, and which it is. `env` may hold secrets: not in repr."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    language: str = ""
    display_name: str = ""
    interrupt_mode: Literal["signal", "message"] = "signal"
    env: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    kernel_protocol_version: str = "5.5"
    name: str = ""
    resource_dir: str = ""  # its folder; "" for the native one

    def __repr__(self) -> str:
        return f"Kernelspec({self.name!r}, {self.argv!r}, {self.resource_dir!r})"

    @property
    def native(self) -> bool:
        """Whether it says no more than "some Python": then our order of candidates decides."""
        return self._by_our_launcher and _BARE_PYTHON.fullmatch(self.argv[0]) is not None

    @property
    def python(self) -> str | None:
        """The interpreter that it names, where our launcher can take the place of ipykernel's;
        else None.
        """
        return self.argv[0] if self._by_our_launcher and not self.native else None

    @property
    def _by_our_launcher(self) -> bool:
        rest = tuple(word for word in self.argv[1:] if not word.startswith("-X"))
        return self.language.lower() == "python" and rest == _LAUNCHED

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        return {name: Template(value).safe_substitute(around) for name, value in self.env.items()}


_NATIVE = Kernelspec(("python3", *_LAUNCHED), "python", "Python 3", name=NATIVE)


def documents() -> dict[str, dict[str, Any]]:
    """Return the members of each kernelspec, by name.

    A broken one is left out; the native one stays. Blocking.
    """
    found = {NATIVE: _NATIVE}
    for name, folder in sorted(_folders().items()):
        with suppress(ConfigError):
            found[name] = _read(name, folder)
    return {each.pop("name"): each for each in map(msgspec.structs.asdict, found.values())}


def find_kernelspec(name: str, path: str) -> Kernelspec:
    """Return the kernelspec of a name, ready to be run; its program is looked for on `path`.
    Blocking.

    InvalidInputError: none has that name; ConfigError: it is broken, or run by somebody else's
    provisioner.
    """
    folders, wanted = _folders(), name.lower()
    if wanted not in folders:
        if wanted == NATIVE:
            return _NATIVE
        raise unknown(name, sorted({NATIVE, *folders}))
    spec = _read(wanted, folders[wanted])
    stanza = spec.metadata.get("kernel_provisioner")
    provisioner = (isinstance(stanza, dict) and stanza.get("provisioner_name")) or LOCAL_PROVISIONER
    if provisioner not in (LOCAL_PROVISIONER, OUR_PROVISIONER):
        detail = (
            f"the kernelspec {wanted} ({spec.resource_dir}/kernel.json) starts kernels by the "
            "provisioner"
        )
        detail += f" {provisioner}: pxd runs none but those of this machine"
        raise ConfigError(detail, hint="name another kernelspec", kernelspec=wanted)
    if spec.native:
        return spec
    program = shutil.which(spec.argv[0], path=path)
    # a mere "python" is that of the environment it was installed in
    if _BARE_PYTHON.fullmatch(spec.argv[0]):
        prefix = spec.resource_dir.removesuffix(f"/share/jupyter/kernels/{wanted}")
        program = shutil.which(f"{prefix}/bin/{spec.argv[0]}") or program
    if program is None:
        raise _broken(
            wanted,
            spec.resource_dir,
            f"its program {spec.argv[0]} is not there or cannot be executed",
        )
    return msgspec.structs.replace(spec, argv=(program, *spec.argv[1:]))


def unknown(name: str, names: list[str], where: str = "") -> InvalidInputError:
    near = next(iter(difflib.get_close_matches(name.lower(), names, n=1)), None)
    meant = f"; did you mean {near}?" if near else "."
    message = (
        f"there is no kernelspec {name[:80]!r}{where}{meant} There are: "
        f"{', '.join(names) or 'none'}."
    )
    hint = "`jupyter kernelspec list` shows where they are looked for."
    if NATIVE in names:
        hint = f"Where its cells are Python, take that one: --kernelspec {NATIVE}. {hint}"
    return InvalidInputError.at("/kernelspec", message, hint, nearest=near, kernelspecs=names)


def _folders() -> dict[str, str]:
    """Return name → folder of all kernelspecs, without the one that Jupyter makes up for its own
    interpreter.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_core.paths import jupyter_path

    manager = KernelSpecManager(kernel_dirs=jupyter_path("kernels"), ensure_native_kernel=False)
    return dict(manager.find_kernel_specs())


def _read(name: str, folder: str) -> Kernelspec:
    try:
        spec = msgspec.json.decode(Path(folder, "kernel.json").read_bytes(), type=Kernelspec)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise _broken(name, folder, f"cannot be read: {error}") from error
    # The connection file is put in by the start.
    argv = tuple(
        word.replace("{resource_dir}", folder).replace("{prefix}", sys.prefix) for word in spec.argv
    )
    title = spec.display_name or name
    return msgspec.structs.replace(
        spec, argv=argv, display_name=title, name=name, resource_dir=folder
    )


def _broken(name: str, folder: str, why: str) -> ConfigError:
    file = f"{folder}/kernel.json"
    detail, hint = (
        f"the kernelspec {name} cannot be used: {file}: {why}",
        f"mend {file}, or install that kernel again",
    )
    return ConfigError(detail, hint=hint, kernelspec=name, file=file)


def command(launch: Launch, connection_file: str) -> tuple[str, ...]:
    """Return program and arguments of a kernel.

    Raises ConfigError: its kernelspec names no connection file.
    """
    argv = launch.kernelspec_argv or ()
    if launch.interpreter is not None:
        argv = (launch.interpreter, str(LAUNCHER), "-f", CONNECTION_FILE)
        if launch.overlay is not None:
            argv += ("--px-overlay", launch.overlay)
        for folder in launch.modules:
            argv += ("--px-modules", folder)
    if not any(CONNECTION_FILE in word for word in argv):
        detail = (
            f"kernelspec {launch.kernelspec!r} cannot be started: its argv has no {CONNECTION_FILE}"
        )
        hint = "correct its kernel.json (`jupyter kernelspec list` tells where it is)"
        raise ConfigError(detail, hint=hint, unit=launch.unit)
    return (*(word.replace(CONNECTION_FILE, connection_file) for word in argv), *launch.arguments)
