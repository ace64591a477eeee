"""`pxctl pipe validate`: all that can be said of a pipe before it runs, each with the cure. Blocking; changes nothing.

What a broken file hides is skipped, not guessed. What only other rooms know (agents, presets, times) is told to it:
trouble fails the pipe, a doubt is a warning.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.fields import COMMAND_AGENT
from supervisord_py.pipes.models import BrokenPipe
from supervisord_py.pipes.schedule import Manual
from supervisord_py.process.child_environment import read_dotenv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisord_py.pipes.models import ConfigProblem, Declared, PipeDefinition

NAMES = ("front_matter", "schedule", "agent", "command", "presets", "env_file", "output_folder", "prompt", "keys")
"""The checks in their order."""

_CHECKS = {
    **dict.fromkeys(("schedule", "schedule_config", "timezone", "trigger"), "schedule"),
    **dict.fromkeys(("command", "agent"), "command"),
    "preset": "presets",
}
"""Of a broken file: by the key that is wrong."""


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
    """What other rooms say of a pipe, by the name of the check.

    Attributes:
        troubles: Why it cannot run, or never will.
        doubts: What is odd, in sentences.
        found: What is said of a check that passes.
    """

    troubles: Mapping[str, ConfigProblem] = field(default_factory=dict)
    doubts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)


def validate(declared: Declared, known: Elsewhere) -> tuple[Check, ...]:
    """Check a pipe, broken or not; one or more checks for each of NAMES, in that order."""
    if isinstance(declared, BrokenPipe):
        return _broken(declared)
    passed = {
        "front_matter": "reads",
        "schedule": _schedule_text(declared),
        "agent": f"{declared.agent} is known",
        "command": " ".join(declared.command),
        "presets": ", ".join(declared.presets) or declared.model or "none is needed",
        "keys": "each has its effect",
        **known.found,
    }
    folder = declared.folder
    env_doubts = read_dotenv(folder / ".env")[1] if os.path.isfile(folder / ".env") else ()
    doubts = {**known.doubts, "keys": declared.warnings, "env_file": env_doubts}
    own = {check.name: check for check in (_env_file(folder), _output_folder(folder), _prompt(declared))}
    if declared.agent != COMMAND_AGENT:
        own["command"] = Check("command", CheckStatus.SKIP, f"the agent is {declared.agent}")
    checks: list[Check] = []
    for name in NAMES:
        warned = [Check(name, CheckStatus.WARN, each) for each in doubts.get(name, ())]
        check = own.get(name) or Check(name, CheckStatus.PASS, passed.get(name, ""))
        if name in known.troubles:
            check = _failed(name, known.troubles[name])
        checks += warned if warned and check.status is CheckStatus.PASS else [check, *warned]
    return tuple(checks)


def _failed(name: str, problem: ConfigProblem) -> Check:
    return Check(name, CheckStatus.FAIL, problem.detail.removeprefix(f"{name}: "), problem.line, problem.hint)


def _broken(pipe: BrokenPipe) -> tuple[Check, ...]:
    """Sort the problems of a broken file to the checks that they belong to; the other checks are skipped."""
    failed = [_failed(_check_of(each), each) for each in (pipe.problem, *pipe.more)]
    found = {each.name for each in failed}
    rest = [Check(name, CheckStatus.SKIP, "pipe.md must be mended first") for name in NAMES[1:] if name not in found]
    if "front_matter" not in found:
        rest.append(Check("front_matter", CheckStatus.PASS, "reads"))
    return tuple(sorted([*failed, *rest], key=lambda each: NAMES.index(each.name)))


def _check_of(problem: ConfigProblem) -> str:
    key = "" if "again in line" in problem.detail else (problem.key or "").partition(".")[0]
    return _CHECKS.get(key, "keys" if key else "front_matter")


def _schedule_text(pipe: PipeDefinition) -> str:
    if not isinstance(pipe.schedule, Manual):
        return pipe.schedule_text
    return f"on {', '.join(each.text for each in pipe.events)}" if pipe.events else "manual: it runs by hand"


def _env_file(folder: Path) -> Check:
    name, path = "env_file", folder / ".env"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Check(name, CheckStatus.PASS, "there is none")
    except OSError as error:
        return Check(name, CheckStatus.FAIL, f"{path}: {error.strerror}", None, f"ls -l {path}")
    if not stat.S_ISREG(mode) or not os.access(path, os.R_OK):
        return Check(name, CheckStatus.FAIL, f"{path} is no readable file", None, f"chmod 600 {path}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = f"{path} holds secrets, and others may read it"
        return Check(name, CheckStatus.WARN, said, None, f"chmod 600 {path}")
    return Check(name, CheckStatus.PASS, "nobody else may read it")


def _output_folder(folder: Path) -> Check:
    path = folder / "output"
    place = path if os.path.lexists(path) else folder
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        return Check("output_folder", CheckStatus.PASS, f"{path} can be written")
    return Check("output_folder", CheckStatus.FAIL, f"{place} cannot be written", None, f"ls -ld {place}")


def _prompt(pipe: PipeDefinition) -> Check:
    if pipe.body or pipe.agent == COMMAND_AGENT:
        return Check("prompt", CheckStatus.PASS, f"{len(pipe.body)} characters")
    hint = "say below the closing --- what the agent is to do"
    return Check("prompt", CheckStatus.FAIL, "there is no text below the front matter", None, hint)
