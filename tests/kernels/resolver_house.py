"""An `InterpreterResolver` under test: a real keeper, scripts that play interpreters and
installers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernels.cell_folder import config_in
from kernels.kernel_rig import KernelRig
from supervisord_py.kernels import interpreters, kernelspecs
from supervisord_py.kernels.inside.self_report import MARK
from supervisord_py.kernels.resolver import InterpreterResolver
from supervisord_py.kernels.session import Choice, StartRequest
from supervisord_py.process.model import Child, ChildSpec
from waiting import PATIENCE

TAG = "fake-tag"
FAKE_UV = """
echo "fake uv: $*"
echo "$*" >>"{log}"
{first}
case "$1" in
  venv) for place; do :; done; mkdir -p "$place/bin" && cp "{python}" "$place/bin/python" ;;
  pip) while [ $# -gt 1 ]; do [ "$1" = --target ] && mkdir -p "$2/ipykernel"; shift; done ;;
esac
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"#!/bin/sh\n{text}\n")
    part.chmod(0o755)
    part.rename(path)
    return path


def fake_python(path: Path, **said: Any) -> Path:
    """Write a script that answers as an interpreter does; `said` overrides what it says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent.parent / "pyvenv.cfg").touch()
    usual = {"version": [3, 12, 1], "executable": str(path), "lacking": [], "pip": True, "tag": TAG}
    usual["packages"] = [str(path.parent.parent / "site-packages")]
    return script(
        path, f"echo 'start-up files may print'; printf '%s\\n' '{MARK}{json.dumps(usual | said)}'"
    )


class Lines(interpreters.BuildWatcher):
    """Keeps what is said to people."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def say(self, text: str) -> None:
        self._lines.append(text)


class ResolverHouse:
    """`close()` it.

    `proj` is a working directory, `bin` all that is on PATH beside the system's.
    """

    def __init__(self, rig: KernelRig, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.placement, self.patch = rig.folder, rig.placement, patch
        self.spawned: list[str] = []
        self.proj = self.folder / "proj"
        self.bin = self.folder / "bin"
        for place in (self.proj, self.bin, self.folder / "modules", self.folder / "data"):
            place.mkdir()
        self.uv_log = self.folder / "uv.log"
        self.lines: list[str] = []
        self.config = config_in(self.folder, gateway_token="gateway-token")  # noqa: S106
        self.environ = {"PATH": str(self.bin), "HOME": str(self.folder), "LANG": "C.UTF-8"}
        spawn = self.placement.spawn

        async def counted(key: str, spec: ChildSpec) -> Child:
            self.spawned.append(spec.argv[0])
            return await spawn(key, spec)

        patch.setattr(self.placement, "spawn", counted)
        patch.setattr(interpreters, "PROBE_SECONDS", PATIENCE)  # a real one imports ipykernel
        specs = self.folder / "share" / "jupyter" / "kernels"
        patch.setattr(
            kernelspecs,
            "_folders",
            lambda: {each.name: str(each) for each in sorted(specs.glob("*"))},
        )
        for tool in ("mkdir", "cp", "sleep"):
            (self.bin / tool).symlink_to(
                f"/bin/{tool}" if os.path.exists(f"/bin/{tool}") else f"/usr/bin/{tool}"
            )
        self.resolver = self.made()

    def made(self) -> InterpreterResolver:
        return InterpreterResolver(
            self.placement, environ=self.environ, own={"PX_SOCKET": "/run/px.sock"}
        )

    async def close(self) -> None:
        await self.resolver.installs.close()
        assert [child.unit for child in await self.placement.list("")] == []

    def install_with(self, first: str = "") -> None:
        """Let a script play uv; `first` is what it does first."""
        python = fake_python(self.folder / "managed-python", executable="")
        uv = script(self.folder / "uv", FAKE_UV.format(log=self.uv_log, first=first, python=python))
        self.patch.setattr(interpreters, "find_uv", lambda _path: str(uv))

    def built(self) -> list[str]:
        return self.uv_log.read_text().splitlines() if self.uv_log.exists() else []

    async def choose(self, **request: Any) -> Choice:
        deadline = request.pop("deadline", None)
        asked = StartRequest(**{"cwd": str(self.proj), **request})
        return await self.resolver.resolve(
            asked, self.config, watcher=Lines(self.lines), deadline=deadline
        )
