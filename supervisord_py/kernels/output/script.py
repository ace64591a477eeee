"""Splits a Python script at its `# %%` lines. Pure; joining the parts gives the script back.

A marker is a comment line `# %%` (or `#%%`) followed by nothing or by a blank: `# %%time` is a commented magic, not a
marker. Behind it stand a title, a type in brackets (`[markdown]`, `[md]`, `[raw]`: not code) and `key="value"` pairs
or a JSON object, which say nothing to us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisord_py.kernels.cell import Cell

_MARKER = re.compile(r"#\s?%%(?:[ \t]+(?P<rest>[^\r\n]*?))?[ \t]*(?:\r\n|\n|\r|\Z)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
"""Python's own idea of a line: `str.splitlines` knows more ends than that."""
_TYPE = re.compile(r"\[(\w+)\]")
_PAIRS = re.compile(r"(?:\s|\A)(?:\w[\w.:-]*=(?:\"[^\"]*\"|'[^']*'|\S+)|\{.*\}\s*\Z)")


@dataclass(frozen=True, slots=True)
class ScriptPart:
    """A piece of a script, its marker line included.

    Attributes:
        source: As it stands in the script.
        title: From the marker; None where it has none, or the part has no marker.
        kind: `code`, or the type that the marker names.
    """

    source: str
    title: str | None = None
    kind: str = "code"


def split(script: str) -> tuple[ScriptPart, ...]:
    """Return the parts of a script in order; `"".join(part.source for part in …)` is the script."""
    parts: list[ScriptPart] = []
    lines: list[str] = []
    title, kind = None, "code"
    for line in _LINE.findall(script):
        marker = _MARKER.fullmatch(line)
        if marker is not None:
            if lines:
                parts.append(ScriptPart("".join(lines), title, kind))
                lines = []
            title, kind = _described(marker["rest"] or "")
        lines.append(line)
    if lines:
        parts.append(ScriptPart("".join(lines), title, kind))
    return tuple(parts)


def _described(rest: str) -> tuple[str | None, str]:
    """Return title and type of what stands behind a marker."""
    kind = _TYPE.search(rest)
    title = _PAIRS.sub(" ", _TYPE.sub(" ", rest, count=1))
    return " ".join(title.split()) or None, kind[1].lower() if kind is not None else "code"


def cells_of_script(script: str) -> tuple[Cell, ...]:
    """Return the cells of a script: its code parts that hold more than their marker and blank lines."""
    return tuple(Cell(part.source, part.title) for part in split(script) if part.kind == "code" and _has_code(part))


def _has_code(part: ScriptPart) -> bool:
    return any(line.strip() and not _MARKER.fullmatch(line) for line in _LINE.findall(part.source))
