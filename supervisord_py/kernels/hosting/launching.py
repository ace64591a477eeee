"""From a session and what was chosen for it to the launch of a kernel: limits, folders, note, everything decided."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.choice import SPEC_PREFIX
from supervisord_py.kernels.lives.kernel_tags import KernelTag
from supervisord_py.process.model import ResourceLimit

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.kernels.config import KernelsConfig, ProcessLimits
    from supervisord_py.kernels.hosting.live_session import LiveSession
    from supervisord_py.kernels.lives.kernel_life import KernelLife

_CPU_SLACK_SECONDS = 2


def resource_limits(limits: ProcessLimits) -> tuple[ResourceLimit, ...]:
    """Return the rlimits of a kernel; a core dump is never written."""
    asked = (
        ("nofile", limits.open_files, 0),
        ("nproc", limits.processes, 0),
        ("cpu", limits.cpu_seconds, _CPU_SLACK_SECONDS),  # SIGXCPU first, SIGKILL to who ignores it: getrlimit(2)
    )
    named = [ResourceLimit(name, value, value + slack) for name, value, slack in asked if value is not None]
    return (ResourceLimit("core", 0, 0), *named)


def folder_of_cells(cells_dir: Path, session_id: str) -> Path:
    """Return the folder of a session's cell files, made where it is not there, private with all above it. Blocking."""
    folder = cells_dir / session_id
    missing: list[Path] = []
    at = folder
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        os.chmod(each, 0o700)  # also under a umask that takes more away
    return folder


def check_folder(session: LiveSession) -> None:
    """Check that a kernel can be started where the session lives. Blocking.

    Raises:
        InvalidInputError: Its working directory is gone; whatever runs there goes on.
    """
    cwd = session.key.cwd
    if os.path.isdir(cwd) and os.access(cwd, os.X_OK):
        return
    gone = "is not there any more" if not os.path.isdir(cwd) else "cannot be entered any more"
    message = f"The session's working directory {gone}: {cwd}"
    raise InvalidInputError(
        message,
        hint=f"Put it back, or take a session of another folder with `--cwd` (`pxctl kernel stop {session.id}` "
        "ends this one).",
        unit=session.unit,
        errors=[{"pointer": "/cwd", "message": message}],
    )


def tag_of(session: LiveSession, life: KernelLife) -> KernelTag:
    """Return the note that the keeper is to hold with a life."""
    key = session.key
    return KernelTag(
        name=key.name,
        cwd=key.cwd,
        interpreter=key.interpreter,
        backend=key.backend.value,
        owner=session.owner.value,
        language=session.language,
        kernelspec=session.kernelspec,
        interrupt_mode=session.interrupt_mode,
        created=session.created,
        last_used=session.last_used or life.started_at,
        ready=life.ready_at is not None,
        cold_start_ms=life.cold_start_ms,
        start_method=life.start_method.value,
        restarts=session.restarts,
        cell=life.cell,
        deadline=life.cell_deadline,
        stopping=life.wanted.value if life.wanted else None,
    )


def launch_of(session: LiveSession, life: KernelLife, config: KernelsConfig) -> Launch:
    """Return the launch of a session for which a choice was made; makes its folder of cells. Blocking."""
    choice = session.choice
    key = session.key
    fallback = None if key.interpreter.startswith(SPEC_PREFIX) else key.interpreter
    return Launch(
        session_id=session.id,
        instance=life.key,
        interpreter=choice.interpreter if choice else fallback,
        cwd=key.cwd,
        env=dict(choice.env) if choice else {},
        cells_dir=folder_of_cells(config.cells_dir, session.id),
        kernelspec=choice.kernelspec if choice else session.kernelspec,
        kernelspec_argv=choice.kernelspec_argv if choice else None,
        limits=resource_limits(config.limits),
        max_rss_bytes=config.limits.hard_memory_bytes,
        memory_grace_seconds=config.limits.memory_grace_seconds,
        overlay=choice.overlay if choice else None,
        modules=choice.modules if choice else (),
        prelude=config.prelude,
        tag=tag_of(session, life).encode(),
        interrupt_mode=session.interrupt_mode,
        arguments=session.arguments,
    )
