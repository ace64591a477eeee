"""A daemon and a front end's surroundings: kernelspecs, folders, an environment in which Jupyter's libraries run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import AsyncKernelManager

from e2e.house import House, alive, house, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from jupyter_client.asynchronous import AsyncKernelClient

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "supervisord_py" / "jupyter" / "kernelspec" / "kernel.json"
IPYKERNEL6 = ROOT / os.environ.get("VENV", ".venv") / "peers" / "ipykernel6" / "bin" / "python"
NEEDS_PEERS = "needs the environments of the peers: run `make peers`"
LAUNCHED = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
OURS = {"kernel_provisioner": {"provisioner_name": "supervisord-py"}}
PATIENCE = 60.0


@dataclass
class Front:
    """A front end's side of one house.

    Attributes:
        house: The daemon's.
        folder: Where notebooks lie; the folder of kernels that name none.
        patch: Undone when the front end ends.
    """

    house: House
    folder: Path
    patch: pytest.MonkeyPatch = field(repr=False)

    @property
    def jupyter(self) -> Path:
        """Everything of Jupyter's own."""
        return self.house.home / "jupyter"

    def spec(self, name: str, argv: list[str], **members: Any) -> str:
        """Write a kernelspec that our provisioner starts; return its name."""
        place = self.jupyter / "path" / "kernels" / name
        place.mkdir(parents=True, exist_ok=True)
        plain = {"argv": argv, "display_name": name, "language": "python", "metadata": OURS}
        (place / "kernel.json").write_text(json.dumps({**plain, **members}))
        return name

    def kernels(self) -> dict[str, dict[str, Any]]:
        """Return the daemon's sessions by id."""
        return {each["id"]: each for each in self.house.get("/api/kernels")["kernels"]}

    def living(self) -> dict[str, dict[str, Any]]:
        """Return those that have a process."""
        return {name: each for name, each in self.kernels().items() if each["pid"] is not None}

    def session_of(self, km: Any) -> dict[str, Any]:
        """Return the session of a kernel manager."""
        return self.kernels()[km.provisioner._session]

    def environ(self, **added: str) -> dict[str, str]:
        """Return an environment for a front end in a process of its own."""
        return {**os.environ, **added}

    def stop_kernels(self) -> None:
        """Stop what a test has left."""
        for name, each in self.living().items():
            self.house.request("POST", f"/api/kernels/{name}/stop")
            until(lambda pid=each["pid"]: not alive(pid), f"{name} ends")  # type: ignore[misc]


@contextmanager
def front_end(settings: Mapping[str, str] | None = None, *, started: bool = True) -> Iterator[Front]:
    """Make a house and turn this process into a front end of it."""
    with house() as home, pytest.MonkeyPatch.context() as patch:
        jupyter = home.home / "jupyter"
        places = {
            "JUPYTER_PATH": jupyter / "path",
            "JUPYTER_DATA_DIR": jupyter / "data",
            "JUPYTER_RUNTIME_DIR": jupyter / "run",
            "JUPYTER_CONFIG_DIR": jupyter / "config",
            "IPYTHONDIR": jupyter / "ipython",
        }
        for place in places.values():
            place.mkdir(parents=True)
        shared = {"JUPYTER_PLATFORM_DIRS": "1", **{name: str(place) for name, place in places.items()}}
        home.settings = {**shared, **(settings or {})}
        own = home.environ
        for name in [name for name in os.environ if name not in own]:
            patch.delenv(name)
        for name, value in own.items():
            patch.setenv(name, value)
        folder = home.home / "work"
        folder.mkdir()
        patch.chdir(folder)
        place = jupyter / "path" / "kernels" / "pxd"
        place.mkdir(parents=True)
        shutil.copy(SPEC, place)
        if started:
            home.start()
        yield Front(home, folder, patch)


@asynccontextmanager
async def kernel(
    name: str = "pxd", *, ready: bool = True, **kwargs: Any
) -> AsyncIterator[tuple[AsyncKernelManager, AsyncKernelClient]]:
    """Start a kernel as Jupyter does it, and shut it down."""
    km = AsyncKernelManager(kernel_name=name)
    await km.start_kernel(**kwargs)
    kc = km.client()
    kc.start_channels()
    try:
        if ready:
            await kc.wait_for_ready(timeout=PATIENCE)
        yield km, kc
    finally:
        kc.stop_channels()
        await km.shutdown_kernel(now=True)
        km.context.destroy(linger=0)


async def run(kc: AsyncKernelClient, code: str, **kwargs: Any) -> tuple[dict[str, Any], str]:
    """Run a cell; return the content of its reply, and what it printed."""
    printed: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = await kc.execute_interactive(code, output_hook=hook, timeout=PATIENCE, **kwargs)
    return reply["content"], "".join(printed)


async def value(kc: AsyncKernelClient, expression: str) -> Any:
    """Return the value of an expression that is JSON."""
    reply, printed = await run(kc, f"import json; print(json.dumps({expression}))", allow_stdin=False)
    assert reply["status"] == "ok", reply
    return json.loads(printed)


def gone(pid: int) -> None:
    """Wait until a process is gone."""
    until(lambda: not alive(pid), f"process {pid} is gone")


def end(process: Any) -> None:
    """End a process that a test has started."""
    with contextlib.suppress(OSError):
        process.kill()
    process.wait(PATIENCE)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


PYTHON = sys.executable
