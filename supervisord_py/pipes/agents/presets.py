"""Presets: which model a pipe runs with. The text of presets.toml in, values and problems out.

Law: never another model in silence. What a pipe names is what it gets, or a problem that names the preset, the file and
the presets there are. A preset that is written wrongly is away alone; so are all of them when the file is no TOML. Who
would take the default preset does not run while it, or the whole file, is broken.
"""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.agents.toml_table import TomlTable, line_of, nearest
from supervisord_py.pipes.execution import ErrorType, Preset
from supervisord_py.pipes.models import COMMAND, ConfigProblem
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.models import PipeDefinition

AGAIN_SECONDS = 0.2
"""Somebody may be writing the file just now, without a temporary one."""
EVERY = "*"
AUTO = frozenset({"auto", "default", "pi-agent"})
"""Words for the default preset in a pipe's list."""
EFFORTS = ("low", "medium", "high")
_CUSTOM = "custom"
_DEFAULT = "default"
_CUSTOM_API = "openai-completions"
_ALIASES = {"native-ollama": "ollama"}
_REFERENCES = ("$", "file:", "cmd:")


@dataclass(frozen=True, slots=True)
class Presets:
    """All presets of a file, in its order.

    Attributes:
        default_id: The one with `default = true`; it may be a broken one.
        broken: Of presets that cannot be used, every problem.
        file_problem: Why there are none at all; None also when the file is not there.
    """

    file: str
    by_id: Mapping[str, Preset] = field(default_factory=dict)
    default_id: str | None = None
    broken: Mapping[str, tuple[ConfigProblem, ...]] = field(default_factory=dict)
    file_problem: ConfigProblem | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the presets that can be used."""
        return tuple(self.by_id)

    @property
    def problems(self) -> tuple[ConfigProblem, ...]:
        """Everything that is wrong with the file."""
        whole = () if self.file_problem is None else (self.file_problem,)
        return whole + tuple(problem for found in self.broken.values() for problem in found)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a pipe runs with, frozen into its execution. `warnings` are sentences for people."""

    preset: Preset
    fallbacks: tuple[Preset, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PresetProblem:
    """Why a pipe's preset cannot be had: the execution fails with this."""

    message: str
    hint: str
    error_type: ErrorType = ErrorType.PRESET_NOT_FOUND


async def read_presets(file: Path, *, again_seconds: float = AGAIN_SECONDS) -> Presets:
    """Return the presets of a file; read it once more shortly after when it makes no sense (I3). Never raises."""
    presets = await asyncio.to_thread(load_presets, file)
    if presets.file_problem is not None:
        await asyncio.sleep(again_seconds)
        presets = await asyncio.to_thread(load_presets, file)
    return presets


def load_presets(file: Path) -> Presets:
    """Read the file once; no presets where there is none. Blocking."""
    try:
        text = read_bounded(file).decode("utf-8-sig")
    except FileNotFoundError:
        return Presets(str(file))
    except UnicodeDecodeError as error:
        problem = ConfigProblem(f"is not UTF-8 at byte {error.start}", "save it as UTF-8", str(file))
    except OSError as error:
        problem = ConfigProblem(f"cannot be read: {error.strerror or error}", "mend or remove the file", str(file))
    else:
        return parse_presets(text, str(file))
    return Presets(str(file), file_problem=problem)


def parse_presets(text: str, file: str) -> Presets:
    """Read a presets.toml; never raises for what users wrote."""
    try:
        return _parsed(text, file)
    except tomllib.TOMLDecodeError as error:
        detail, hint = f"is no TOML: {error}", "mend the syntax; pipes that take a preset of it fail until then"
    except Exception as error:  # whatever breaks the reader is the file's fault: nesting that is too deep, …
        detail, hint = f"cannot be understood: {type(error).__name__}: {error}", "mend or remove the file"
    return Presets(file, file_problem=ConfigProblem(detail, hint, file))


def _parsed(text: str, file: str) -> Presets:
    document = tomllib.loads(text)
    tables = document.pop("presets", {})
    if document or not isinstance(tables, dict):
        key = next(iter(document), "presets")
        hint = f"write [presets.{_below(key, document)}]" if document else "write [presets.NAME]"
        problem = ConfigProblem(f"{key!r} has no place here", hint, file, line_of(text, (key,)), key=key)
        return Presets(file, file_problem=problem)
    return _gathered(tables, file, text)


def _below(key: str, document: Mapping[str, Any]) -> str:
    """Return what the preset was to be called: `a` of `[preset.a]`, else the key itself."""
    members = document[key]
    is_typo = nearest(key, ("presets",)) is not None and isinstance(members, dict)
    return next(iter(members), key) if is_typo else key


def resolve(definition: PipeDefinition, presets: Presets) -> Resolved | PresetProblem:
    """Say what a pipe runs with: its presets in order, else its own provider and model, else the default, else nothing.

    With nothing the agent chooses; `"*"` stands for every preset not named before it. Who asks for the default one by
    its word gets it or a problem. A pipe's own program asks no model, so the default one is not for it: that file may
    say what it likes.
    """
    if definition.presets and not (definition.agent == COMMAND and AUTO.issuperset(definition.presets)):
        return _named(definition, presets)
    warnings = () if presets.file_problem is None else (presets.file_problem.text,)
    provider, model = definition.provider, definition.model
    if provider or model:
        own = Preset(provider=_ALIASES.get(provider or "", provider), model=model, effort=definition.effort)
        return Resolved(own, warnings=warnings)
    if definition.agent != COMMAND:
        if problem := _no_default(presets):
            return problem
        if presets.default_id is not None:
            preset = _with_effort(presets.by_id[presets.default_id], definition)
            return Resolved(preset, warnings=_of_default(presets))
    return Resolved(Preset(effort=definition.effort), warnings=warnings)


def _named(definition: PipeDefinition, presets: Presets) -> Resolved | PresetProblem:
    names: list[str] = []
    for word in definition.presets:
        found = _meant(word, presets, names)
        if isinstance(found, PresetProblem):
            return found
        names += [name for name in found if name not in names]
    if not names:
        return PresetProblem(
            f'the pipe {definition.name!r} asks for every preset ("*"), and {presets.file} has none',
            "add one: [presets.NAME]",
        )
    chain = tuple(_with_effort(presets.by_id[name], definition) for name in names)
    return Resolved(chain[0], chain[1:], () if AUTO.isdisjoint(definition.presets) else _of_default(presets))


def _no_default(presets: Presets) -> PresetProblem | None:
    """Return why nobody can know the default preset, or take it; None where it is sound, or there is none."""
    if presets.file_problem is not None:
        what, first = "the default preset cannot be had", presets.file_problem
    elif found := presets.broken.get(presets.default_id or ""):
        what, first = f"the default preset {presets.default_id!r} is broken", found[0]
    else:
        return None
    return PresetProblem(f"{what}: {first.finding}", first.hint, ErrorType.CONFIG_ERROR)


def _of_default(presets: Presets) -> tuple[str, ...]:
    """Return what is wrong with the choice of the default preset: two that claim it."""
    return tuple(each.text for each in presets.problems if each.key == _DEFAULT)


def _meant(word: str, presets: Presets, before: list[str]) -> tuple[str, ...] | PresetProblem:
    """Return the presets that one word of a pipe's list stands for."""
    if presets.file_problem is not None:
        return PresetProblem(
            f"the preset {word!r} cannot be had: {presets.file_problem.finding}", presets.file_problem.hint
        )
    if word == EVERY:
        return tuple(name for name in presets.names if name not in before)
    if word in presets.by_id:
        return (word,)
    if word in presets.broken:
        first = presets.broken[word][0]
        return PresetProblem(f"the preset {word!r} is broken: {first.finding}", first.hint)
    if word in AUTO and presets.default_id is not None:
        return _no_default(presets) or (presets.default_id,)
    return _absent(word, presets)


def _absent(word: str, presets: Presets) -> PresetProblem:
    known = ", ".join(presets.names) or "none at all"
    meant = nearest(word, presets.names)
    if word in AUTO:
        return PresetProblem(
            f"no preset of {presets.file} is the default one, and the pipe asks for it ({word!r}); there are: {known}",
            'write default = true into one of them, or name one in pipe.md: preset: "NAME"',
        )
    hint = f"did you mean {meant!r}?" if meant else f"add [presets.{word}] to {presets.file}, or name another one"
    return PresetProblem(f"there is no preset {word!r} in {presets.file}; there are: {known}", hint)


def _with_effort(preset: Preset, definition: PipeDefinition) -> Preset:
    """Let the pipe's own effort win over the preset's."""
    if definition.effort is None:
        return preset
    return replace(preset, effort=definition.effort)


def _gathered(tables: Mapping[str, Any], file: str, text: str) -> Presets:
    good: dict[str, Preset] = {}
    broken: dict[str, tuple[ConfigProblem, ...]] = {}
    defaults: list[str] = []
    for name, members in tables.items():
        table = TomlTable(
            members if isinstance(members, dict) else {}, file=file, text=text, path=("presets", name), problems=[]
        )
        if not isinstance(members, dict):
            table.wrong(name, "is no table", f"write [presets.{name}]")
        claims = table.members.get(_DEFAULT, False) is not False  # `default = "yes"` means it, too
        preset = _preset(name, table, second=claims and any(each not in AUTO for each in defaults))
        if table.problems:
            broken[name] = tuple(table.problems)
        else:
            good[name] = preset
        if claims or name in AUTO:
            defaults.append(name)
    # A name like "default" is refused; whoever wrote it meant the default one, unless another says so.
    chosen = next((name for name in defaults if name not in AUTO), next(iter(defaults), None))
    return Presets(file, good, chosen, broken)


def _preset(name: str, table: TomlTable, *, second: bool) -> Preset:
    if table.flag(_DEFAULT) and second:
        table.wrong(_DEFAULT, "another preset is the default one already", "remove one of the two")
    provider, url = table.words("provider"), table.words("url")
    provider = _ALIASES.get(provider or "", provider)
    preset = Preset(
        id=name,
        provider=provider or (_CUSTOM if url else None),
        model=table.words("model"),
        url=url,
        api=table.words("api") or (_CUSTOM_API if provider == _CUSTOM or (url and not provider) else None),
        api_key=table.words("api_key"),
        prompt=table.words("prompt"),
        effort=table.words("effort"),
        input_cost=table.amount("input_cost"),
        output_cost=table.amount("output_cost"),
        context_window=table.count("context_window"),
        max_tokens=table.count("max_tokens"),
    )
    _check(name, table, preset)
    table.refuse_unknown()
    return preset


def _check(name: str, table: TomlTable, preset: Preset) -> None:
    if name in AUTO or name == EVERY or name != name.strip():
        table.wrong(name, "a preset cannot have this name: pipes write it for something else", "choose another name")
    if preset.effort is not None and preset.effort not in EFFORTS:
        table.wrong("effort", f"{preset.effort!r} is none of {', '.join(EFFORTS)}", 'write effort = "low"')
    if preset.url is not None and not preset.url.startswith(("http://", "https://")):
        table.wrong("url", f"{preset.url!r} is no address", 'write url = "https://…"')
    if preset.provider == _CUSTOM and preset.url is None:
        table.wrong("provider", 'a "custom" provider needs its url', 'write url = "http://127.0.0.1:8000/v1"')
    if preset.api_key is not None and not preset.api_key.startswith(_REFERENCES):
        # The value is not quoted: it may well be a key.
        table.wrong("api_key", "is no reference; keys themselves have no place here", _KEY_HINT)


_KEY_HINT = 'write api_key = "$ACME_API_KEY", "file:~/.keys/acme" or "cmd:pass show acme"'
