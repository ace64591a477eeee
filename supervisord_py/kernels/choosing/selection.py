"""Goes through the candidates in their order and takes the first that runs; why the others were not is kept.

Law: what somebody named is taken or refused, never replaced by something else. An interpreter without ipykernel gets
the overlay for it, which is built where that is allowed; else the next candidate has its turn. An explanation takes
what a start would build for it as built, and says so.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.kernels.choosing import places
from supervisord_py.kernels.choosing.building import BuildFailedError, part_of
from supervisord_py.kernels.choosing.candidates import Source
from supervisord_py.kernels.choosing.explanation import OLDEST, Attempt, Verdict
from supervisord_py.kernels.choosing.installers import Installers, add_ipykernel, find_installers, overlay_plan
from supervisord_py.kernels.choosing.probe import Interpreter, Trouble, activation_of, find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.choosing.building import Builds
    from supervisord_py.kernels.choosing.candidates import Candidate
    from supervisord_py.kernels.choosing.environment import Activation, Environment
    from supervisord_py.kernels.choosing.installers import BuildPlan
    from supervisord_py.kernels.choosing.probe import Probe, Question

MISSING = "missing"
WOULD_BE, FIRST = "would be taken", "built first"
"""How an explanation tells of what a start builds before it takes it."""


class Build(Enum):
    """What may be built on the way. `FORESEEN`: nothing, but what a start would build is taken as if it were there."""

    NEVER = "never"
    ALLOWED = "allowed"
    FORESEEN = "foreseen"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The interpreter that was taken.

    Attributes:
        path: To start kernels with.
        overlay: To be appended to its sys.path; None where it has an ipykernel of its own, or was not asked.
    """

    path: str
    activation: Activation
    overlay: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What came of the candidates.

    Attributes:
        buildable: Some candidate lacks only what could be built.
    """

    attempts: tuple[Attempt, ...]
    chosen: Chosen | None = None
    buildable: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How the candidates are gone through.

    Attributes:
        question: How each is asked.
        build_env: Makes the environment of builders.
        path: PATH on which installers are looked for.
        build: Whether overlays may be built.
        skip_check: Take the first that exists.
        tell: Gets the lines of builds.
    """

    question: Question
    build_env: Callable[[], Environment]
    path: str
    build: Build
    skip_check: bool
    tell: Callable[[str], None]


class Selector:
    """Chooses among candidates."""

    def __init__(self, probe: Probe, builds: Builds) -> None:
        self._probe = probe
        self._builds = builds

    async def select(self, candidates: Sequence[Candidate], policy: Policy) -> Selection:
        """Return the first that runs, with what was said of each."""
        now = asyncio.get_running_loop().time()
        looks = await asyncio.to_thread(self._look_at, candidates, policy.question, now)
        attempts: list[Attempt] = []
        chosen: Chosen | None = None
        buildable = False
        for candidate, look in zip(candidates, looks, strict=True):
            if chosen is not None:
                attempts.append(_not_needed(candidate, look))
                continue
            trial = await self._try(candidate, look, policy)
            attempts.append(trial.attempt)
            chosen, buildable = trial.chosen, buildable or trial.buildable
        return Selection(tuple(attempts), chosen, buildable)

    def _look_at(
        self, candidates: Sequence[Candidate], question: Question, now: float
    ) -> list[Interpreter | str | Trouble]:
        """Return for each candidate what is known, else where it is, else why it is nowhere."""
        looks: list[Interpreter | str | Trouble] = []
        for candidate in candidates:
            found = _unbuilt(candidate) or _foreign(candidate, question.cwd) or find(candidate)
            known = self._probe.recall(found, question, now) if isinstance(found, str) else None
            looks.append(known or found)
        return looks

    async def _try(self, candidate: Candidate, look: Interpreter | str | Trouble, policy: Policy) -> _Trial:
        if isinstance(look, Trouble):
            return await asyncio.to_thread(_absent, candidate, look, policy.build)
        if policy.skip_check:
            return await asyncio.to_thread(_unasked, candidate, look if isinstance(look, str) else look.path)
        asked = await self._probe.ask(look, policy.question) if isinstance(look, str) else look
        if isinstance(asked, Trouble):
            return _Trial(_failed(candidate, str(look), asked))
        if asked.too_old:
            detail = f"is Python {asked.version_text}; kernels need {OLDEST[0]}.{OLDEST[1]} or newer"
            return _Trial(Attempt(candidate.source, asked.path, Verdict.TOO_OLD, detail, asked.version_text))
        if not asked.lacking:
            return _taken(candidate, asked, None)
        return await self._with_overlay(candidate, asked, policy)

    async def _with_overlay(self, candidate: Candidate, asked: Interpreter, policy: Policy) -> _Trial:
        """Take an interpreter without ipykernel with its overlay, built now where it may be."""
        if asked.overlay_works:
            return _taken(candidate, asked, asked.overlay)
        installers = await asyncio.to_thread(find_installers, policy.path)
        lack = f"has no {asked.lacking[0]}"
        if asked.overlay_trouble != MISSING:
            why = f"{lack}, and the overlay for it does not fit ({asked.overlay_trouble})"
            return _Trial(_lacking(candidate, asked, installers, why))
        plan = overlay_plan(asked, installers)
        if plan is not None and policy.build is Build.ALLOWED:
            return await self._built(candidate, asked, policy, plan, installers)
        if plan is not None and policy.build is Build.FORESEEN:
            return _taken(candidate, asked, asked.overlay, f"{lack}; {WOULD_BE}; an overlay with ipykernel is {FIRST}")
        why = f"{lack}, and there is no overlay for it"
        return _Trial(_lacking(candidate, asked, installers, why), buildable=plan is not None)

    async def _built(
        self, candidate: Candidate, asked: Interpreter, policy: Policy, plan: BuildPlan, installers: Installers
    ) -> _Trial:
        """Build the overlay of an interpreter and ask it again."""
        lack = f"has no {asked.lacking[0]}"
        try:
            await self._builds.ensure(plan, policy.build_env(), policy.tell)
        except BuildFailedError as error:
            return _Trial(_lacking(candidate, asked, installers, f"{lack}, and {error.detail}"))
        again = await self._probe.ask(asked.path, policy.question, anew=True)
        if isinstance(again, Interpreter) and again.overlay_works:
            return _taken(candidate, again, again.overlay)
        trouble = again.overlay_trouble if isinstance(again, Interpreter) else again.detail
        return _Trial(_lacking(candidate, asked, installers, f"{lack}, and the overlay does not fit ({trouble})"))


@dataclass(frozen=True, slots=True)
class _Trial:
    """What came of one candidate."""

    attempt: Attempt
    chosen: Chosen | None = None
    buildable: bool = False


def _unbuilt(candidate: Candidate) -> Trouble | None:
    """Say that the managed environment is not there, or not whole."""
    own = not candidate.source.environment or candidate.source is Source.MANAGED
    if candidate.root is None or not own:
        return None
    if os.path.lexists(part_of(Path(candidate.root))):
        return Trouble(Verdict.NOT_BUILT, "is half built")
    return None if os.path.isdir(candidate.root) else Trouble(Verdict.NOT_BUILT, "is not built")


def _foreign(candidate: Candidate, cwd: str) -> Trouble | None:
    """Refuse what somebody else put into a directory of all (`/tmp/.venv`): it would run as us."""
    if candidate.source not in {Source.DOT_VENV, Source.VENV} or candidate.root is None:
        return None
    if places.is_trusted(candidate.root, cwd):
        return None
    return Trouble(Verdict.NOT_TRUSTED, "belongs to somebody else than its directory; name it to use it")


def _taken(candidate: Candidate, asked: Interpreter, overlay: str | None, detail: str | None = None) -> _Trial:
    """Take it. A shim found on PATH gives way to what it leads to; what somebody named by its path stays."""
    path = asked.executable if asked.shim and candidate.source is Source.PATH else asked.path
    runs = f"runs, with the overlay {overlay}" if overlay else f"runs, with ipykernel {asked.ipykernel}"
    attempt = Attempt(candidate.source, path, Verdict.TAKEN, detail or runs, asked.version_text)
    return _Trial(attempt, Chosen(path, asked.activation, overlay))


def _absent(candidate: Candidate, look: Trouble, build: Build) -> _Trial:
    """Pass over what is not there; take the managed environment that somebody named, where a start would build it."""
    wanted = look.verdict is Verdict.NOT_BUILT and candidate.source.decisive
    if not wanted or build is not Build.FORESEEN:
        return _Trial(_failed(candidate, candidate.shown, look), buildable=wanted)
    path = candidate.paths[0]
    attempt = Attempt(candidate.source, path, Verdict.TAKEN, f"{look.detail}; {WOULD_BE}; it is {FIRST}")
    return _Trial(attempt, Chosen(path, activation_of(path)))


def _unasked(candidate: Candidate, path: str) -> _Trial:
    attempt = Attempt(candidate.source, path, Verdict.TAKEN, "exists; it was not asked, by setting")
    return _Trial(attempt, Chosen(path, activation_of(path)))


def _failed(candidate: Candidate, path: str, trouble: Trouble) -> Attempt:
    return Attempt(candidate.source, path, trouble.verdict, trouble.detail)


def _lacking(candidate: Candidate, asked: Interpreter, installers: Installers, why: str) -> Attempt:
    attempt = Attempt(candidate.source, asked.path, Verdict.NO_IPYKERNEL, why, asked.version_text)
    return replace(attempt, remedy=add_ipykernel(asked, installers))


def _not_needed(candidate: Candidate, look: Interpreter | str | Trouble) -> Attempt:
    """Tell of one whose turn did not come: that it is not there is known all the same."""
    if isinstance(look, Trouble):
        return _failed(candidate, candidate.shown, look)
    path = look if isinstance(look, str) else look.path
    return Attempt(candidate.source, path, Verdict.NOT_NEEDED, "was not needed: an earlier one runs")
