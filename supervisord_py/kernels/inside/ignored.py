"""Which files git would not look at: the patterns of `.gitignore` (gitignore(5)), as regular expressions.

Law: the last pattern that matches decides; what lies in an ignored folder is ignored, whatever follows.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from re import Pattern


class Rule(NamedTuple):
    """One line of a file of patterns."""

    regex: Pattern[str]
    folders_only: bool
    negated: bool


FILE = ".gitignore"


class Ignoring:
    """The patterns in force in one folder: its own, and those of the folders above it.

    Args:
        folder: Real path.
        above: Those of the folder above, where that belongs to the same repository.
    """

    def __init__(self, folder: str, above: Ignoring | None = None) -> None:
        self.folder = folder
        self.above = above
        self.rules = _rules(os.path.join(folder, FILE))
        if os.path.isdir(os.path.join(folder, ".git")):
            self.above = None
            self.rules = _rules(os.path.join(folder, ".git", "info", "exclude")) + self.rules

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Say whether git ignores `path`, absolute, which lies in this folder or below.

        Args:
            path: Nothing above it is ignored, or it would not be asked for.
            is_folder: What it is.
        """
        level: Ignoring | None = self
        while level is not None:
            relative = os.path.relpath(path, level.folder)
            for rule in reversed(level.rules):
                if (is_folder or not rule.folders_only) and rule.regex.fullmatch(relative):
                    return not rule.negated
            level = level.above
        return False


def ignoring_at(folder: str) -> Ignoring:
    """Return the patterns in force in `folder`, up to the root of the repository that it lies in."""
    folder = os.path.realpath(folder)
    chain = [folder]
    while not os.path.isdir(os.path.join(chain[-1], ".git")):
        above = os.path.dirname(chain[-1])
        if above == chain[-1]:
            return Ignoring(folder)  # in no repository: what lies above has no say
        chain.append(above)
    level: Ignoring | None = None
    for each in reversed(chain):
        level = Ignoring(each, level)
    return level or Ignoring(folder)


def walk(
    root: str, *, hidden: bool, ignored: bool, rules: Ignoring | None = None
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield relative path and entry of all below `root`, each folder before what is in it, sorted by name.

    Args:
        root: A folder; links to folders are shown and not followed, folders that may not be read are left out.
        hidden: Also names with a leading dot; `.git` never.
        ignored: Also what git ignores.
        rules: In force in `root`; found out where not given.
    """
    if rules is None and not ignored:
        rules = ignoring_at(root)
    try:
        with os.scandir(root) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name == ".git" or (entry.name.startswith(".") and not hidden):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules is not None and rules.ignores(os.path.join(rules.folder, entry.name), is_folder=is_folder):
            continue
        yield entry.name, entry
        if is_folder:
            inner = None if rules is None else Ignoring(os.path.join(rules.folder, entry.name), rules)
            for name, below in walk(entry.path, hidden=hidden, ignored=ignored, rules=inner):
                yield entry.name + "/" + name, below


def translated(pattern: str) -> str:
    """Return a glob as a regular expression.

    Args:
        pattern: With `*`, `?`, `[…]` and backslashes as git has them; `**/`, `/**` and `/**/` stand for any folders.
    """
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        piece, position = _piece(pattern, position)
        parts.append(piece)
    return "".join(parts)


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """Translate what stands at `at`; return it and where to go on."""
    char = pattern[at]
    if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
        return "(?:.*/)?", at + 3
    if pattern[at:] == "**" and (at == 0 or pattern[at - 1] == "/"):
        return ".+" if at else ".*", at + 2
    if char == "*":
        while at < len(pattern) and pattern[at] == "*":
            at += 1
        return "[^/]*", at
    if char == "?":
        return "[^/]", at + 1
    if char == "\\":  # one that stands at the end makes a pattern that matches nothing
        return re.escape(pattern[at + 1]) if at + 1 < len(pattern) else "(?!)", at + 2
    if char == "[":
        return _bracket(pattern, at)
    return re.escape(char), at + 1


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Translate a class of characters; one that is not closed matches nothing, as in git."""
    end = at + 1
    if end < len(pattern) and pattern[end] in "!^":
        end += 1
    if end < len(pattern) and pattern[end] == "]":
        end += 1
    while end < len(pattern) and pattern[end] != "]":
        named = _NAMED_CLASS.match(pattern, end)
        end = named.end() if named else end + (2 if pattern[end] == "\\" else 1)
    if end >= len(pattern):
        return "(?!)", len(pattern)
    inside = pattern[at + 1 : end]
    negated = inside[:1] in ("!", "^")
    inside = inside[1:] if negated else inside
    return "(?!/)[" + ("^" if negated else "") + _members(inside) + "]", end + 1


def _members(inside: str) -> str:
    """Write the members of a class so that `re` reads them as git does."""
    return re.sub(r"\[:(\w+):\]|\\(.)|([\[\]^&~|])", _member, inside)


def _member(match: re.Match[str]) -> str:
    if match[1]:
        return _CLASSES.get(match[1], "")
    return re.escape(match[2]) if match[2] else "\\" + match[3]


_NAMED_CLASS = re.compile(r"\[:\w+:\]")
_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "space": " \t\r\n\v\f",
}


def _rules(path: str) -> list[Rule]:
    """Read a file of patterns; one that is not there, or cannot be read, has none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            lines = file.read().split("\n")
    except OSError:
        return []
    rules = (rule_of(line[:-1] if line.endswith("\r") else line) for line in lines)
    return [rule for rule in rules if rule is not None]


def rule_of(line: str) -> Rule | None:
    """Return the rule that a line makes, None where it is empty or a remark."""
    pattern = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line)
    if not pattern or pattern.startswith("#"):
        return None
    negated = pattern.startswith("!")
    pattern = pattern[1:] if negated else pattern
    folders_only = pattern.endswith("/")
    pattern = pattern[:-1] if folders_only else pattern
    anchored = "/" in pattern
    pattern = pattern[1:] if pattern.startswith("/") else pattern
    if not pattern:
        return None
    try:
        regex = re.compile(("" if anchored else "(?:.*/)?") + translated(pattern), re.DOTALL)
    except re.error:  # a class such as [z-a]: nothing matches it
        regex = re.compile("(?!)")
    return Rule(regex, folders_only, negated)
