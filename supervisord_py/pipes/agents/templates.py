"""Fills the gaps that adapters leave in texts: `{model}`, `{url|http://localhost}`, `{url:json|x}`. Pure.

A gap without a value is *missing*, which is not the empty text: an optional piece of an argv, a variable and a member
of a JSON file are left out then. Other braces are ordinary text, so that JSON and `{env:NAME}` need no escaping.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Values = Mapping[str, str | int | float | None]

GAPS: Mapping[str, str] = {
    "provider": "of the preset; `custom` where it has only a url",
    "model": "of the preset",
    "effort": "low, medium or high",
    "url": "of the preset, or the adapter's own for the provider",
    "url_root": "the same without a trailing /v1",
    "api": "wire protocol at the url",
    "key": "the key itself; only in env",
    "key_reference": "how the agent's file names the key",
    "context_window": "in tokens",
    "max_tokens": "of an answer",
    "input_cost": "US dollars for a million tokens",
    "output_cost": "US dollars for a million tokens",
    "prompt": "the prompt itself; only in prompt_argv",
    "prompt_file": "path of the file that holds the prompt",
    "run_dir": "the execution's private folder",
    "agent_dir": "where the adapter's files are",
    "session_dir": "where the pipe's sessions are kept",
    "output_dir": "where the agent is to write",
    "pipe_dir": "the pipe's folder",
    "pipe": "the pipe's name",
    "execution_id": "the execution's id",
    "socket": "the daemon's control socket",
}
"""Every gap there is, and what fills it."""

_GAP = re.compile(r"\{([a-z_]+)(:json)?(?:\|([^{}]*))?\}")
_DROPPED = object()


def gaps(text: str) -> tuple[str, ...]:
    """Return the names of all gaps of a text, known or not."""
    return tuple(found[1] for found in _GAP.finditer(text))


def gaps_of(value: Any) -> Iterator[str]:
    """Yield the names of all gaps in the texts and keys of a JSON value."""
    match value:
        case str():
            yield from gaps(value)
        case dict():
            for name, each in value.items():
                yield from gaps(name)
                yield from gaps_of(each)
        case list():
            for each in value:
                yield from gaps_of(each)


def missing(text: str, values: Values) -> tuple[str, ...]:
    """Return the gaps that have neither a value nor a default."""
    return tuple(found[1] for found in _GAP.finditer(text) if found[3] is None and values.get(found[1]) is None)


def fill(text: str, values: Values) -> str | None:
    """Fill every gap; None where one is missing."""
    if missing(text, values):
        return None
    return _GAP.sub(lambda found: _shown(found, values), text)


def fill_json(value: Any, values: Values) -> Any:
    """Fill every gap in a JSON value: a text that is one gap keeps the type of its value; what misses one is dropped.

    Returns:
        The value; None where it was dropped as a whole.
    """
    filled = _filled(value, values)
    return None if filled is _DROPPED else filled


def _filled(value: Any, values: Values) -> Any:
    match value:
        case str():
            whole = _GAP.fullmatch(value)
            if whole is not None and not whole[2] and values.get(whole[1]) is not None:
                return values[whole[1]]
            if whole is not None and whole[3] is not None and not whole[2] and values.get(whole[1]) is None:
                return _number_or_text(whole[3])
            text = fill(value, values)
            return _DROPPED if text is None else text
        case dict():
            pairs = ((fill(name, values), _filled(each, values)) for name, each in value.items())
            return {name: each for name, each in pairs if name is not None and each is not _DROPPED}
        case list():
            return [each for each in (_filled(item, values) for item in value) if each is not _DROPPED]
        case _:
            return value


def _shown(found: re.Match[str], values: Values) -> str:
    value = values.get(found[1])
    shown: str | int | float = found[3] if value is None else value
    return json.dumps(shown) if found[2] else str(shown)


def _number_or_text(text: str) -> str | int | float:
    """Read a default as JSON reads a number, so that `{input_cost|0}` is one."""
    try:
        number = json.loads(text)
    except ValueError:
        return text
    return number if isinstance(number, int | float) and not isinstance(number, bool) else text
