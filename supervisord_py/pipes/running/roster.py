"""All executions that are not final, by id and by pipe. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import Status

if TYPE_CHECKING:
    from supervisord_py.pipes.running.live_run import LiveRun


class Roster:
    """Who is at work, and who waits."""

    def __init__(self) -> None:
        self._runs: dict[int, LiveRun] = {}
        self._of_pipes: dict[str, dict[int, LiveRun]] = {}

    def add(self, live: LiveRun) -> None:
        """Take one in."""
        self._runs[live.id] = self._of_pipes.setdefault(live.pipe, {})[live.id] = live

    def remove(self, live: LiveRun) -> None:
        """Forget one whose row is final."""
        self._runs.pop(live.id, None)
        of_pipe = self._of_pipes.get(live.pipe, {})
        of_pipe.pop(live.id, None)
        if not of_pipe:
            self._of_pipes.pop(live.pipe, None)

    def get(self, execution: int) -> LiveRun | None:
        """Return one by id."""
        return self._runs.get(execution)

    def all(self) -> tuple[LiveRun, ...]:
        """Return everyone, oldest first."""
        return tuple(self._runs[key] for key in sorted(self._runs))

    def refused_output(self) -> dict[str, str]:
        """Return the units whose output the disk refuses at present, and why."""
        following = ((it.execution.unit, it.following) for it in self.all())
        return {unit: it.trouble for unit, it in following if it is not None and it.trouble is not None}

    def of_pipe(self, pipe: str) -> tuple[LiveRun, ...]:
        """Return those of one pipe, oldest first."""
        found = self._of_pipes.get(pipe, {})
        return tuple(found[key] for key in sorted(found))

    def count(self, pipe: str) -> int:
        """Return how many there are of one pipe."""
        return len(self._of_pipes.get(pipe, ()))

    def running(self, pipe: str) -> LiveRun | None:
        """Return the one of a pipe that runs."""
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[LiveRun, ...]:
        """Return those of a pipe that wait, oldest first."""
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)
