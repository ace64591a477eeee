"""`pxctl pipe validate`: all that can be said of a pipe before it runs, each with the cure. Blocking; changes nothing.

What a broken file hides is skipped, not guessed. What only other rooms know (agents, presets, times) is told to it:
trouble fails the pipe, a doubt is a warning.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.fields import COMMAND_AGENT
from supervisord_py.pipes.definition import BrokenPipe
from supervisord_py.pipes.scheduling.schedule import Manual
from supervisord_py.pipes.scheduling.wall import shown
from supervisord_py.process.child_environment import read_dotenv

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.pipes.definition import ConfigProblem, Declared, PipeDefinition

NAMES = ("front_matter", "schedule", "agent", "command", "presets", "env_file", "output_folder", "prompt", "keys")
"""The checks in their order."""

_SCHEDULE_KEYS = ("schedule", "schedule_config", "timezone", "trigger")
_COMMAND_KEYS = ("command", "agent")
_OTHERS_READ = stat.S_IRWXG | stat.S_IRWXO


class CheckStatus(StrEnum):
    """How a check came out."""

    PASS = "pass"  # noqa: S105 - the word of the report, no password
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a sentence, the line of `pipe.md` it is about, and what to do; None where there is none."""

    name: str
    status: CheckStatus
    message: str
    line: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other rooms say of a pipe, in sentences.

    Attributes:
        agent: Why its agent cannot run; None when it can.
        agent_doubts: What is odd about agent, version, provider.
        presets: Why its presets do not resolve; None when they do.
        preset: Which preset it would run with, in words.
        preset_doubts: What is odd about them at present.
        schedule: Why its schedule will never start it; None where it may.
        schedule_doubts: What is odd about its times.
    """

    agent: str | None = None
    agent_doubts: tuple[str, ...] = ()
    presets: str | None = None
    preset: str | None = None
    preset_doubts: tuple[str, ...] = ()
    schedule: ConfigProblem | None = None
    schedule_doubts: tuple[str, ...] = ()


def validate(declared: Declared, known: Elsewhere) -> tuple[Check, ...]:
    """Check a pipe, broken or not; one or more checks for each of NAMES, in that order."""
    if isinstance(declared, BrokenPipe):
        return _broken(declared)
    again = f"mend that, then: pxctl pipe validate {declared.name}"
    return (
        _passed("front_matter", "reads"),
        *_told(_schedule(declared, known.schedule), known.schedule_doubts),
        *_told(_said("agent", known.agent, f"{declared.agent} is known", again), known.agent_doubts),
        _command(declared),
        *_told(
            _said("presets", known.presets, known.preset or _presets_text(declared), "mend it, or name another preset"),
            known.preset_doubts,
        ),
        *_told(_env_file(declared.folder), _env_doubts(declared.folder)),
        _output_folder(declared.folder),
        _prompt(declared),
        *(Check("keys", CheckStatus.WARN, each) for each in declared.warnings),
        *(() if declared.warnings else (_passed("keys", "each has its effect"),)),
    )


def _passed(name: str, message: str) -> Check:
    return Check(name, CheckStatus.PASS, message)


def _said(name: str, trouble: str | None, good: str, hint: str) -> Check:
    return _passed(name, good) if trouble is None else Check(name, CheckStatus.FAIL, trouble, None, hint)


def _told(check: Check, doubts: tuple[str, ...]) -> tuple[Check, ...]:
    """Return a check with what is odd; who passes with doubts has warnings only."""
    found = tuple(Check(check.name, CheckStatus.WARN, each) for each in doubts)
    return found if found and check.status is CheckStatus.PASS else (check, *found)


def _broken(pipe: BrokenPipe) -> tuple[Check, ...]:
    """Sort the problems of a broken file to the checks that they belong to; the other checks are skipped."""
    problems = (pipe.problem, *pipe.more)
    failed = [Check(_check_of(each), CheckStatus.FAIL, each.detail, each.line, each.hint) for each in problems]
    found = {each.name for each in failed}
    rest = [Check(name, CheckStatus.SKIP, "pipe.md must be mended first") for name in NAMES[1:] if name not in found]
    if "front_matter" not in found:
        rest.append(_passed("front_matter", "reads"))
    return tuple(sorted([*failed, *rest], key=lambda each: NAMES.index(each.name)))


def _check_of(problem: ConfigProblem) -> str:
    key = "" if "again in line" in problem.detail else (problem.key or "").partition(".")[0]
    if key in _SCHEDULE_KEYS:
        return "schedule"
    if key in _COMMAND_KEYS:
        return "command"
    if key == "preset":
        return "presets"
    return "keys" if key else "front_matter"


def _schedule(pipe: PipeDefinition, trouble: ConfigProblem | None) -> Check:
    if trouble is not None:
        return Check(
            "schedule", CheckStatus.FAIL, trouble.detail.removeprefix("schedule: "), trouble.line, trouble.hint
        )
    if not isinstance(pipe.schedule, Manual):
        return _passed("schedule", pipe.schedule_text)
    if pipe.events:
        return _passed("schedule", f"on {', '.join(each.text for each in pipe.events)}")
    return _passed("schedule", "manual: it runs by hand")


def _command(pipe: PipeDefinition) -> Check:
    if pipe.agent != COMMAND_AGENT:
        return Check("command", CheckStatus.SKIP, f"the agent is {pipe.agent}")
    program = pipe.command[0]
    if os.sep not in program:
        found = shutil.which(program)
        if found:
            return _passed("command", found)
        hint = f"install it, or write ./{program} for a file beside pipe.md"
        return Check("command", CheckStatus.FAIL, f"{shown(program)} is not on the PATH", None, hint)
    path = os.path.join(pipe.folder, program)
    if not os.path.isfile(path):
        hint = "write it, or mend the command"
        return Check("command", CheckStatus.FAIL, f"there is no file {path}", None, hint)
    if not os.access(path, os.X_OK):
        return Check("command", CheckStatus.FAIL, f"{path} is not executable", None, f"chmod u+x {path}")
    return _passed("command", path)


def _presets_text(pipe: PipeDefinition) -> str:
    if pipe.agent == COMMAND_AGENT:
        return "none is needed"
    return ", ".join(pipe.presets) or pipe.model or "the default one"


def _env_file(folder: Path) -> Check:
    name, path = "env_file", folder / ".env"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return _passed(name, "there is none")
    except OSError as error:
        return Check(name, CheckStatus.FAIL, f"{path}: {error.strerror}", None, f"ls -l {path}")
    if not stat.S_ISREG(mode) or not os.access(path, os.R_OK):
        return Check(name, CheckStatus.FAIL, f"{path} is no readable file", None, f"chmod 600 {path}")
    if mode & _OTHERS_READ:
        said = f"{path} holds secrets, and others may read it"
        return Check(name, CheckStatus.WARN, said, None, f"chmod 600 {path}")
    return _passed(name, "nobody else may read it")


def _env_doubts(folder: Path) -> tuple[str, ...]:
    """Say which lines cannot be used: a key with a typo is missed much later, and by others."""
    path = folder / ".env"
    return read_dotenv(path)[1] if os.path.isfile(path) else ()


def _output_folder(folder: Path) -> Check:
    path = folder / "output"
    place = path if os.path.lexists(path) else folder
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        return _passed("output_folder", f"{path} can be written")
    return Check("output_folder", CheckStatus.FAIL, f"{place} cannot be written", None, f"ls -ld {place}")


def _prompt(pipe: PipeDefinition) -> Check:
    if pipe.body:
        return _passed("prompt", f"{len(pipe.body)} characters")
    if pipe.agent == COMMAND_AGENT:
        return _passed("prompt", "empty; the command gets the header lines")
    hint = "say below the closing --- what the agent is to do"
    return Check("prompt", CheckStatus.FAIL, "there is no text below the front matter", None, hint)
