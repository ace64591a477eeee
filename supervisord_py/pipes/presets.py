"""Presets: which model a pipe runs with. What a pipe names is what it gets, or a problem; never
another model.

A preset that is written wrongly is away alone; so are all of them when the file is no TOML. Who
would take the default preset does not run while it, or the whole file, is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from supervisord_py.config.documents import Document, Problem, convert, did_you_mean
from supervisord_py.ledger.pipes import ErrorType, Preset
from supervisord_py.pipes.adapters import (
    COMMAND,
    CannotRunError,
    UserTables,
    finding,
    read_tables,
    sentence,
)
from supervisord_py.pipes.models import PipeDefinition

EVERY = "*"
AUTO = frozenset({"auto", "default", "pi-agent"})  # the default preset, in a pipe's list
CUSTOM = "custom"
_ALIASES = {"native-ollama": "ollama"}
_SEE = "see presets.toml(5)"


class PresetTable(Preset, frozen=True, forbid_unknown_fields=True):
    """What stands in presets.toml; described in presets.toml(5)."""

    effort: Literal["low", "medium", "high"] | None = None
    default: bool = False


class Presets(UserTables, frozen=True):
    file: str
    by_id: dict[str, Preset]
    default_id: str | None  # the one with `default = true`; it may be a broken one


def load_presets(file: Path) -> Presets:
    """Read the file; no presets where there is none.

    Never raises for what users wrote. Blocking.
    """
    tables, document, file_problem = read_tables(file, "presets")
    good: dict[str, Preset] = {}
    broken: dict[str, list[Problem]] = {}
    default_id: str | None = None
    for name, table in tables.items():
        read, problems = convert(document, PresetTable, ("presets", name), value=table)
        if read is not None:
            problems = list(_faults(name, read, document))
        # `default = "yes"` means it, too; so does a name like "default", which is refused.
        claims = isinstance(table, dict) and table.get("default", False) is not False
        if claims and default_id not in {None, *AUTO}:
            said, at = "another preset is the default one already", ("presets", name, "default")
            problems = problems or [document.problem(at, said, hint="remove one of the two")]
        elif claims or (name in AUTO and default_id is None):
            default_id = name
        if problems:
            broken[name] = problems
        elif read is not None:
            provider = _ALIASES.get(read.provider or "", read.provider) or (
                CUSTOM if read.url else None
            )
            api = "openai-completions" if provider == CUSTOM and read.api is None else read.api
            plain = msgspec.convert(read, Preset, from_attributes=True)
            good[name] = structs.replace(plain, id=name, provider=provider, api=api)
    return Presets(
        file=str(file), by_id=good, default_id=default_id, broken=broken, file_problem=file_problem
    )


def _faults(name: str, read: PresetTable, document: Document) -> Iterator[Problem]:
    """Yield what no type can say is wrong with a preset."""

    def wrong(key: str, message: str, hint: str) -> Problem:
        return document.problem(
            ("presets", name, key) if key else ("presets", name), message, hint=hint
        )

    if name in AUTO or name == EVERY or name != name.strip():
        yield wrong(
            "",
            f"a preset cannot be called {name!r}: pipes write it for something else",
            "choose another name",
        )
    if read.id is not None:
        yield wrong("id", "the name of a preset is that of its table", f"write [presets.{read.id}]")
    if read.url is not None and not read.url.startswith(("http://", "https://")):
        yield wrong("url", f"{read.url!r} is no address", 'write url = "https://…"')
    if read.provider == CUSTOM and read.url is None:
        yield wrong(
            "provider",
            'a "custom" provider needs its url',
            'write url = "http://127.0.0.1:8000/v1"',
        )
    if read.api_key is not None and not read.api_key.startswith(("$", "file:", "cmd:")):
        # The value is not quoted: it may well be a key.
        hint = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'
        yield wrong("api_key", "is no reference; keys themselves have no place here", hint)


def resolve(
    definition: PipeDefinition, presets: Presets
) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """Say what a pipe runs with: its presets in order, else its own provider and model, else the
    default, else nothing.

    Returns the one to run with and those to try after it, and sentences for people. With nothing
    the agent chooses; `"*"` stands for every preset not named before it. A pipe's own program asks
    no model, so the default one is not for it. Raises CannotRunError: none of them can be had,
    which fails the execution.
    """
    asks_model, whole = definition.plan.agent != COMMAND, presets.file_problem
    words = definition.presets if asks_model or not AUTO.issuperset(definition.presets) else ()
    provider, model = definition.provider, definition.model
    has_default = presets.default_id is not None or whole is not None
    if not words and not (asks_model and has_default and not (provider or model)):
        own = Preset(
            provider=_ALIASES.get(provider or "", provider), model=model, effort=definition.effort
        )
        return (own,), () if whole is None else (sentence(whole),)
    names = dict.fromkeys(name for word in words or ("auto",) for name in _meant(word, presets))
    if not names:
        raise _missing(
            f'the pipe asks for every preset ("*"), and {presets.file} has none',
            "add one: [presets.NAME]",
        )
    chain = tuple(presets.by_id[name] for name in names)
    if definition.effort is not None:  # wins over the preset's
        chain = tuple(structs.replace(each, effort=definition.effort) for each in chain)
    return chain, ()


def _meant(word: str, presets: Presets) -> Sequence[str]:
    """Return the presets that one word of a pipe's list stands for."""
    is_auto = word in AUTO
    name = presets.default_id or word if is_auto else word
    broken = (
        [presets.file_problem] if presets.file_problem is not None else presets.broken.get(name, [])
    )
    if broken:
        kind = ErrorType.CONFIG_ERROR if is_auto else ErrorType.PRESET_NOT_FOUND
        what = "the default preset" if is_auto else f"the preset {word!r}"
        raise CannotRunError(
            kind, f"{what} is broken: {finding(broken[0])}", hint=broken[0].hint or _SEE
        )
    if word == EVERY:
        return tuple(presets.by_id)
    if name in presets.by_id:
        return (name,)
    known = ", ".join(presets.by_id) or "none"
    if is_auto:
        hint = 'write default = true into one of them, or name one in pipe.md: preset: "NAME"'
        raise _missing(f"no preset of {presets.file} is the default one; there are: {known}", hint)
    said = (
        f"there is no preset {word!r} in {presets.file}{did_you_mean(word, presets.by_id)}; there "
        f"are: {known}"
    )
    raise _missing(said, f"add [presets.{word}] to {presets.file}, or name another one")


def _missing(message: str, hint: str) -> CannotRunError:
    return CannotRunError(ErrorType.PRESET_NOT_FOUND, message, hint=hint)
