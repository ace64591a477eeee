"""Presets: which model a pipe runs with. What a pipe names is what it gets, or a problem; never another model.

A preset that is written wrongly is away alone; so are all of them when the file is no TOML. Who would take the default
preset does not run while it, or the whole file, is broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, structs

from supervisord_py.config.documents import Problem, convert, nearest
from supervisord_py.ledger.pipe_executions import ErrorType, Preset
from supervisord_py.pipes.adapters import COMMAND, CannotRunError, finding, read_tables, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from supervisord_py.config.documents import Document
    from supervisord_py.pipes.models import PipeDefinition

EVERY = "*"
AUTO = frozenset({"auto", "default", "pi-agent"})  # the default preset, in a pipe's list
CUSTOM = "custom"
_ALIASES = {"native-ollama": "ollama"}
_SEE = "see presets.toml(5)"
_KEY_HINT = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'
_Text = Annotated[str, Meta(min_length=1)]
_Cost = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]


class PresetTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in presets.toml; described in presets.toml(5)."""

    provider: _Text | None = None
    model: _Text | None = None
    url: _Text | None = None
    api: _Text | None = None
    api_key: _Text | None = None
    prompt: _Text | None = None
    effort: Literal["low", "medium", "high"] | None = None
    default: bool = False
    input_cost: _Cost | None = None
    output_cost: _Cost | None = None
    context_window: _Count | None = None
    max_tokens: _Count | None = None


class Presets(msgspec.Struct, frozen=True):
    file: str
    by_id: dict[str, Preset] = {}
    default_id: str | None = None  # the one with `default = true`; it may be a broken one
    broken: dict[str, list[Problem]] = {}  # of presets that cannot be used, every problem
    file_problem: Problem | None = None  # why there are none at all; None also when the file is not there

    @property
    def problems(self) -> list[Problem]:
        whole = [] if self.file_problem is None else [self.file_problem]
        return whole + [each for found in self.broken.values() for each in found]


class ResolvedPreset(msgspec.Struct, frozen=True):
    """What a pipe runs with, frozen into its execution. `warnings` are sentences for people."""

    preset: Preset
    fallbacks: tuple[Preset, ...] = ()
    warnings: tuple[str, ...] = ()


# -- reading -----------------------------------------------------------------------------------------------------------


def load_presets(file: Path) -> Presets:
    """Read the file; no presets where there is none. Never raises for what users wrote. Blocking."""
    tables, document, file_problem = read_tables(file, "presets")
    good: dict[str, Preset] = {}
    broken: dict[str, list[Problem]] = {}
    default_id: str | None = None
    for name, table in tables.items():
        read, problems = convert(document, PresetTable, ("presets", name), value=table)
        if read is not None:
            problems = list(_faults(name, read, document))
        # `default = "yes"` means it, too; so does a name like "default", which is refused, unless another one says so.
        claims = isinstance(table, dict) and table.get("default", False) is not False
        is_rival = claims and default_id not in {None, *AUTO}
        if is_rival and not problems:
            said, at = "another preset is the default one already", ("presets", name, "default")
            problems = [document.problem(at, said, hint="remove one of the two")]
        elif not is_rival and (claims or (name in AUTO and default_id is None)):
            default_id = name
        if problems:
            broken[name] = problems
        elif read is not None:
            good[name] = _preset(name, read)
    return Presets(str(file), good, default_id, broken, file_problem)


def _faults(name: str, read: PresetTable, document: Document) -> Iterator[Problem]:
    """Yield what no type can say is wrong with a preset."""

    def wrong(key: str, message: str, hint: str) -> Problem:
        return document.problem(("presets", name, key) if key else ("presets", name), message, hint=hint)

    if name in AUTO or name == EVERY or name != name.strip():
        yield wrong("", f"a preset cannot be called {name!r}: pipes write it for something else", "choose another name")
    if read.url is not None and not read.url.startswith(("http://", "https://")):
        yield wrong("url", f"{read.url!r} is no address", 'write url = "https://…"')
    if read.provider == CUSTOM and read.url is None:
        yield wrong("provider", 'a "custom" provider needs its url', 'write url = "http://127.0.0.1:8000/v1"')
    if read.api_key is not None and not read.api_key.startswith(("$", "file:", "cmd:")):
        # The value is not quoted: it may well be a key.
        yield wrong("api_key", "is no reference; keys themselves have no place here", _KEY_HINT)


def _preset(name: str, read: PresetTable) -> Preset:
    members: dict[str, Any] = msgspec.structs.asdict(read)
    del members["default"]
    members["provider"] = _ALIASES.get(read.provider or "", read.provider) or (CUSTOM if read.url else None)
    if members["provider"] == CUSTOM:
        members["api"] = read.api or "openai-completions"
    return Preset(id=name, **members)


# -- choosing ----------------------------------------------------------------------------------------------------------


def resolve(definition: PipeDefinition, presets: Presets) -> ResolvedPreset:
    """Say what a pipe runs with: its presets in order, else its own provider and model, else the default, else nothing.

    With nothing the agent chooses; `"*"` stands for every preset not named before it. A pipe's own program asks no
    model, so the default one is not for it.

    Raises CannotRunError: none of them can be had, which fails the execution.
    """
    asks_model = definition.agent != COMMAND
    words = definition.presets if asks_model or not AUTO.issuperset(definition.presets) else ()
    provider, model = definition.provider, definition.model
    if not words:
        wants_default = asks_model and not (provider or model)
        if not wants_default or (presets.default_id is None and presets.file_problem is None):
            own = Preset(provider=_ALIASES.get(provider or "", provider), model=model, effort=definition.effort)
            whole = presets.file_problem
            return ResolvedPreset(own, warnings=() if whole is None else (sentence(whole),))
        _check_default(presets)
    names: dict[str, None] = {}
    for word in words or ("auto",):
        names |= dict.fromkeys(_meant(word, presets))
    if not names:
        message = f'the pipe {definition.name!r} asks for every preset ("*"), and {presets.file} has none'
        raise _missing(message, "add one: [presets.NAME]")
    chain = tuple(presets.by_id[name] for name in names)
    if definition.effort is not None:  # wins over the preset's
        chain = tuple(structs.replace(each, effort=definition.effort) for each in chain)
    rivals = [sentence(each) for each in presets.problems if each.pointer.endswith("/default")]
    uses_default = not words or not AUTO.isdisjoint(words)
    return ResolvedPreset(chain[0], chain[1:], tuple(rivals) if uses_default else ())


def _meant(word: str, presets: Presets) -> Sequence[str]:
    """Return the presets that one word of a pipe's list stands for."""
    if (whole := presets.file_problem) is not None:
        raise _missing(f"the preset {word!r} cannot be had: {finding(whole)}", whole.hint or _SEE)
    if word == EVERY:
        return tuple(presets.by_id)
    if word in presets.by_id:
        return (word,)
    if word in presets.broken:
        first = presets.broken[word][0]
        raise _missing(f"the preset {word!r} is broken: {finding(first)}", first.hint or _SEE)
    known = ", ".join(presets.by_id) or "none at all"
    if word not in AUTO:
        near = nearest(word, presets.by_id)
        hint = f"did you mean {near!r}?" if near else f"add [presets.{word}] to {presets.file}, or name another one"
        raise _missing(f"there is no preset {word!r} in {presets.file}; there are: {known}", hint)
    if presets.default_id is not None:
        _check_default(presets)
        return (presets.default_id,)
    raise _missing(
        f"no preset of {presets.file} is the default one, and the pipe asks for it ({word!r}); there are: {known}",
        'write default = true into one of them, or name one in pipe.md: preset: "NAME"',
    )


def _check_default(presets: Presets) -> None:
    """Refuse where nobody can know the default preset, or take it; none at all is fine."""
    if presets.file_problem is not None:
        what, first = "the default preset cannot be had", presets.file_problem
    elif found := presets.broken.get(presets.default_id or ""):
        what, first = f"the default preset {presets.default_id!r} is broken", found[0]
    else:
        return
    raise CannotRunError(ErrorType.CONFIG_ERROR, f"{what}: {finding(first)}", hint=first.hint or _SEE)


def _missing(message: str, hint: str) -> CannotRunError:
    return CannotRunError(ErrorType.PRESET_NOT_FOUND, message, hint=hint)
