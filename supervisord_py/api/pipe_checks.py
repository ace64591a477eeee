"""What `pxctl doctor` asks of pipes: which cannot run, which agents are missing, and whether schedules are at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.api.checks import Check, Verdict
from supervisord_py.errors import PxError
from supervisord_py.pipes.checks import CheckStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.pipes.models import PipesHealth, PipeView
    from supervisord_py.pipes.room import Pipes

_STALLED = 3
"""Failures in a row of a pipe that runs by itself."""


async def check_pipes(pipes: Pipes) -> list[Check]:
    """Return the findings about pipes; one that says that nothing is wrong where none is."""
    views = pipes.snapshot()
    found = list(_of_the_room(pipes.health()))
    for name, problems in (await pipes.file_problems()).items():
        found += [Check(name, Verdict.FAIL, one, "pxctl daemon reload") for one in problems]
    for view in views:
        found += await _of_a_pipe(pipes, view)
    wrong = len({one.name for one in found if one.name.startswith("pipe:")})
    if wrong == 0:
        found.append(Check("pipes", Verdict.OK, f"{len(views)} pipes, none broken"))
    return found


def _of_the_room(health: PipesHealth) -> Iterator[Check]:
    if health.scheduler_error is not None:
        said = f"it died and was restarted ({health.scheduler_restarts} times): {health.scheduler_error}"
        yield Check("scheduler", Verdict.WARN, said, "pxctl daemon restart")
    elif health.scheduler_running:
        yield Check("scheduler", Verdict.OK, "schedules and events start pipes")
    else:
        yield Check("scheduler", Verdict.WARN, "no schedule starts a pipe at present", "pxctl config show")
    if health.catalog is not None:
        yield Check("pipes_folder", Verdict.FAIL, health.catalog, "pxctl daemon reload")


async def _of_a_pipe(pipes: Pipes, view: PipeView) -> list[Check]:
    """Return what keeps a pipe from running; only one that may run by itself must have its agent."""
    name, repair = f"pipe:{view.name}", f"pxctl pipe validate {view.name}"
    if view.config_error is not None:
        return [Check(name, Verdict.FAIL, view.config_error, repair)]
    try:
        checks = await pipes.validate(view.name)
    except PxError:
        return []  # it went in between
    failed = [one.message for one in checks if one.status is CheckStatus.FAIL]
    if failed:
        return [Check(name, Verdict.FAIL if view.enabled else Verdict.WARN, "; ".join(failed), repair)]
    if view.enabled and view.consecutive_failures >= _STALLED:
        said = f"failed {view.consecutive_failures} times in a row"
        return [Check(name, Verdict.WARN, said, f"pxctl pipe output {view.name} --stderr")]
    return []
