"""Reads the exception that ended a program out of what it wrote to stderr. Pure: text in, values
out.

A traceback is a header, frames that are indented, and one line that names the exception. Loggers
put words before the header ("ERROR:    Traceback …") or before every line; exception groups put a
margin before every line (`  | `). Python writes an error of syntax in the main program without a
header, and Node writes the exception first and its frames after it.

What follows a traceback, or stands between two of them, is not read: servers write lines of their
own after the exception that ends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEADER = re.compile(
    r"^(?P<before>.*?)(?:Exception Group )?Traceback \(most recent call last\):\s*$"
)
_FRAME = re.compile(r'^[ >]+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_RAISED = re.compile(r"^(?P<type>[^\W\d][\w.<>]*)(?::(?P<message>.*))?$")
_SYNTAX = frozenset({"SyntaxError", "IndentationError", "TabError"})
_LEVELS = frozenset({"DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL", "TRACE"})
"""Words before a colon that are no names of exceptions: the line of another thread's log."""
_MARGIN = re.compile(r"^ *[|+] ?")
_MEMBER = re.compile(r"^ *\+[-+]*-{3,} ?(?:\d+|\.\.\.) -{3,}$")
_OF_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")
_LINK = re.compile(
    r"^(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):$"
)
_DETAIL_LINES = 8
_NODE_RAISED = re.compile(
    r"^(?:Uncaught )?(?P<type>(?:[A-Z]\w*)?(?:Error|Exception))(?: \[\w+\])?: (?P<message>.*)$"
)
_NODE_FRAME = re.compile(
    r"^ +at (?:(?P<function>.+) \()?(?:file://)?(?P<file>[^()]+):(?P<line>\d+):\d+\)?(?: \{)?$"
)
_NODE_PLACE = re.compile(r"^(?:file://)?(?P<file>/.+):(?P<line>\d+)$")
_NODE_LINES_BEFORE = 6  # the place of the fault, the line of the program and a mark below it
_NODE_LINES = 40  # between an exception of Node and its first frame: the "Require stack"


class Frame(NamedTuple):
    """Where a call was: the file as the program names it, and the line."""

    file: str
    line: int
    function: str = ""


class Raised(NamedTuple):
    """An exception that a program reported, with the frames of its traceback, the innermost last.

    `message` is its first line, "" where there is none, and `details` are the lines up to the next
    blank one. `earlier` are the exceptions that led to it (its causes and contexts), the oldest
    first. Of an exception group this is the first member.
    """

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    earlier: tuple[Raised, ...] = ()
    details: tuple[str, ...] = ()
    end: int = 0  # the number of lines up to the end of it

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def last_exception(text: str) -> Raised | None:
    """Return the last exception of which a whole traceback stands in `text`; None where there is
    none.
    """
    lines = _COLOUR.sub("", text).splitlines()
    of_python = _last_of_python(lines)
    of_node = _last_of_node(lines)
    if of_python is None or of_node is None:
        return of_python or of_node
    return max(of_python, of_node, key=lambda raised: raised.end)


def place_in(raised: Raised, folder: str) -> Frame | None:
    """Return the innermost frame of the program's own code, whose files lie in `folder`.

    An exception that a library raised on its own is looked up in what led to it. A path that is
    not absolute is taken as one below the folder. Files of a virtual environment or of Node's
    modules are not the program's own.
    """
    for each in (raised, *reversed(raised.earlier)):
        for frame in reversed(each.frames):
            if _is_own(frame.file, folder):
                return frame
    return None


def _is_own(file: str, folder: str) -> bool:
    if any(part in file for part in ("/.venv/", "/node_modules/", "/site-packages/")):
        return False
    is_relative = file[:1] not in {"/", "<"} and not file.startswith("node:")
    return is_relative or file.startswith(f"{folder}/")


# -- Python -------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """One exception as it stands in the text, and how it belongs to the one before it."""

    raised: Raised
    depth: int  # width of the margin of a group's member; 0 outside of groups
    is_linked: bool  # it was raised while the one before it was handled
    is_group: bool


def _last_of_python(lines: Sequence[str]) -> Raised | None:
    """Return the last exception with what led to it; of a group the first member that has a
    traceback.
    """
    story: list[_Block] = []
    for block in _blocks(lines):
        is_member = bool(story) and block.depth > story[0].depth and story[0].is_group
        if not block.is_linked and not is_member:
            story = []
        story.append(block)
    if not story:
        return None
    end = story[-1].raised.end
    top = [block for block in story if block.depth == story[0].depth]
    last = top[-1]
    if last.is_group:
        # The group itself says no more than how many there are.
        members = [block for block in story[story.index(last) + 1 :] if not block.is_group]
        if members:
            led_to_it = tuple(block.raised for block in top)
            return members[0].raised._replace(earlier=led_to_it, end=end)
    led_to_it = tuple(block.raised for block in top[:-1])
    return last.raised._replace(earlier=led_to_it, end=end)


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield each exception whose traceback is whole, in the order of the text."""
    number = 0
    is_linked = False
    while number < len(lines):
        is_member = _MEMBER.match(lines[number]) is not None
        if is_member:
            # The separator above a member of a group: the member begins with the next line.
            number += 1
            if number == len(lines):
                return
        line, depth = _without_margin(lines[number])
        header = _HEADER.match(line)
        is_block_start = is_member or header is not None or _FRAME.match(line) is not None
        if not is_block_start:
            # Blank lines stand around the sentence that links two exceptions; any other line
            # separates them.
            sentence = line.strip()
            if sentence:
                is_linked = _LINK.match(sentence) is not None
            number += 1
            continue
        first_frame = number
        before = ""
        if header is not None:
            first_frame = number + 1
            before = header["before"]
        raised = _read_block(lines, first_frame, before, depth)
        if raised is None:
            number = first_frame + 1
            is_linked = False
            continue
        # Without a header it may be the rest of a traceback whose beginning is cut off. Python
        # writes members of groups and errors of syntax without one.
        is_whole = header is not None or is_member or raised.type in _SYNTAX
        if is_whole:
            is_group = _OF_GROUP.search(raised.message) is not None
            yield _Block(raised, depth, is_linked, is_group)
        is_linked = False
        number = raised.end


def _without_margin(line: str) -> tuple[str, int]:
    """Return a line without the margin that an exception group gives it, and how wide that is."""
    margin = _MARGIN.match(line)
    if margin is None or line.startswith(("|", "+")):
        return line, 0
    return line[margin.end() :], len(margin[0].rstrip())


def _read_block(lines: Sequence[str], first_frame: int, before: str, depth: int) -> Raised | None:
    """Read frames and the line that names the exception, from the line `first_frame` on.

    `before`: what a logger wrote before the header, and perhaps before every line. Returns None
    where the text ends first, or something else comes.
    """
    frames: list[Frame] = []
    for number in range(first_frame, len(lines)):
        line = lines[number]
        if depth:
            line = _without_margin(line)[0]
        if before:
            line = line.removeprefix(before)
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            continue
        if not line.strip() or line[0].isspace():
            continue  # a line of the program, or marks below it
        named = _RAISED.match(line)
        if named is not None and named["type"] not in _LEVELS:
            details = _details(lines[number + 1 : number + 1 + _DETAIL_LINES])
            message = (named["message"] or "").strip()
            if named["message"] and not message and details:
                message = details[0].strip()  # it begins with a line break
            return Raised(named["type"], message, tuple(frames), (), details, number + 1)
        if _HEADER.match(line) or _LINK.match(line):
            return None
    return None


def _details(following: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a message after its first one, as far as they can be told from other
    output.
    """
    details: list[str] = []
    for line in following:
        if not line.strip():
            break
        details.append(line)
    return tuple(details)


# -- Node ---------------------------------------------------------------------------------------


def _last_of_node(lines: Sequence[str]) -> Raised | None:
    for number in range(len(lines) - 1, -1, -1):
        named = _NODE_RAISED.match(lines[number])
        if named is None:
            continue
        frames: list[Frame] = []
        end = number + 1
        for later in range(number + 1, min(len(lines), number + _NODE_LINES)):
            frame = _NODE_FRAME.match(lines[later])
            if frame is not None:
                frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
                end = later + 1
            elif frames and not lines[later].startswith(" "):
                break
        if frames:
            frames.reverse()
            frames += _node_place(lines[max(0, number - _NODE_LINES_BEFORE) : number])
            return Raised(named["type"], named["message"].strip(), tuple(frames), end=end)
    return None


def _node_place(before: Sequence[str]) -> list[Frame]:
    """Return where a file could not be parsed, which is in no frame; nothing where that is not
    told.
    """
    for line in before:
        place = _NODE_PLACE.match(line)
        if place is not None:
            return [Frame(place["file"], int(place["line"]))]
    return []
