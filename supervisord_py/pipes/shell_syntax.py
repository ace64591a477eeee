"""Whether a command line is written for a shell, and how it is written for one here. Pure.

A command is split into words and run without a shell. What only a shell understands would become an
argument of the first program, which then ends well and has done a part of the work; so it is
refused, and the cure is told. What is quoted or escaped is an argument, whatever it holds.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

# Words of a shell that are no programs; `cd` and `umask` exist as programs of some systems, and
# change nothing there.
_BUILTINS = frozenset((
    ".", "alias", "case", "cd", "declare", "eval", "exec", "exit", "export", "for", "function",
    "if", "let", "local", "popd", "pushd", "readonly", "return", "set", "shopt", "source", "trap",
    "ulimit", "umask", "unset", "until",
    "while", "{", "!", "[[",
))  # fmt: skip
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_OPERATOR = re.compile(r"&&|\|\||\|&?|;;?|[0-9]*(?:<<<?|<\(|>>|<>|[<>]&[0-9-]?|&>>?|[<>]\|?)")
_IN_THE_BACKGROUND = re.compile(r"&(?=\s)|&$")
_OF_BASH = re.compile(
    r"(?:^|[\s;&|])(?:\[\[|declare|function|local|popd|pushd|shopt)\s|<<<|<\(|&>|\|&"
)
_SOURCE = re.compile(r"(?P<before>^|[;&|{(\n]\s*)source\s+(?P<file>[^\s;&|]+)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][^}]*\})")
_GLOB = re.compile(r"[*?]|\[[^\]\s]+\]")
_TILDE = re.compile(r"(?<!\S)~(?=[/\s]|$|[A-Za-z_])[^\s]*")
_CHAINS = frozenset(("&&", "||"))
_LINE_GOES_ON = re.compile(r"\\\r?\n")


class Piece(NamedTuple):
    """A stretch of a command line that stands in one kind of quotes."""

    text: str
    quote: str  # one of `'`, `"`, `\\` for an escaped character, and the empty string for none


def pieces_of(text: str) -> Iterator[Piece]:
    """Yield the stretches of a command line, in order, without their quotes."""
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            yield Piece(text[at + 1 : at + 2], "\\")
            at += 2
        elif sign in "'\"":
            end = at + 1
            while end < len(text) and text[end] != sign:
                # Within double quotes a backslash takes the next character along, within single
                # ones it is none.
                end += 2 if sign == '"' and text[end] == "\\" else 1
            yield Piece(text[at + 1 : end], sign)
            at = end + 1
        else:
            end = at
            while end < len(text) and text[end] not in "\\'\"":
                end += 1
            yield Piece(text[at:end], "")
            at = end


def joined_lines(text: str) -> str:
    """Join lines that end with a backslash, as a shell does."""
    return _LINE_GOES_ON.sub("", text)


def shell_syntax(text: str) -> str | None:
    """Return what of a command line only a shell understands, in words; None where it can be run
    without one.
    """
    text = joined_lines(text).strip()
    first_word = text.split(maxsplit=1)[0] if text else ""
    if first_word in _BUILTINS:
        return f"`{first_word}` is a word of the shell, and no program"
    if _ASSIGNMENT.match(first_word):
        return f"`{first_word.partition('=')[0]}=…` before a program is read by a shell only"
    if first_word.startswith("("):
        return "`(` is read by a shell only"
    for piece in pieces_of(text):
        found = _in_piece(piece)
        if found is not None:
            return found
    return None


def _in_piece(piece: Piece) -> str | None:
    if piece.quote in {"'", "\\"}:
        return None
    if "$(" in piece.text:
        return "`$(…)` is read by a shell only"
    if "`" in piece.text:
        return "a command in backticks is read by a shell only"
    if piece.quote:
        return None
    if "\n" in piece.text:
        return "it has several lines, which are several commands to a shell only"
    operator = _OPERATOR.search(piece.text)
    if operator is not None:
        return f"`{operator[0]}` is read by a shell only"
    # An `&` inside of a word is left alone: it stands between the parameters of an address.
    if _IN_THE_BACKGROUND.search(piece.text):
        return "`&` is read by a shell only"
    return None


def unexpanded(text: str) -> str | None:
    """Return the first word of a command line that a shell would replace, and that is passed on as
    it stands.

    That is a variable, a pattern of file names, or `~`. What is quoted is meant as it stands, but
    for a variable in double quotes. The program itself may begin with `~/`: it is looked for in the
    home directory.
    """
    starts_word = is_program = True
    for piece in pieces_of(joined_lines(text).strip()):
        variable = _VARIABLE.search(piece.text) if piece.quote in {"", '"'} else None
        if variable is not None:
            return variable[0]
        if not piece.quote:
            pattern = _file_pattern(piece.text)
            if pattern is not None:
                return pattern
            for found in _TILDE.finditer(piece.text):
                at_start = found.start() > 0 or starts_word
                if at_start and not (is_program and found.start() == 0):
                    return found[0]
        starts_word = not piece.quote and piece.text[-1:].isspace()
        is_program = False
    return None


def _file_pattern(text: str) -> str | None:
    """Return the first word of unquoted text in which a shell would look for names of files;
    None without one.
    """
    for word in text.split():
        # An address is one of no file: a shell would leave it as it is.
        if "://" not in word and _GLOB.search(word):
            return word
    return None


def shell_words(words: list[str]) -> str | None:
    """Return the command line for a shell that a list of words was meant to be; None where it is
    run as it stands.

    A word of a list is an argument, whatever it holds. So only what cannot be one counts: a first
    word that is no program, and `&&` or `||` as a word.
    """
    first_word = words[0]
    if len(words) == 1:
        # One text for all: a program whose name holds an operator is not meant.
        return first_word if " " in first_word and shell_syntax(first_word) is not None else None
    is_for_a_shell = (
        first_word in _BUILTINS or _ASSIGNMENT.match(first_word) or _CHAINS.intersection(words)
    )
    if not is_for_a_shell:
        return None
    return " ".join(word if _OPERATOR.fullmatch(word) else _quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Quote a word for a shell; of `NAME=value` the value alone, as a quoted name is that of a
    program.
    """
    assignment = _ASSIGNMENT.match(word)
    if assignment is None:
        return shlex.quote(word)
    return f"{assignment[0]}{shlex.quote(word[assignment.end() :])}"


def for_a_shell(text: str) -> str:
    """Return the value of `command` that has a shell run a text, as YAML."""
    text = joined_lines(text).strip()
    shell = "bash" if _OF_BASH.search(text) else "sh"
    # The standard's word for it; without a slash its file would be looked for on the PATH.
    text = _SOURCE.sub(_dot_of, text)
    if "\n" in text:
        # A script of several lines ends with the first one that fails.
        return f"[{shell}, -ec, {json.dumps(text, ensure_ascii=False)}]"
    quoted = text.replace("'", "''")
    return f"[{shell}, -c, '{quoted}']"


def _dot_of(found: re.Match[str]) -> str:
    file = found["file"]
    if "/" not in file:
        file = f"./{file}"
    return f"{found['before']}. {file}"


def split(text: str) -> list[str]:
    """Split a command line into words. Raises ValueError: a quote is not closed."""
    return shlex.split(joined_lines(text))
