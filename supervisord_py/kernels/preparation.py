"""What is installed before the first kernel of a session can start, as a state of that session.

A session whose interpreter lacks ipykernel is *preparing* while that is installed: everybody who
looks at the session sees how far it is, not only the call that caused it. An install belongs to
nobody: it goes on when its callers leave, and its end is published whoever is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.kernels.interpreters import Build, BuildPlace, BuildWatcher
from supervisord_py.kernels.session import PYTHON, Owner, SessionKey
from supervisord_py.process.events import EventStream
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.live_session import LiveSession, SessionRegister
    from supervisord_py.kernels.session import CallEvent


def publish_end(events: EventStream, session: LiveSession, build: Build, _task: object) -> None:
    """Publish how a build ended, and note why it failed.

    This is a callback of `build.task`: asyncio passes the task as `_task`, which is not needed.
    """
    if session.build is not build:
        # The session was stopped meanwhile, or has another build by now.
        return
    session.build = None
    if build.task.cancelled():
        # The daemon ends, or no caller waited for the install any more.
        return
    error = build.task.exception()
    if error is None:
        events.publish("prepared", session.unit, what=build.install.what, packages=build.packages)
        return
    problem = error if isinstance(error, PxError) else PxError(f"pxd failed: {error!r}")
    session.preparation_problem = problem.problem()
    events.publish(
        "prepare_failed",
        session.unit,
        Reason.SPAWN_FAILED,
        detail=problem.detail,
        hint=problem.hint,
    )


class Preparation(BuildWatcher):
    """One caller of a session, who waits for what has to be installed.

    `tell` hears the events of its call.
    """

    def __init__(self, events: EventStream, tell: Callable[[CallEvent], None]) -> None:
        self.sessions: list[LiveSession] = []  # those for which something was installed, in order
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_left = asyncio.Event()
        self._events = events
        self._tell = tell

    def session_at(self, place: BuildPlace) -> LiveSession:
        """Return the session that the install is for."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        self._tell({"event": "notice", "text": text})

    def report_progress(self, build: Build) -> None:
        log = str(build.install.log)
        self._tell(
            {"event": "preparing", "text": build.text, "packages": build.packages, "log": log}
        )

    def on_build_started(self, build: Build, place: BuildPlace) -> None:
        session = self.session_at(place)
        if session not in self.sessions:
            self.sessions.append(session)
        # A dictionary as an ordered set: `None` stands for no value.
        session.preparations[self] = None
        # Several callers may wait for one build: the first of them makes it known.
        if session.build is not build:
            session.build = build
            session.preparation_problem = None
            what = build.install.what
            log = str(build.install.log)
            self._events.publish("preparing", session.unit, what=what, log=log)
            # `build.task` is set by now, even for a new build: a build starts within its task.
            on_end = partial(publish_end, self._events, session, build)
            build.task.add_done_callback(on_end)
        self.report_progress(build)

    def on_caller_left(self) -> None:
        """Take in that the caller waits for no install any more."""
        for session in self.sessions:
            session.preparations.pop(self, None)
        self.has_left.set()

    def stop(self) -> None:
        """Have the caller give up: its session was stopped."""
        if not self.stopped.done():
            self.stopped.set_result(None)


class CallerPreparation(Preparation):
    """A caller that names its session by name, folder and interpreter: an install makes the
    session.
    """

    def __init__(
        self,
        events: EventStream,
        tell: Callable[[CallEvent], None],
        register: SessionRegister,
        name: str,
        owner: Owner,
    ) -> None:
        super().__init__(events, tell)
        self._register = register
        self._name = name
        self._owner = owner

    def session_at(self, place: BuildPlace) -> LiveSession:
        key = SessionKey(self._name, place.cwd, place.interpreter, place.backend)
        session = self._register.ensure(key, PYTHON, self._owner)
        # The installs for other interpreters have failed: the session is this one, or none, and is
        # told once.
        for other in [each for each in self.sessions if each is not session]:
            self.sessions.remove(other)
            other.preparations.pop(self, None)
            self._register.forget_unused(other)
        return session


class KernelPreparation(Preparation):
    """The start of a kernel in a session that there is, for all who wait for that kernel."""

    def __init__(
        self, events: EventStream, tell: Callable[[CallEvent], None], session: LiveSession
    ) -> None:
        super().__init__(events, tell)
        self._session = session

    def session_at(self, place: BuildPlace) -> LiveSession:
        return self._session
