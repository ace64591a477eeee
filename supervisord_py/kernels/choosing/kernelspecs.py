"""Jupyter's kernelspecs: which there are, and how one of them is run by us.

Law: a kernelspec is run from its own argv, never through a provisioner, ours least of all: a gateway that started a
kernel by our provisioner would ask this daemon, which would ask the gateway. jupyter_client is imported at the first
look, in a thread: it takes longer than a cell.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import importlib
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from string import Template
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError, InvalidInputError
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Mapping

NATIVE = "python3"
OUR_PROVISIONER = "supervisord-py"
LOCAL_PROVISIONER = "local-provisioner"
SPEC_FILE = "kernel.json"
_BARE_PYTHON = re.compile(r"python3?")
_TEMPLATE = re.compile(r"\{\w+\}")
_LAUNCHED = ("-m", "ipykernel_launcher", "-f", "{connection_file}")
_NATIVE_DOCUMENT: Mapping[str, Any] = {
    "argv": ["python3", *_LAUNCHED],
    "env": {},
    "display_name": "Python 3",
    "language": "python",
    "interrupt_mode": "signal",
    "metadata": {},
    "kernel_protocol_version": "5.5",
    "resource_dir": "",
}


@dataclass(frozen=True, slots=True)
class Kernelspec:
    """A kernelspec that can be run here.

    Attributes:
        name: Lower case, as Jupyter has it.
        argv: `{connection_file}` is left in it.
        env: What the file sets, not yet filled in. May hold secrets: not in repr.
        file: Where it is written; "" for the native one.
        provisioner: Who would start it in Jupyter.
    """

    name: str
    argv: tuple[str, ...]
    language: str
    interrupt_mode: str = "signal"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    file: str = ""
    provisioner: str = LOCAL_PROVISIONER

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
        rest = [word for word in self.argv[1:] if not word.startswith("-X")]
        return self.language.lower() == "python" and tuple(rest) == _LAUNCHED

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """Return what it sets, with `${NAME}` filled in from an environment as Jupyter does it."""
        return {name: Template(value).safe_substitute(around) for name, value in self.env.items()}


NATIVE_SPEC = Kernelspec(NATIVE, ("python3", *_LAUNCHED), "python")


async def documents() -> dict[str, dict[str, Any]]:
    """Return all kernelspecs: `{name: {display_name, language, argv, env, interrupt_mode, metadata, resource_dir}}`.

    A broken one is left out; the native one is always there.
    """
    return await asyncio.to_thread(_documents)


def _documents() -> dict[str, dict[str, Any]]:
    found = {NATIVE: dict(_NATIVE_DOCUMENT)}
    for name, folder in sorted(_directories().items()):
        with contextlib.suppress(ConfigError):
            said, spec = _read(name, folder)
            known = {key: said[key] for key in _NATIVE_DOCUMENT if key in said}
            own = {"display_name": name, **known, "language": spec.language, "resource_dir": folder}
            found[name] = {**_NATIVE_DOCUMENT, **own}
    return found


async def find_kernelspec(name: str, backend: BackendName, path: str) -> Kernelspec:
    """Return the kernelspec of a name, ready to be run.

    Args:
        name: As a user wrote it.
        backend: Who is to run it.
        path: PATH, on which its program is looked for.

    Raises:
        InvalidInputError: There is none of that name; `nearest` and `kernelspecs` say which there are.
        ConfigError: Its file is broken, its program is not there, or that backend must not run it.
    """
    spec = await asyncio.to_thread(_find, name)
    if spec.native and spec.provisioner in {LOCAL_PROVISIONER, OUR_PROVISIONER} and backend is BackendName.DIRECT:
        return spec
    _check_provisioner(spec, backend)
    return spec if spec.native else await asyncio.to_thread(_with_program, spec, path)


def _directories() -> dict[str, str]:
    """Return name → folder of all kernelspecs, without the one that Jupyter makes up for its own interpreter."""
    module = importlib.import_module("jupyter_client.kernelspec")
    paths = importlib.import_module("jupyter_core.paths")
    looker = module.KernelSpecManager(kernel_dirs=paths.jupyter_path("kernels"), ensure_native_kernel=False)
    found: dict[str, str] = looker.find_kernel_specs()
    return found


def _find(name: str) -> Kernelspec:
    wanted = name.lower()
    folders = _directories()
    folder = folders.get(wanted)
    if folder is not None:
        return _read(wanted, folder)[1]
    if wanted == NATIVE:
        return NATIVE_SPEC
    names = sorted({NATIVE, *folders})
    raise _unknown(name, names)


def _unknown(name: str, names: list[str]) -> InvalidInputError:
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else "."
    message = f"there is no kernelspec {name[:80]!r}{meant} There are: {', '.join(names)}."
    return InvalidInputError(
        message,
        hint="`jupyter kernelspec list` shows where they are looked for.",
        errors=[{"pointer": "/kernelspec", "message": message}],
        nearest=near[0] if near else None,
        kernelspecs=names,
    )


def _read(name: str, folder: str) -> tuple[dict[str, Any], Kernelspec]:
    """Read a kernelspec's file.

    Raises:
        ConfigError: It is broken.
    """
    file = os.path.join(folder, SPEC_FILE)
    try:
        with open(file, encoding="utf-8") as stream:
            said = json.load(stream)
    except (OSError, ValueError) as error:
        raise _broken(name, file, f"cannot be read: {error}") from error
    if not isinstance(said, dict) or not _is_sound(said):
        why = "it must be an object with `argv`, a list of texts; `env` maps names to texts, `interrupt_mode` is "
        raise _broken(name, file, f"{why}signal or message")
    known = {"{resource_dir}": folder, "{prefix}": sys.prefix}  # what Jupyter puts in; the connection file comes later
    spec = Kernelspec(
        name=name,
        argv=tuple(_TEMPLATE.sub(lambda found: known.get(found[0], found[0]), word) for word in said["argv"]),
        language=str(said.get("language", "")),
        interrupt_mode=said.get("interrupt_mode", "signal"),
        env=said.get("env", {}),
        file=file,
        provisioner=_provisioner(said.get("metadata")),
    )
    return said, spec


def _is_sound(said: dict[str, Any]) -> bool:
    argv, env = said.get("argv"), said.get("env", {})
    if not isinstance(argv, list) or not argv or not isinstance(env, dict):
        return False
    texts = all(isinstance(each, str) for each in (*argv, *env.values()))
    return texts and said.get("interrupt_mode", "signal") in ("signal", "message")


def _provisioner(metadata: Any) -> str:
    stanza = metadata.get("kernel_provisioner") if isinstance(metadata, dict) else None
    name = stanza.get("provisioner_name") if isinstance(stanza, dict) else None
    return str(name) if name else LOCAL_PROVISIONER


def _check_provisioner(spec: Kernelspec, backend: BackendName) -> None:
    if spec.provisioner == OUR_PROVISIONER and backend is not BackendName.DIRECT:
        raise ConfigError(
            f"the kernelspec {spec.name} ({spec.file}) starts its kernels through this daemon (provisioner "
            f"{OUR_PROVISIONER}); the backend {backend} would ask the daemon again, without end",
            hint=f"use --backend {BackendName.DIRECT}, or another kernelspec",
            kernelspec=spec.name,
        )
    if spec.provisioner not in {OUR_PROVISIONER, LOCAL_PROVISIONER} and backend is BackendName.DIRECT:
        raise ConfigError(
            f"the kernelspec {spec.name} ({spec.file}) is started by the provisioner {spec.provisioner}, elsewhere "
            "than on this machine; the direct backend cannot do that",
            hint=f"use --backend {BackendName.GATEWAY_LOCAL} or {BackendName.GATEWAY_EXTERNAL}",
            kernelspec=spec.name,
        )


def _with_program(spec: Kernelspec, path: str) -> Kernelspec:
    """Return it with the full path of its program. A mere "python" is that of the environment it was installed in."""
    program = shutil.which(spec.argv[0], path=path)
    if _BARE_PYTHON.fullmatch(spec.argv[0]):
        prefix = spec.file.removesuffix(f"/share/jupyter/kernels/{spec.name}/{SPEC_FILE}")
        program = shutil.which(os.path.join(prefix, "bin", spec.argv[0])) or program
    if program is None:
        raise _broken(spec.name, spec.file, f"its program {spec.argv[0]} is not there or cannot be executed")
    return replace(spec, argv=(program, *spec.argv[1:]))


def _broken(name: str, file: str, why: str) -> ConfigError:
    return ConfigError(
        f"the kernelspec {name} cannot be used: {file}: {why}",
        hint=f"mend {file}, or install that kernel again",
        kernelspec=name,
        file=file,
    )
