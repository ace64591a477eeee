"""What people do to pipes' files through the room: add, make, change, check, remove. Everything off the loop.

Law: the room's own look follows at once, so that whoever asked sees what he did.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from supervisord_py.config.documents import Problem, did_you_mean, read_bounded
from supervisord_py.pipes import status
from supervisord_py.pipes.adapters import CannotRunError, finding
from supervisord_py.pipes.intake import build, choose
from supervisord_py.pipes.launch import DOTENV, check, provider_doubt
from supervisord_py.pipes.models import BY_HAND, COMMAND, BrokenPipe, PipeDefinition, error_of
from supervisord_py.pipes.presets import EVERY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.adapters import Adapters
    from supervisord_py.pipes.checks import Check
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.front_matter import Value
    from supervisord_py.pipes.models import Chosen, Declared, PipeView
    from supervisord_py.pipes.upkeep import Upkeep


class PipeFiles:
    """Works on the files of the room's pipes. UnknownUnitError where there is no pipe of a name."""

    def __init__(self, room: Executions, upkeep: Upkeep) -> None:
        self._room = room
        self._upkeep = upkeep
        self._lock = asyncio.Lock()  # two edits of one file at a time would lose one of them

    async def install(self, source: str, *, name: str | None = None) -> PipeView:
        """Add a pipe from a path, an https address or `example:NAME`: disabled, validated, whole or not at all."""
        from supervisord_py.pipes.install import install

        self._room.refuse_at_the_end()
        config = self._room.config
        known = (await asyncio.to_thread(self._room.shelf.adapters_now)).agents
        async with self._lock:
            installed = await install(
                source,
                config.pipes_dir,
                config.examples_dir,
                name=name,
                knows_agent=known.__contains__,
                default_agent=config.default_agent,
            )
        await self._upkeep.refresh()
        view, warnings = status.view(self._room, self._room.definition(installed.name)), installed.warnings
        if view.config_error is not None and installed.agent in known:
            warnings = (*warnings, f"it cannot run until this is mended: {view.config_error}")
        self._room.say_of_pipe("pipe_installed", view.name, source=source, warnings=list(warnings))
        return structs.replace(view, warnings=warnings)

    async def scaffold(self, name: str) -> PipeView:
        """Make a new pipe to be filled in."""
        from supervisord_py.pipes.install import scaffold

        self._room.refuse_at_the_end()
        folder = await asyncio.to_thread(scaffold, name, self._room.config.pipes_dir)
        await self._upkeep.refresh()
        return status.view(self._room, self._room.definition(folder.name))

    async def configure(self, name: str, changes: Mapping[str, Value]) -> PipeView:
        """Change front matter keys of a pipe's file; None removes one. Body, comments and other keys stay.

        Raises ConfigError: the pipe would be broken by it; nothing is written.
        """
        declared = self._room.definition(name)
        async with self._lock:
            await asyncio.to_thread(self._edit, declared, changes)
        await self._upkeep.refresh()
        return status.view(self._room, self._room.definition(name))

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
            before = read_bounded(file).decode()
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

    async def remove(self, name: str) -> None:
        """End everything of a pipe, then delete its folder; its executions stay in the ledger."""
        from supervisord_py.pipes.install import remove

        declared = self._room.definition(name)
        await self._room.cancel_all(name, "its pipe was removed")
        async with self._lock:
            await asyncio.to_thread(remove, declared.folder)
        await self._upkeep.refresh()
        await self._upkeep.gone(name, "its pipe was removed")

    # -- checking ----------------------------------------------------------------------------------------------------

    async def afresh(self, name: str) -> Declared:
        """Return a pipe as its file stands now: whoever has just saved it means that, even if it does not read."""
        found = self._room.catalog.fresh(name)  # a stat: cheaper than a thread
        if found is not None and found is self._room.catalog.pipes.get(name):
            return found
        await self._upkeep.refresh()
        known = self._room.definition(name)
        # The look holds back what does not read while it is young. A file that is away for a moment is what it was.
        return found if isinstance(found, BrokenPipe) and found.digest else known

    async def validate(self, name: str) -> tuple[Check, ...]:
        """Check a pipe, its agent, its presets, its times; nothing is started."""
        from supervisord_py.pipes.checks import validate

        declared = await self.afresh(name)
        if isinstance(declared, BrokenPipe):
            return validate(declared)
        chosen = await choose(self._room, declared, BY_HAND)
        adapters, presets = await self._room.shelf.look()
        faults = await asyncio.to_thread(self._room.faults.afresh, declared)
        troubles = {"presets" if each.pointer == "/preset" else each.pointer[1:]: each for each in faults}
        agent, agent_doubts = await self._of_agent(declared, chosen, adapters)
        if agent is not None and not troubles.keys() & {"agent", "command"}:
            troubles["agent"] = Problem(message=agent, file=str(declared.file))
        if isinstance(never := status.end_of_times(self._room, declared), Problem):
            troubles["schedule"] = never
        doubts: dict[str, list[str]] = {"agent": list(agent_doubts)}
        for check_name, sentence in status.doubts(self._room, declared):
            doubts.setdefault(check_name, []).append(sentence)
        left_out = presets.broken if EVERY in declared.presets else ()
        preset_doubts = [f"the preset {each!r} is left out: {finding(presets.broken[each][0])}" for each in left_out]
        runs_with = f"it runs with {chosen.preset.id or 'no preset'}"
        doubts["presets"] = [f"{each} ({runs_with})" for each in (*chosen.warnings, *preset_doubts)]
        return await asyncio.to_thread(validate, declared, troubles, doubts, _in_words(declared, chosen))

    async def _of_agent(
        self, definition: PipeDefinition, chosen: Chosen, adapters: Adapters
    ) -> tuple[str | None, tuple[str, ...]]:
        """Return why a pipe's agent cannot run, None where it can; and what is odd about it and its providers."""
        if chosen.refusal is not None:
            return None, ()
        spec = adapters.get(definition.agent)
        later = [provider_doubt(spec, each.provider) for each in chosen.plan.fallbacks]
        try:
            example = build(self._room, definition, BY_HAND, chosen, 0)
            found = await check(self._room.shelf, example, definition.folder)
        except CannotRunError as error:
            return error.message, ()
        env_file = f"{definition.folder / DOTENV}"  # has a check of its own, also where its agent cannot run
        doubts = (each for each in found.warnings if not each.startswith(env_file))
        return None, tuple(dict.fromkeys((*doubts, *filter(None, later))))


def _in_words(definition: PipeDefinition, found: Chosen) -> str | None:
    """Say which presets a pipe would run with, and what they are; None where it needs none."""
    if definition.agent == COMMAND and found.preset.id is None:
        return None
    what = " ".join(filter(None, (found.preset.provider, found.preset.model))) or "the agent chooses the model"
    if found.preset.id is None:
        return what
    default = "" if definition.presets else ", the default one"
    then = f"; then {', '.join(each.id or '' for each in found.plan.fallbacks)}" if found.plan.fallbacks else ""
    return f"{found.preset.id}{default}: {what}{then}"
