"""How the shared gateway is run: its command line and its environment. Pure.

Law: the token is in the environment of the one process that needs it, never in argv; kernels do not get it (the gateway
takes it out). Nobody without the token gets anything, and no foreign origin is let in. What a cell prints is not
rationed. A kernel that dies is not restarted: its variables are gone, and a new one under its id would hide that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervisord_py.kernels.launch_command import CONNECTION_FILE, launcher_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch

CULL_INTERVAL_SECONDS = 30
DEATH_SECONDS = 1.0
"""How often the gateway looks whether its kernels live; we see the death of ours by ourselves."""
SHUTDOWN_SECONDS = 2.0
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_KEPT_PREFIXES = ("LC_",)
_GATEWAY = (
    "import runpy, sys; sys.modules['rfc3987_syntax'] = None; "
    "runpy.run_module('kernel_gateway', run_name='__main__', alter_sys=True)"
)
"""Run as `-m` does, but without a package that jsonschema asks for the format of addresses: that builds a grammar as it
is imported, a second of each start."""
_SET_LIMITS = """
import json, os, resource, sys
for name, soft, hard in json.loads(sys.argv[1]):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (soft, hard))
os.execv(sys.argv[2], sys.argv[2:])
"""


def gateway_argv(python: str, port: int, *, cull_idle_seconds: float) -> tuple[str, ...]:
    """Return the command line of a gateway.

    It has no max_kernels: with one the gateway lists its kernels before each start, and that fails (500) while another
    one is just being started. Each daemon bounds its own sessions, and what nobody uses is culled.
    """
    return (
        python,
        "-c",
        _GATEWAY,
        "--KernelGatewayApp.ip=127.0.0.1",
        f"--KernelGatewayApp.port={port}",
        "--KernelGatewayApp.port_retries=0",
        "--KernelGatewayApp.api=kernel_gateway.jupyter_websocket",
        "--KernelGatewayApp.allow_origin=",
        "--JupyterWebsocketPersonality.list_kernels=True",
        "--ZMQChannelsWebsocketConnection.limit_rate=False",
        f"--MappingKernelManager.cull_idle_timeout={max(1, round(cull_idle_seconds))}",
        f"--MappingKernelManager.cull_interval={CULL_INTERVAL_SECONDS}",
        "--MappingKernelManager.root_dir=/",
        "--KernelManager.transport=ipc",
        f"--KernelManager.shutdown_wait_time={SHUTDOWN_SECONDS}",
        "--KernelRestarter.restart_limit=0",
        f"--KernelRestarter.time_to_dead={DEATH_SECONDS}",
    )


def gateway_env(env: Mapping[str, str], token: str, specs: Path, runtime: Path) -> dict[str, str]:
    """Return the environment of a gateway.

    Args:
        env: Of the kernel for which it is started, filtered already.
        token: Secret.
        specs: Folder that JUPYTER_PATH is to name.
        runtime: Private folder for connection files and sockets.
    """
    kept = {name: value for name, value in env.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return {
        **kept,
        "KG_AUTH_TOKEN": token,
        "JUPYTER_PATH": str(specs),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(runtime / "no-settings"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def kernelspec(launch: Launch) -> str:
    """Return the text of the `kernel.json` by which the gateway starts one kernel: our launcher, its own environment.

    A `$` in a value is doubled: Jupyter takes single ones for references to variables.
    """
    env = {**launch.env, "PX_INSTANCE": launch.instance, "PX_UNIT": f"kernel:{launch.session_id}"}
    spec = {
        "argv": list(kernel_argv(launch)),
        "display_name": f"kernel:{launch.session_id}",
        "language": "python" if launch.interpreter else "",
        "interrupt_mode": launch.interrupt_mode,
        "env": {name: value.replace("$", "$$") for name, value in env.items()},
    }
    return json.dumps(spec, indent=1)


def kernel_argv(launch: Launch) -> tuple[str, ...]:
    """Return the command line of a kernel, with Jupyter's `{connection_file}` in it."""
    if launch.interpreter is None:
        return launch.kernelspec_argv or ()
    return (*_limited(launch.interpreter, launch), *launcher_command(launch.interpreter, launch, CONNECTION_FILE))


def _limited(interpreter: str, launch: Launch) -> tuple[str, ...]:
    """Return what sets the rlimits before the kernel is there: the gateway has no setting for them."""
    if not launch.limits:
        return ()
    limits = [[each.name, each.soft, each.hard] for each in launch.limits]
    return (interpreter, "-I", "-S", "-c", _SET_LIMITS, json.dumps(limits))
