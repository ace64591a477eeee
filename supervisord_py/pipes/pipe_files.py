"""What people do to pipes' files through the room: add, make, change, check, remove. Everything off the loop.

Law: the room's own look follows at once, so that whoever asked sees what he did.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from supervisord_py.config.documents import Problem, did_you_mean, read_bounded
from supervisord_py.pipes.adapters import CannotRunError, finding
from supervisord_py.pipes.intake import BY_HAND
from supervisord_py.pipes.launch import DOTENV, check, provider_doubt
from supervisord_py.pipes.models import COMMAND, BrokenPipe, PipeDefinition, error_of, usable
from supervisord_py.pipes.presets import EVERY, PresetProblem, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.pipes.adapters import Adapters
    from supervisord_py.pipes.checks import Check
    from supervisord_py.pipes.front_matter import Value
    from supervisord_py.pipes.intake import Chosen
    from supervisord_py.pipes.models import Declared, PipeView
    from supervisord_py.pipes.presets import Presets, ResolvedPreset
    from supervisord_py.pipes.room import Pipes


class PipeFiles:
    """Works on the files of the room's pipes."""

    def __init__(self, room: Pipes) -> None:
        self._room = room
        self._lock = asyncio.Lock()  # two edits of one file at a time would lose one of them

    # -- adding ------------------------------------------------------------------------------------------------------

    async def install(self, source: str, name: str | None) -> PipeView:
        """Add a pipe; return how it stands, with what is to be said of it now."""
        from supervisord_py.pipes.install import install

        config = self._room.config
        known = (await asyncio.to_thread(self._room.shelf.adapters_now)).agents
        async with self._lock:
            installed = await install(
                source,
                config.pipes_dir,
                config.examples_dir,
                name=name,
                limit_bytes=config.file_bytes_max,
                knows_agent=known.__contains__,
                default_agent=config.default_agent,
            )
        await self._room.upkeep.refresh()
        view, warnings = self._room.get(installed.name), installed.warnings
        if view.config_error is not None and installed.agent in known:
            warnings = (*warnings, f"it cannot run until this is mended: {view.config_error}")
        self._room.say_of_pipe("pipe_installed", view.name, source=source, warnings=list(warnings))
        return structs.replace(view, warnings=warnings)

    async def scaffold(self, name: str) -> str:
        """Make a pipe to be filled in; return its name."""
        from supervisord_py.pipes.install import scaffold

        folder = await asyncio.to_thread(scaffold, name, self._room.config.pipes_dir)
        await self._room.upkeep.refresh()
        return folder.name

    # -- changing ----------------------------------------------------------------------------------------------------

    async def configure(self, declared: Declared, changes: Mapping[str, Value]) -> None:
        """Change front matter keys.

        Raises:
            ConfigError: The pipe would be broken by it; nothing is written.
        """
        async with self._lock:
            await asyncio.to_thread(self._edit, declared, changes)
        await self._room.upkeep.refresh()

    def _edit(self, declared: Declared, changes: Mapping[str, Value]) -> None:
        from supervisord_py.pipes.catalog import write_pipe
        from supervisord_py.pipes.definition import KNOWN, PIPE_FILE, USED, declare
        from supervisord_py.pipes.front_matter import set_keys

        file, present = declared.folder / PIPE_FILE, getattr(declared, "lines", {})
        foreign = [key for key, value in changes.items() if value is not None and key not in {*KNOWN, *present}]
        if foreign:
            message = f"{foreign[0]!r} is no key of a pipe{did_you_mean(foreign[0], USED)}"
            hint = "pipe.md(5) lists the keys; one of your own is written into the file by hand"
            problem = Problem(message=message, file=str(file), pointer=f"/{foreign[0]}", hint=hint)
            raise error_of([problem], declared.name)
        try:
            before = read_bounded(file, self._room.config.file_bytes_max).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise error_of([Problem(message=f"cannot be read: {error}", file=str(file))], declared.name) from None
        text = set_keys(before, changes)
        if text == before:
            return
        agent = self._room.config.default_agent
        will = declare(text.encode(), folder=declared.folder, default_agent=agent)
        if isinstance(will, BrokenPipe):
            wrong = [will.problem, *will.more]
        else:  # what is missing beside the file is told where it was named just now
            wrong = [each for each in self._room.faults.afresh(will) if each.pointer[1:] in changes]
        if wrong:
            raise error_of(wrong, declared.name)
        write_pipe(file, text)

    async def remove(self, declared: Declared) -> None:
        """Delete a pipe's folder."""
        from supervisord_py.pipes.install import remove

        async with self._lock:
            await asyncio.to_thread(remove, declared.folder)
        await self._room.upkeep.refresh()
        await self._room.upkeep.gone(declared.name, "its pipe was removed")

    # -- checking ----------------------------------------------------------------------------------------------------

    async def afresh(self, name: str) -> Declared:
        """Return a pipe as its file stands now: whoever has just saved it means that, even if it does not read.

        Raises UnknownUnitError: there is none of that name.
        """
        found = await asyncio.to_thread(self._room.catalog.fresh, name)
        if found is None or found is not self._room.catalog.get(name):
            await self._room.upkeep.refresh()
        known = self._room.catalog.declared(name)
        # The look holds back what does not read while it is young. A file that is away for a moment is what it was.
        return found if isinstance(found, BrokenPipe) and found.digest else known

    async def usable(self, name: str) -> PipeDefinition:
        """Return a pipe that can be used, as its file stands now.

        Raises:
            UnknownUnitError: There is none of that name; the nearest is named.
            ConfigError: There is one, and it is broken.
        """
        return usable(await self.afresh(name))

    async def validate(self, declared: Declared) -> tuple[Check, ...]:
        """Check a pipe, its agent, its presets, its times."""
        from supervisord_py.pipes.checks import validate

        if isinstance(declared, BrokenPipe):
            return validate(declared)
        chosen = await self._room.intake.choose(declared, BY_HAND)
        adapters, presets = await self._room.shelf.look()
        found = resolve(declared, presets)
        words = None if isinstance(found, PresetProblem) else _in_words(declared, found)
        faults = await asyncio.to_thread(self._room.faults.afresh, declared)
        troubles = {"presets" if each.pointer == "/preset" else each.pointer[1:]: each for each in faults}
        agent, agent_doubts = await self._of_agent(declared, chosen, adapters)
        if agent is not None and not troubles.keys() & {"agent", "command"}:
            troubles["agent"] = Problem(message=agent, file=str(declared.file), hint="mend that")
        if isinstance(never := self._room.status.end_of_times(declared), Problem):
            troubles["schedule"] = never
        doubts: dict[str, list[str]] = {"agent": list(agent_doubts)}
        for name, sentence in self._room.status.doubts(declared):
            doubts.setdefault(name, []).append(sentence)
        preset_doubts = (*chosen.warnings, *_preset_doubts(declared, presets))
        doubts["presets"] = [f"{each} (it runs with {chosen.preset.id or 'no preset'})" for each in preset_doubts]
        return await asyncio.to_thread(validate, declared, troubles, doubts, words)

    async def _of_agent(
        self, definition: PipeDefinition, chosen: Chosen, adapters: Adapters
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return why a pipe's agent cannot run, None where it can; and what is odd about it and its providers."""
        if chosen.refusal is not None:
            return None, ()
        spec = adapters.get(definition.agent)
        later = [provider_doubt(spec, each.provider) for each in chosen.plan.fallbacks]
        try:
            example = self._room.intake.example(definition, chosen)
            found = await check(example, definition.folder, self._room.shelf)
        except CannotRunError as error:
            return error.message, ()
        env_file = f"{definition.folder / DOTENV}"  # has a check of its own, also where its agent cannot run
        doubts = (each for each in found.warnings if not each.startswith(env_file))
        return None, tuple(dict.fromkeys((*doubts, *filter(None, later))))


def _in_words(definition: PipeDefinition, found: ResolvedPreset) -> str | None:
    """Say which presets a pipe would run with, and what they are; None where it needs none."""
    if definition.agent == COMMAND and found.preset.id is None:
        return None
    what = " ".join(filter(None, (found.preset.provider, found.preset.model))) or "the agent chooses the model"
    if found.preset.id is None:
        return what
    default = "" if definition.presets else ", the default one"
    then = f"; then {', '.join(each.id or '' for each in found.fallbacks)}" if found.fallbacks else ""
    return f"{found.preset.id}{default}: {what}{then}"


def _preset_doubts(definition: PipeDefinition, presets: Presets) -> Iterator[str]:
    """Say which presets a pipe does without at present."""
    for name in presets.broken if EVERY in definition.presets else ():
        yield f"the preset {name!r} is left out: {finding(presets.broken[name][0])}"
