"""Goes through the candidates in their order and takes the first that runs; why the others were not is kept.

What somebody named is taken or refused, never replaced by something else. An interpreter without ipykernel gets the
overlay for it, which is built where that is allowed; else the next candidate has its turn.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, InvalidInputError, PxError, StartFailedError
from supervisord_py.kernels.choosing import places
from supervisord_py.kernels.choosing.candidates import MANAGED, Source
from supervisord_py.kernels.choosing.choice import OLDEST, Attempt, Verdict
from supervisord_py.kernels.choosing.installs import (
    BuildFailedError,
    Installers,
    add_ipykernel,
    find_installers,
    overlay_plan,
    part_of,
)
from supervisord_py.kernels.choosing.probe import Interpreter, Trouble, activation_of, find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.choosing.candidates import Candidate
    from supervisord_py.kernels.choosing.choice import Explanation
    from supervisord_py.kernels.choosing.environment import Activation
    from supervisord_py.kernels.choosing.installs import BuildPlan, Builds
    from supervisord_py.kernels.choosing.probe import Probe, Question
    from supervisord_py.process.child_environment import Environment

MISSING = "missing"
CHOOSE_ANOTHER = "pxctl kernel start --explain"


class Build(Enum):
    """Whether something may be built on the way."""

    NEVER = "never"
    ALLOWED = "allowed"


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
            named = look.verdict is Verdict.NOT_BUILT and candidate.source.decisive
            return _Trial(_failed(candidate, candidate.shown, look), buildable=named)
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


def _taken(candidate: Candidate, asked: Interpreter, overlay: str | None) -> _Trial:
    """Take it. A shim found on PATH gives way to what it leads to; what somebody named by its path stays."""
    path = asked.executable if asked.shim and candidate.source is Source.PATH else asked.path
    runs = f"runs, with the overlay {overlay}" if overlay else f"runs, with ipykernel {asked.ipykernel}"
    attempt = Attempt(candidate.source, path, Verdict.TAKEN, runs, asked.version_text)
    return _Trial(attempt, Chosen(path, asked.activation, overlay))


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


# -- when none runs ----------------------------------------------------------------------------------------------------


class NoneRunsError(Exception):
    """No candidate runs. Goes no further than the door of this room, which turns it into a `PxError`.

    Attributes:
        explanation: What was tried.
        buildable: An overlay, if it may be built, would do.
    """

    def __init__(self, explanation: Explanation, *, buildable: bool) -> None:
        super().__init__(explanation.failure)
        self.explanation = explanation
        self.buildable = buildable


def sentence(attempts: tuple[Attempt, ...]) -> str:
    """Say why there is no interpreter."""
    if len(attempts) == 1:
        return f"the interpreter {attempts[0].sentence}"
    there = [each for each in attempts if each.passed_over]
    if there:
        return f"no Python for cells: {'; '.join(each.sentence for each in there)}"
    return f"no Python for cells: none of {', '.join(each.path for each in attempts)} is there"


def error_of(none: NoneRunsError) -> PxError:
    """Return the error for a call: what was named in a request is input, in a setting configuration."""
    explanation = none.explanation
    detail, attempts = explanation.failure or "no Python for cells", explanation.attempts
    source = attempts[0].source if attempts else Source.PATH
    hint = _hint(explanation)
    if source is Source.REQUEST:
        errors = [{"pointer": "/interpreter", "message": detail}]
        return InvalidInputError(detail, hint=hint, errors=errors, explanation=explanation.document())
    if source is Source.SETTING:
        return ConfigError(detail, hint=hint, key=source.value, explanation=explanation.document())
    if source is Source.KERNELSPEC:
        return ConfigError(detail, hint=hint, kernelspec=explanation.kernelspec, explanation=explanation.document())
    return StartFailedError(
        detail, hint=hint, reason="spawn_failed", stage="interpreter", explanation=explanation.document()
    )


def _hint(explanation: Explanation) -> str:
    remedy = next((each.remedy for each in explanation.attempts if each.remedy), None)
    if remedy is not None:
        return remedy
    if any(each.source.decisive for each in explanation.attempts):
        return CHOOSE_ANOTHER
    venv = shlex.quote(f"{explanation.cwd.rstrip('/')}/.venv")
    return f"python3 -m venv {venv} && {venv}/bin/python -m pip install ipykernel"


def managed_is_off(*, by_request: bool) -> PxError:
    """Return the error for the managed environment where the settings turn it off."""
    detail = "the managed environment is turned off by [kernels] managed = false"
    hint = "PX_KERNELS__MANAGED=true, or name another interpreter"
    if by_request:
        return InvalidInputError(detail, hint=hint, errors=[{"pointer": "/interpreter", "message": detail}])
    return ConfigError(f"kernels.python = {MANAGED!r}, but {detail}", hint=hint, key=Source.SETTING.value)


def two_interpreters(kernelspec: str) -> InvalidInputError:
    """Return the error for a request that names an interpreter and a kernelspec that has its own."""
    detail = f"the kernelspec {kernelspec} says itself what it runs; no other interpreter can be named beside it"
    errors = [{"pointer": "/interpreter", "message": detail}]
    return InvalidInputError(detail, hint="name the one or the other", errors=errors)
