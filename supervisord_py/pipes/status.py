"""What the room shows of its pipes: each as it stands, why it cannot run, when it is due, who is in
line.

A pipe whose file reads well and which cannot run all the same is listed with the cause, like one
whose file is broken, until the cause is gone; a run of it is a row that failed at once, so that
nothing happens in silence (A3).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from typing import Any

from supervisord_py.config.documents import Problem
from supervisord_py.ledger.pipes import Group
from supervisord_py.ledger.table import to_text
from supervisord_py.pipes import due, models
from supervisord_py.pipes.adapters import (
    AgentSpec,
    CannotRunError,
    is_allowed,
    placeholders_of,
    sentence,
    takes,
)
from supervisord_py.pipes.context import MAX_TURNS, TIMEOUT_SECONDS
from supervisord_py.pipes.cost import ceiling_doubts
from supervisord_py.pipes.due import Decision, Never
from supervisord_py.pipes.executions import Executions
from supervisord_py.pipes.launch import DOTENV, check, find_executable
from supervisord_py.pipes.presets import resolve
from supervisord_py.pipes.schedule import (
    At,
    Calendar,
    Manual,
    describe,
    span_text,
    time_text,
    zone_of,
)
from supervisord_py.pipes.triggers import Timetable
from supervisord_py.process.child_environment import DEFAULT_PATH, passed, read_dotenv

OUTPUT = "output"  # in a pipe's folder, where its executions write
QUIET_SECONDS = 60.0  # who said nothing for so long may be delayed, and whoever looks is told


class PipeViews(Executions):
    """Answers questions about pipes; UnknownUnitError where there is none of a name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.timetable = Timetable(self)

    def health(self) -> dict[str, Any]:
        """Return whether schedules are at work, and how many pipes and executions there are."""
        scheduler, declared = self.timetable, self.catalog.pipes.values()
        return {
            # not before the API listens
            "scheduler_running": scheduler.alive and self.config.enabled,
            # how often its loop died, and of what it did the last time
            "scheduler_restarts": scheduler.restarts,
            "scheduler_error": scheduler.last_error,
            "pipes": len(declared),
            "broken": sum(self.show(each).config_error is not None for each in declared),
            "queued": len(self.line.waiting()),
            "running": len(self.line.running),
            # why it takes nothing at present; None when all is well, as is the next
            "ledger": self.ledger.degraded,
            # why the folder of pipes cannot be looked at; what was seen is kept
            "catalog": self.catalog.trouble,
        }

    def refused_output(self) -> dict[str, str]:
        """Return the units whose output the disk refuses at present, and why."""
        return {run.unit: run.trouble for run in self.runs.values() if run.trouble is not None}

    async def file_problems(self) -> dict[str, list[str]]:
        """Return all that is wrong with agents.toml and presets.toml, in sentences, by `agents`
        and `presets`.
        """
        return await asyncio.to_thread(self.shelf.problems)

    def get(self, name: str) -> models.PipeView:
        return self.show(self.definition(name))

    def snapshot(self) -> tuple[models.PipeView, ...]:
        """Return every pipe, by name; broken ones with their `config_error`."""
        return tuple(map(self.show, self.catalog.pipes.values()))

    def show(self, declared: models.Declared) -> models.PipeView:
        """Return a pipe, broken or not, as it stands."""
        name, row, running = (
            declared.name,
            self.states.get(declared.name),
            self.running(declared.name),
        )
        it = running.execution if running else None
        decided = row.last_decision and {
            "at": to_text(row.last_decision_at or 0.0),
            "text": row.last_decision,
        }
        facts: dict[str, Any] = {
            "last_run": row.last_run_at,
            "last_success": row.last_success_at,
            "last_status": it.status if it else self.states.last_status.get(name),
            "running": it.id if it else None,
            "queued": len(self.queued(name)),
            "waits_for": self._obstacle(name),
            "consecutive_failures": row.consecutive_failures,
            "last_decision": decided,
            "folder": str(declared.folder),
        }
        facts |= (
            {each: getattr(it, each) for each in ("pid", "instance", "started_at")} if it else {}
        )
        if isinstance(declared, models.BrokenPipe):
            why, file = sentence(declared.problem), declared.problem.file
            return models.PipeView(name=name, config_error=why, file=file, **facts)
        enabled, standing = self.states.is_enabled(declared), self.decision(declared)
        spec = self.shelf.adapters_now().agents.get(declared.plan.agent)
        # It is not installed, and may be at any time: that is a warning; of a pipe's own program it
        # is a fault.
        missing = self._program(declared, spec) if spec is not None and spec.argv else None
        found = (*self.faults(declared), *self._oddities(declared, standing))
        fault = next((each for each in found if isinstance(each, Problem)), None)
        warnings = [f"{missing.message}; {missing.hint}"] if missing else []
        warnings += declared.warnings
        warnings += [each.sentence for each in self._idle(declared, spec)]
        warnings += [each for each in found if isinstance(each, str)]
        quiet = (
            0.0
            if running is None or not running.heard_at
            else self.clocks.boot() - running.heard_at
        )
        if it is not None and quiet >= QUIET_SECONDS:
            said = f"execution {it.id} (pid {it.pid}) has said nothing for {quiet:.0f} s"
            warnings.append(f"{said} and may be delayed; `pxctl pipe cancel {name}` ends it")
        upcoming = due.upcoming(
            declared.schedule, self.states.progress(name), self.now(), standing, 1
        )
        return models.PipeView(
            name=name,
            enabled=enabled,
            schedule=declared.schedule_text,
            next_run=next(iter(upcoming), None) if enabled and self.config.enabled else None,
            config_error=sentence(fault) if fault is not None else None,
            warnings=tuple(warnings),
            title=declared.title,
            description=declared.description,
            agent=declared.plan.agent,
            presets=declared.presets,
            events=declared.events,
            file=str(declared.file),
            **facts,
        )

    def _obstacle(self, name: str) -> str | None:
        """Say what keeps the next execution of a pipe waiting, and who has what it waits for."""
        first = next(iter(self.queued(name)), None)
        obstacle = None if first is None else self.waits_for(first)
        return (
            None
            if first is None or obstacle is None
            else f"execution {first.id} waits for {obstacle}"
        )

    def details(self, name: str) -> dict[str, Any]:
        """Return what the file of a pipe says beyond its view, defaults filled in; nothing of
        one that is broken.
        """
        declared = self.definition(name)
        if isinstance(declared, models.BrokenPipe):
            return {}
        plan, retries = declared.plan, declared.retries
        daily_cost = self.config.daily_cost if declared.daily_cost is None else declared.daily_cost
        last_end = self.states.get(name).last_context_end
        return {
            "body": declared.body,
            "command": plan.command,
            "model": declared.model,
            "provider": declared.provider,
            "effort": declared.effort,
            "history": plan.history,
            "allow_empty": plan.allow_empty,
            "timezone": self.zone_name(declared),
            "run_on_enable": declared.run_on_enable,
            "timeout_seconds": min(
                declared.timeout_seconds or TIMEOUT_SECONDS, self.config.timeout_max_seconds
            ),
            "limits": {
                "turns": plan.max_turns or MAX_TURNS,
                "tokens": plan.max_tokens,
                "cost": plan.max_cost,
                "memory_bytes": plan.memory_bytes,
                "processes": plan.processes,
                "cpu_percent": plan.cpu_percent,
            },
            "budget": {"daily_tokens": declared.daily_tokens, "daily_cost": daily_cost},
            "retries": {
                "max": self.config.retries if retries.max_retries is None else retries.max_retries,
                "on_timeout": retries.on_timeout,
                "delay_seconds": retries.delay_seconds or self.config.retry_initial_seconds,
            },
            "redact": (*self.config.redact, *declared.redact),
            # where the next time range begins
            "range_starts_at": None if last_end is None else to_text(last_end),
        }

    # -- what is wrong, and what is odd ------------------------------------------------------------

    def faults(self, definition: models.PipeDefinition) -> Iterator[Problem]:
        """Yield what keeps a pipe from running, or would: its agent, its presets, its own program.

        Blocking.
        """
        spec: AgentSpec | None = None
        try:
            spec = self.shelf.adapters_now().get(definition.plan.agent)
        except CannotRunError as error:
            yield definition.problem("agent", error.detail, error.hint or "see agents.toml(5)")
        try:
            resolve(definition, self.shelf.presets_now())
        except CannotRunError as error:
            yield definition.problem("preset", error.detail, error.hint or "see presets.toml(5)")
        if (
            spec is not None
            and not spec.argv
            and (problem := self._program(definition, spec)) is not None
        ):
            yield problem

    def _idle(
        self, definition: models.PipeDefinition, spec: AgentSpec | None
    ) -> Iterator[models.Remark]:
        """Yield the keys of a pipe that have no effect with its agent and presets; none where
        those cannot be had.
        """
        if spec is None:
            return
        try:
            chain, _warnings = resolve(definition, self.shelf.presets_now())
        except CannotRunError:
            return
        told = {
            "effort": definition.effort,
            "model": None if definition.presets else definition.model,
        }
        for key, value in told.items():
            if value is not None and spec.argv and not takes(spec, key):
                said = f"{key} has no effect: {spec.name} is not told it"
                hint = f"extra_argv of [agents.{spec.name}] in agents.toml says how it is told"
                yield models.Remark(key, said, hint, definition.lines.get(key))
        daily_cost = definition.daily_cost
        # the setting is not meant for a program that asks no model
        if daily_cost is None and spec.argv:
            daily_cost = self.config.daily_cost
        for doubt in ceiling_doubts(
            definition.plan, definition.daily_tokens, daily_cost, spec, chain
        ):
            line = definition.lines.get(doubt.ceiling.partition(".")[0])
            yield models.Remark(doubt.ceiling, f"{doubt.ceiling} {doubt.message}", doubt.hint, line)

    def _program(self, definition: models.PipeDefinition, spec: AgentSpec) -> Problem | None:
        """Return why a pipe's program cannot be started."""
        word = next(iter(spec.argv or definition.plan.command), None)
        if isinstance(word, str) and not any(placeholders_of(word)):
            env = {"PATH": DEFAULT_PATH} | passed(self.shelf.environ, self.config.env_allow)
            env |= dict(read_dotenv(definition.folder / DOTENV)[0])
            try:
                find_executable(
                    word, spec, definition.folder, path=env["PATH"], home=env.get("HOME", "/")
                )
            except CannotRunError as error:
                key = "agent" if spec.argv else "command"
                return definition.problem(key, error.detail, error.hint or "mend the command")
        return None

    def _oddities(
        self, definition: models.PipeDefinition, standing: Decision
    ) -> Iterator[str | Problem]:
        """Yield what is odd about a pipe's file and times.

        That no time is to come is a mistake in the file of one that is enabled and was never due.
        """
        row, most = self.states.get(definition.name), self.config.timeout_max_seconds
        if (wanted := definition.timeout_seconds or 0.0) > most:
            yield (
                f"timeout: {span_text(wanted)} is cut to {span_text(most)} "
                "(pipes.timeout_max_seconds)"
            )
        if isinstance(standing, Never) and standing.over:
            if (
                row.occurrences
                or row.last_run_at is not None
                or not self.states.is_enabled(definition)
            ):
                yield f"its schedule is over: {standing.why}"
            else:
                key = "schedule_config" if isinstance(definition.schedule, Calendar) else "schedule"
                yield definition.problem(
                    key, standing.why, "write a time that will come, or `manual`"
                )
        if (average := self.states.average_seconds.get(definition.name)) is not None:
            every = due.period(
                definition.schedule, self.states.progress(definition.name), self.now()
            )
            if every is not None and every < average:
                took = (
                    f"a run takes {span_text(average)} on average and is due every "
                    f"{span_text(every)}"
                )
                yield f"slower than its schedule: {took}; the runs in between are skipped"

    async def checks_of(self, declared: models.Declared) -> list[models.Check]:
        """Say all that can be said of a pipe before a run, its agent and presets included;
        nothing is started.
        """
        if isinstance(declared, models.BrokenPipe):
            return [_failed(declared.problem)]
        chosen, odd_presets = await self.choose(declared)
        checks = [
            _failed(each) for each in await asyncio.to_thread(lambda: list(self.faults(declared)))
        ]
        spec = self.shelf.adapters_now().agents.get(declared.plan.agent)
        remarks = (*declared.remarks, *self._idle(declared, spec))
        checks += [models.Check(it.key, "warn", it.message, it.line, it.hint) for it in remarks]
        for odd in (*self._oddities(declared, self.decision(declared)), *odd_presets):
            checks += [
                _failed(odd) if isinstance(odd, Problem) else models.Check("pipe", "warn", odd)
            ]
        if not declared.body and declared.plan.agent != models.COMMAND:
            hint = "say below the closing --- what the agent is to do"
            checks.append(
                models.Check(
                    "prompt", "fail", "there is no text below the front matter", None, hint
                )
            )
        output = declared.folder / OUTPUT
        if output.exists() and not (output.is_dir() and os.access(output, os.W_OK | os.X_OK)):
            what = "it cannot be written" if output.is_dir() else "it is no folder"
            hint = f"chmod u+rwx {output}" if output.is_dir() else f"mv {output} {output}.old"
            checks.append(
                models.Check(
                    OUTPUT, "fail", f"executions write into {output}, and {what}", None, hint
                )
            )
        file = declared.folder / DOTENV
        if file.exists() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            said = f"{file} holds secrets, and others may read it"
            checks.append(models.Check(DOTENV, "warn", said, None, f"chmod 600 {file}"))
        if spec is not None and (rule := spec.asks) is not None and not is_allowed(spec, rule):
            said = f"{spec.name} may not {rule.denied}, unless your own settings of it allow that"
            checks.append(
                models.Check(
                    "agent", "warn", said, None, f"[agents.{spec.name}] in agents.toml: {rule.cure}"
                )
            )
        if not chosen.status.is_final:
            try:
                ready = await check(self.shelf, self.build(declared, chosen, 0), declared.folder)
                checks += [models.Check("agent", "warn", each) for each in ready.warnings]
            except CannotRunError as error:
                if not any(each.verdict == "fail" for each in checks):
                    checks.append(models.Check("agent", "fail", error.detail, None, error.hint))
        if not any(each.verdict == "fail" for each in checks):
            preset = chosen.preset
            names = ", then ".join(each.id or "" for each in (preset, *chosen.plan.fallbacks))
            words = (
                f"it runs {declared.plan.agent}",
                names and f"with {names}:",
                preset.provider,
                preset.model,
            )
            checks.append(models.Check("ready", "pass", " ".join(filter(None, words))))
        return checks

    # -- times to come -----------------------------------------------------------------------------

    def next(self, name: str, count: int = 5) -> dict[str, Any]:
        """Return when a pipe is due (`upcoming`: Unix seconds, ascending), why (`now`), and both
        in `sentences`.
        """
        declared, config = self.definition(name), self.config
        shown = self.show(declared)
        report = {
            each: getattr(shown, each)
            for each in ("name", "enabled", "schedule", "last_decision", "events")
        }
        sentences = [f"error: {shown.config_error}"] if shown.config_error else []
        sentences += [f"warning: {each}" for each in shown.warnings]
        if isinstance(declared, models.BrokenPipe):
            return report | {"upcoming": (), "now": None, "sentences": sentences}
        schedule, now, standing = declared.schedule, self.now(), self.decision(declared)
        is_on = shown.enabled and config.enabled
        if not shown.enabled:
            is_spent = isinstance(schedule, At) and isinstance(standing, Never)
            cure = (
                "write another time"
                if is_spent
                else f"`pxctl pipe enable {declared.name}` lets it run by itself"
            )
            sentences.append(f"it is disabled; {cure}")
        if not config.enabled:
            sentences.append("no pipe runs by itself here (pipes.enabled = false)")
        sentences.append(f"schedule: {describe(schedule, self.zone_name(declared))}")
        if not isinstance(schedule, Manual):
            sentences.append(f"{'now' if is_on else 'once it is on'}: {standing.why}")
        if shown.waits_for is not None:
            sentences.append(shown.waits_for)
        upcoming = due.upcoming(schedule, self.states.progress(name), now, standing, count)
        zone, word = (
            zone_of(getattr(schedule, "timezone", None), now.zone),
            "next" if is_on else "would be next",
        )
        sentences += [f"{word}: {time_text(at, zone, now.wall)}" for at in upcoming]
        if declared.events:
            sentences.append(f"events: {', '.join(shown.events)}")
        waits_for = standing.why if is_on else None
        return report | {
            "upcoming": upcoming if is_on else (),
            "now": waits_for,
            "sentences": sentences,
        }

    # -- lines -------------------------------------------------------------------------------------

    def queue(self) -> list[dict[str, Any]]:
        """Return each group, its slots, who runs and who waits, in order; without blobs."""
        running = [self.view(self.runs[number]) for number in self.line.running]
        return [
            {
                "group": group,
                "slots": getattr(self.config, f"slots_{group}"),
                "running": [it for it in running if it.group is group],
                "waiting": [self.view(self.runs[it.id]) for it in self.line.waiting(group)],
            }
            for group in Group
        ]


def _failed(problem: Problem) -> models.Check:
    key = problem.pointer[1:].partition("/")[0] or "front_matter"
    return models.Check(key, "fail", problem.message, problem.line, problem.hint)
