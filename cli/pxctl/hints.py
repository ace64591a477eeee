"""Next steps in words: the commands in them, as this call has to name them. Pure.

Texts come from the daemon and from commands alike, and name commands without global options. Each
is completed here, in one place, before a person or a program sees it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Any

MEMBERS = frozenset({"hint", "next_step", "repair"})
"""Members of documents that hold a next step."""
_SOLE_COMMAND = re.compile(
    r"(?:see:? |run:? |look with:? )?`?(?P<command>pxctl [^`;,]+?)`?\.?", re.IGNORECASE
)
_GLOBAL = {"--system": 0, "--json": 0, "-q": 0, "--quiet": 0, "--socket": 1, "--color": 1}
"""Global options, and how many words follow each."""


def complete(text: str, options: Sequence[str], commands: Collection[str]) -> str:
    """Return a text in which every command of pxctl has these global options.

    `commands`: the words that may follow `pxctl`; elsewhere the word is the program's name.
    """
    if not options:
        return text
    words = "|".join(sorted(map(re.escape, commands), key=len, reverse=True))
    given = shlex.join(options)
    return re.sub(rf"(?<![\w/.-])pxctl (?=(?:{words})\b(?!:))", lambda _: f"pxctl {given} ", text)


def complete_document(value: Any, options: Sequence[str], commands: Collection[str]) -> Any:
    """Return a document whose next steps are completed, at any depth."""
    if not options:
        return value
    if isinstance(value, list):
        return [complete_document(each, options, commands) for each in value]
    if not isinstance(value, dict):
        return value
    completed: dict[str, Any] = {}
    for name, member in value.items():
        if name in MEMBERS and isinstance(member, str):
            completed[name] = complete(member, options, commands)
        else:
            completed[name] = complete_document(member, options, commands)
    return completed


def names_itself(hint: str, arguments: Sequence[str]) -> bool:
    """Say whether a hint is nothing but the command that was run, whose arguments these are.

    One that is to be run again after another step ("mend the file, then: …") is a next step.
    """
    match = _SOLE_COMMAND.fullmatch(hint.strip())
    if match is None:
        return False
    try:
        words = shlex.split(match["command"])[1:]
    except ValueError:
        return False
    return _without_globals(words) == _without_globals(arguments)


def _without_globals(words: Sequence[str]) -> list[str]:
    """Return the words of a command line without global options; `tool:x` becomes `x`."""
    kept: list[str] = []
    skipped = 0
    for word in words:
        if skipped:
            skipped -= 1
        elif word in _GLOBAL:
            skipped = _GLOBAL[word]
        elif not any(word.startswith(f"{option}=") for option in _GLOBAL):
            kept.append(word.removeprefix("tool:"))
    return kept
