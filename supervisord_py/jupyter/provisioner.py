"""A Jupyter kernel provisioner: JupyterLab, nbclient and papermill start their kernels in the
daemon.

Chosen per kernelspec (`metadata.kernel_provisioner.provisioner_name = "supervisord-py"`). The
kernel is the daemon's: it outlives its front end until it was idle for `kernels.idle_seconds`; that
the front end asks for it counts as use.

Laws: a kernel life is one instance. Another instance under the same session is another life: `poll`
then says that ours has ended, so that the front end learns of the lost variables. An answer that
does not come ends no life: only a socket behind which nobody listens says that the daemon is gone;
while the control plane is replaced the keeper holds the socket, and who asks waits. What a front
end shuts down is gone with all its processes when the call returns.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from supervisord_py.daemon.paths import resolve_paths
from supervisord_py.kernels.kernelspecs import Kernelspec

ENDED = 1  # what `poll` says of a life whose own code nobody knows
RECONNECT_SECONDS = 0.25
"""A forked kernel runs its first cell before the front end's sockets are back, for which zmq tries
every 100 ms: what the cell gives would be published to nobody.
"""
_ASK_SECONDS = 60.0
# longer than any bound of the daemon: it is the one who gives up, and says why
_START_SECONDS = 600.0
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OFF = frozenset({"0", "false", "no", "off"})  # of PX_AUTOSTART, as pxctl reads it
_LIVING = frozenset({"preparing", "starting", "unresponsive", "idle", "busy", "stopping"})
# What a service manager grants belongs to Jupyter's service here, not to the daemon.
_NOT_OURS = (
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CACHE_DIRECTORY",
)


class SupervisedProvisioner(KernelProvisionerBase):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._session: str | None = None
        self._instance: str | None = None
        self._arguments: list[str] = []

    async def _ask(self, verb: str) -> dict[str, Any] | None:
        """Ask the daemon about our kernel; None where it is not known any more.

        Raises DaemonError.
        """
        session = quote(self._session or "", safe="")
        try:
            return await ControlSocket().ask("POST", f"/api/kernels/{session}{verb}")
        except DaemonError as error:
            if error.is_gone or error.status == 404:
                return None
            raise

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        self._arguments = [str(word) for word in kwargs.pop("extra_arguments", None) or []]
        return await super().pre_launch(cmd=list(self.kernel_spec.argv), **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Have the daemon start the kernel, or join the one that it has under this kernel's id.

        Raises DaemonError: why it cannot be started. jupyter_server sends only tornado's own errors
        to its pages, and of any other "Unhandled error": there it is an HTTPError.
        """
        # A kernelspec does not know its own name: its folder is called so.
        name = str(
            getattr(self.parent, "kernel_name", "") or Path(self.kernel_spec.resource_dir).name
        )
        spec = Kernelspec(tuple(cmd), self.kernel_spec.language, name=name)
        order = order_of(
            str(self.kernel_id),
            spec,
            cwd=os.path.realpath(kwargs.get("cwd") or "."),  # noqa: ASYNC240 - a local path, once
            env=kwargs.get("env") or {},
            arguments=self._arguments,
        )
        daemon = ControlSocket()
        try:
            await daemon.ensure_running()
            kernel = await daemon.ask("POST", "/api/kernels", order, _START_SECONDS)
        except DaemonError as error:
            if error.status == 422 and "kernelspec" in order:
                where = (
                    f"This front end has it in {self.kernel_spec.resource_dir}; pxd looks on its "
                    "own JUPYTER_PATH."
                )
                error = DaemonError(f"{error} {where}", error.status, error.kind)
            if "jupyter_server" not in sys.modules:
                raise error from None
            from tornado.web import HTTPError

            raise HTTPError(error.status or 503, str(error)) from error
        if self._session is not None:  # a restart
            await asyncio.sleep(RECONNECT_SECONDS)
        self._session, self._instance = str(kernel["id"]), str(kernel["instance"])
        try:
            info = json.loads(Path(kernel["connection_file"]).read_bytes())  # noqa: ASYNC240 - a few bytes
        # it was joined as it ended: by the front end's own request, at a restart
        except FileNotFoundError:
            return await self.launch_kernel(cmd, **kwargs)
        info["key"] = info["key"].encode()
        self.connection_info = info
        return cast("KernelConnectionInfo", info)

    @property
    def has_process(self) -> bool:
        return self._instance is not None

    async def poll(self) -> int | None:
        if self._instance is None:
            return ENDED
        try:
            kernel = await self._ask("/use")
        except DaemonError:
            return None
        is_ours = (
            kernel is not None
            and kernel["instance"] == self._instance
            and kernel["state"] in _LIVING
        )
        return None if is_ours else ENDED

    async def wait(self) -> int | None:
        while (code := await self.poll()) is None:  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.1)  # bounded by the caller, as the base demands
        self._instance = None
        return code

    async def send_signal(self, signum: int) -> None:
        """Interrupt or end the kernel. Raises OSError: there is no other signal."""
        if signum == signal.SIGINT:
            await self._ask("/interrupt")
        elif signum in {signal.SIGTERM, signal.SIGKILL}:
            await self.kill()
        else:
            raise OSError(f"pxd sends no signal {signum} to a kernel")

    async def kill(self, restart: bool = False) -> None:
        if self._session is not None:
            await self._ask("/stop")
        self._instance = None

    terminate = kill

    async def cleanup(self, restart: bool = False) -> None:
        if not restart and self._session is not None:
            await self.kill()
            self._session = None


def order_of(
    kernel_id: str,
    spec: Kernelspec,
    *,
    cwd: str,
    env: Mapping[str, str],
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the body of `POST /api/kernels`.

    A spec that only means "some Python with ipykernel" is left to the daemon's choice; one that
    names its interpreter gets that, by our launcher; any other is run as it is written. The same
    `kernel_id` gives the same session, on the same sockets. `env`: the front end's environment and
    what was added.
    """
    program = {} if spec.native else {"kernelspec": spec.name}
    if spec.python is not None and spec.python.startswith("/"):
        program = {"interpreter": spec.python}
    # the session is called by the beginning of a UUID, by which people know the kernel, else by a
    # digest
    name = kernel_id.lower()
    if not _UUID.fullmatch(name):
        name = hashlib.sha256(kernel_id.encode(errors="surrogateescape")).hexdigest()
    lone = re.compile(r"[\ud800-\udfff]")  # bytes of no encoding: they cannot be told in JSON
    return {
        "name": f"jupyter-{name[:8]}",
        "cwd": cwd,
        "owner": "jupyter",
        "backend": "direct",  # the only one whose channels a front end of this machine can join
        "arguments": list(arguments),
        "env": {name: value for name, value in env.items() if not lone.search(name + value)},
        **program,
    }


# -- the way to the daemon -------------------------------------------------------------------------


class DaemonError(RuntimeError):
    """The daemon refused (`status`), or did not answer.

    `kind` is that of its problem document, `gone` where nobody listens (its kernels ended with it),
    `late` or `broken`.
    """

    def __init__(self, message: str, status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.is_gone = kind == "gone"


class ControlSocket:
    """The way to the daemon.

    HTTP is written here: a web client's import would cost more than the start of a kernel.
    """

    def __init__(self, path: str = "") -> None:
        self._environ = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        self.path = path or str(resolve_paths(self._environ).socket)

    async def ask(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        seconds: float = _ASK_SECONDS,
    ) -> dict[str, Any]:
        """Ask what may be asked twice: once more where the control plane was replaced.

        Raises DaemonError.
        """
        lines = [
            f"{method} {route} HTTP/1.1",
            "Host: px",
            "Accept: application/json",
            "Connection: close",
        ]
        content = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        request = "\r\n".join([*lines, "", ""]).encode("ascii") + content
        try:
            return await self._exchange(request, f"{method} {route}", seconds)
        except DaemonError as error:
            if error.kind not in {"broken", "interrupted"}:
                raise
        return await self._exchange(request, f"{method} {route}", seconds)

    async def _exchange(self, request: bytes, asked: str, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(self.path)
                with closing(writer):
                    writer.write(request)
                    head, _, text = (await reader.read()).partition(b"\r\n\r\n")
            status, document = int(head.split(maxsplit=2)[1]), json.loads(text)
        except TimeoutError as error:
            raise DaemonError(
                f"pxd did not answer {asked} within {seconds:g} s", kind="late"
            ) from error
        except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
            why = (
                f"pxd does not answer at {self.path}: {error.strerror}. Start it: pxctl daemon "
                "start"
            )
            raise DaemonError(why, kind="gone") from error
        except (OSError, IndexError, ValueError) as error:
            raise DaemonError(
                f"pxd broke off its answer at {self.path}: {error!r}", kind="broken"
            ) from error
        if status >= 400:
            detail, hint = str(document.get("detail")), document.get("hint")
            end = "" if detail.endswith((".", "!", "?")) or not hint else "."
            raise DaemonError(
                f"{detail}{end} {hint or ''}".rstrip(), status, str(document.get("kind"))
            )
        return cast("dict[str, Any]", document)

    async def ensure_running(self) -> None:
        """Start the daemon where it is not there.

        Raises DaemonError: PX_AUTOSTART=0 forbids that, or it cannot be.
        """
        try:
            await self.ask("GET", "/api/health", seconds=30.0)
        except DaemonError as error:
            if not error.is_gone or os.environ.get("PX_AUTOSTART", "1").lower() in _OFF:
                raise
            await asyncio.to_thread(self._start)

    def _start(self) -> None:
        beside = Path(sys.executable).with_name("pxctl")
        command = [
            str(beside) if beside.exists() else "pxctl",
            "--socket",
            self.path,
            "daemon",
            "start",
        ]
        try:
            run = subprocess.run(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise DaemonError(
                f"pxd does not run, and {command[0]} cannot start it: {error}", kind="gone"
            ) from error
        if run.returncode != 0:
            raise DaemonError(f"pxd could not be started: {run.stderr.strip()}", kind="gone")
