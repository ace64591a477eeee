"""`pxctl tools validate`: twelve checks, each pass, warn, fail or skip (CONTRACT §5).

The checks of files collect everything; the checks of a running instance stop at the first failure, because what
follows would only repeat it. The instance is started through a `Probe`, so that the validator tries what a user would
get. Whatever happens, what was started is stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.errors import PxError, StartFailedError
from supervisord_py.tools.checking import reference
from supervisord_py.tools.checking.sample_input import Sample, sample_input
from supervisord_py.tools.checking.static_checks import check_files
from supervisord_py.tools.checking.validation import Check, Report, Status, completed
from supervisord_py.tools.declaring.difference import differences
from supervisord_py.tools.declaring.interpreter import find_interpreter
from supervisord_py.tools.declaring.pixie_call import pixie_call
from supervisord_py.tools.declaring.problems import clip
from supervisord_py.tools.declaring.schema import compile_schema, violations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from supervisord_py.tools.config import ToolsConfig
    from supervisord_py.tools.spec import ToolSpec

STREAM_SECONDS = 10.0
RUN_MARGIN_SECONDS = 5.0
VALIDATING = {"PIXIE_VALIDATE": "true"}
"""Tells a Pixie tool that this run is a validation."""
_NO_STREAM = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """An HTTP answer; of a stream, its first chunk that is not empty. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ProbeStop:
    """How a stop went: seconds it took, whether KILL was needed, what is left."""

    seconds: float
    killed: bool = False
    survivors: tuple[str, ...] = ()


class Probe(Protocol):
    """One instance of a tool, apart from the warm set, for the length of a validation.

    `get`, `post` and `first_chunk` raise `TimedOutError` when there is no answer in time and another `PxError` when
    the connection breaks.
    """

    async def start(self, extra_env: Mapping[str, str], *, timeout_seconds: float) -> float:
        """Start it and wait until it is ready; returns the milliseconds that took. Raises `StartFailedError`."""

    async def get(self, path: str, *, timeout_seconds: float) -> ProbeAnswer:
        """GET a path."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> ProbeAnswer:
        """POST to a path."""

    async def first_chunk(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float
    ) -> ProbeAnswer:
        """Begin a streamed answer, take its first chunk that is not empty (empty body: the stream ended), hang up."""

    async def stop(self) -> ProbeStop:
        """TERM, `stop_timeout_seconds`, KILL to the whole tree; harmless when nothing runs."""

    def spawn_log(self) -> str:
        """Return the tail of what it printed on stderr."""


@dataclass(frozen=True, slots=True)
class _Request:
    body: bytes
    headers: Mapping[str, str]
    run_id: str


async def validate_tool(
    folder: Path, config: ToolsConfig, probe_for: Callable[[ToolSpec], Probe], now: datetime
) -> Report:
    """Run the twelve checks on the tool in `folder`.

    Args:
        folder: The tool's folder.
        config: The room's settings.
        probe_for: Gives a probe for a tool; it is started at most once and always stopped.
        now: Aware UTC time of the report.
    """
    spec, checks = await asyncio.to_thread(check_files, folder, config.defaults)
    if spec is None:
        why = "not reached: the tool cannot be loaded"
        return Report(folder.name, folder, now, completed(checks, why))
    checks.append(check_start(spec, config.defaults.python))
    if any(check.status is Status.FAIL for check in checks):
        why = "not reached: an earlier check failed"
        return Report(spec.name, spec.folder, now, completed(checks, why), warnings=spec.warnings)
    trial = _Trial(spec, config, probe_for(spec), now)
    checks += await trial.run()
    return Report(
        spec.name,
        spec.folder,
        now,
        completed(checks, "not reached: an earlier check failed"),
        sample_inputs=trial.sample.value if trial.sample else None,
        sample_output=trial.answer,
        spawn_log=trial.probe.spawn_log() or None,
        warnings=spec.warnings,
    )


def check_start(spec: ToolSpec, settings_python: str | None) -> Check:
    """Check 5: what the tool is started with is there."""
    name = "venv_functional"
    if spec.command is None:
        try:
            interpreter = find_interpreter(spec, settings_python)
        except StartFailedError as error:
            return Check(name, Status.FAIL, error.detail, error.hint)
        return Check(name, Status.PASS, f"runs with {interpreter}")
    program = spec.command[0]
    found = shutil.which(os.path.join(spec.folder, program) if "/" in program else program)
    if found is None:
        return Check(name, Status.FAIL, f"the program {program!r} of the command is not there or not executable")
    return Check(name, Status.PASS, f"runs with {found}")


class _Trial:
    """Checks 6 to 12, on one instance."""

    def __init__(self, spec: ToolSpec, config: ToolsConfig, probe: Probe, now: datetime) -> None:
        self.spec = spec
        self.config = config
        self.probe = probe
        self.now = now
        self.sample: Sample | None = None
        self.answer: Any = None

    async def run(self) -> list[Check]:
        """Run the checks in their order until one fails; the shutdown is always checked once the start succeeded."""
        spawned = await self._guarded("tool_spawns", self._spawns)
        checks = [spawned]
        try:
            if spawned.status is not Status.FAIL:
                checks += await self._while_running()
        finally:
            stopped = await asyncio.shield(self.probe.stop())
        if spawned.status is not Status.FAIL:
            checks.append(_shutdown(stopped, self.spec.stop_timeout_seconds))
        return checks

    async def _while_running(self) -> list[Check]:
        steps = (
            ("schema_matches_disk", self._schema),
            ("sample_input_run", self._sample_run),
            ("output_conforms", self._conforms),
            ("streaming_check", self._streams),
            ("reference_fixtures_match", self._fixtures),
        )
        checks: list[Check] = []
        for name, step in steps:
            checks.append(await self._guarded(name, step))
            if checks[-1].status is Status.FAIL:
                break
        return checks

    async def _guarded(self, name: str, step: Callable[[], Any]) -> Check:
        """Run one check; an error of the tool is a failed check."""
        try:
            check: Check = await step()
        except PxError as error:
            return Check(name, Status.FAIL, clip(error.detail), _details(error))
        return check

    async def _spawns(self) -> Check:
        name = "tool_spawns"
        override = self.spec.pixie.validator_timeout_override if self.spec.pixie is not None else None
        timeout = float(override or self.config.validate_timeout_seconds)
        milliseconds = await self.probe.start(VALIDATING, timeout_seconds=timeout)
        health = await self.probe.get("/healthz", timeout_seconds=timeout)
        if health.status != 200:
            return Check(name, Status.FAIL, f"GET /healthz answers {health.status}, not 200", _excerpt(health.body))
        said = _json(health.body)
        if not (isinstance(said, dict) and said.get("ok") is True):
            return Check(name, Status.WARN, 'GET /healthz does not answer {"ok": true}', _excerpt(health.body))
        return Check(name, Status.PASS, f"ready after {milliseconds:.0f} ms")

    async def _schema(self) -> Check:
        name = "schema_matches_disk"
        answer = await self.probe.get("/schema", timeout_seconds=self.config.validate_timeout_seconds)
        if answer.status != 200:
            return Check(name, Status.WARN, f"GET /schema answers {answer.status}, not tool.json")
        drift = differences(self.spec.manifest, _json(answer.body))
        if drift:
            return Check(name, Status.WARN, f"GET /schema differs from tool.json at {drift[0]}", "\n".join(drift))
        return Check(name, Status.PASS, "GET /schema is tool.json")

    async def _sample_run(self) -> Check:
        name = "sample_input_run"
        self.sample = sample_input(self.spec, self.now)
        if self.sample.trouble:
            return Check(name, Status.FAIL, f"no input to try: {self.sample.trouble}", self.sample.origin)
        answer = await self._post(self.sample.value)
        if not 200 <= answer.status < 300:
            return Check(name, Status.FAIL, f"POST /run answers {answer.status}", _excerpt(answer.body))
        self.answer = _json(answer.body) if _is_json(answer) else _summary(answer)
        return Check(name, Status.PASS, f"POST /run answers {answer.status} to {self.sample.origin}")

    async def _post(self, value: Any) -> ProbeAnswer:
        request = self._request(value)
        timeout = self.spec.max_runtime_seconds + RUN_MARGIN_SECONDS
        return await self.probe.post("/run", request.body, request.headers, timeout_seconds=timeout)

    def _request(self, value: Any) -> _Request:
        run_id = str(uuid.uuid4())
        if self.spec.pixie is None:
            return _Request(json.dumps(value).encode(), {"Content-Type": "application/json"}, run_id)
        call = pixie_call(self.spec, value, run_id, self.config.data_dir)
        os.makedirs(call.artefacts_dir, mode=0o700, exist_ok=True)
        return _Request(call.body, call.headers, run_id)

    async def _conforms(self) -> Check:
        name = "output_conforms"
        if isinstance(self.answer, _Opaque):
            self.answer = self.answer.words
            if self.spec.output_schema:
                return Check(name, Status.WARN, f"the answer is no JSON but {self.answer}")
            return Check(name, Status.PASS, f"the answer is {self.answer}; no output is declared")
        found = violations(compile_schema(self.spec.output_schema), self.answer)
        if found:
            lines = [f"{each.pointer or 'the answer'} {each.message}" for each in found]
            return Check(name, Status.FAIL, lines[0], "\n".join(lines))
        declared = self.spec.output_schema.get("properties", {})
        extra = [key for key in self.answer if key not in declared] if isinstance(self.answer, dict) else []
        if self.spec.pixie is not None and extra:
            return Check(name, Status.WARN, f"the answer has outputs that are not declared: {', '.join(extra)}")
        return Check(name, Status.PASS, "the answer fits what is declared")

    async def _streams(self) -> Check:
        name = "streaming_check"
        value = self.sample.value if self.sample else {}
        if self.spec.pixie is not None:
            if not self.spec.pixie.streams:
                return Check(name, Status.SKIP, "no output streams")
            request = self._request(value)
            await self.probe.post("/run", request.body, request.headers, timeout_seconds=STREAM_SECONDS)
            path = f"/stream?run_id={request.run_id}"
            first = await self.probe.first_chunk("GET", path, b"", {}, timeout_seconds=STREAM_SECONDS)
        else:
            request = self._request(value)
            first = await self.probe.first_chunk(
                "POST", "/stream", request.body, request.headers, timeout_seconds=STREAM_SECONDS
            )
            if first.status in _NO_STREAM:
                return Check(name, Status.SKIP, "the tool has no /stream")
        if first.status != 200 or not first.body.strip():
            return Check(name, Status.FAIL, f"/stream answers {first.status} without an event", _excerpt(first.body))
        return Check(name, Status.PASS, "/stream sends events")

    async def _fixtures(self) -> Check:
        name = "reference_fixtures_match"
        fixtures, troubles = reference.fixtures_of(self.spec.folder)
        if not fixtures and not troubles:
            return Check(name, Status.SKIP, "there is no reference/fixture_*.json")
        for fixture in fixtures:
            answer = await self._post(fixture.inputs)
            if answer.status != 200:
                troubles.append(f"{fixture.file}: POST /run answers {answer.status}")
            else:
                troubles += reference.compare(self.spec, fixture, _json(answer.body))
        if troubles:
            return Check(name, Status.FAIL, clip(troubles[0]), "\n".join(troubles))
        return Check(name, Status.PASS, f"{len(fixtures)} fixtures match")


@dataclass(frozen=True, slots=True)
class _Opaque:
    """An answer that is no JSON, in words."""

    words: str


def _shutdown(stopped: ProbeStop, limit_seconds: float) -> Check:
    name = "clean_shutdown"
    if stopped.survivors:
        return Check(name, Status.FAIL, f"survived the stop: {', '.join(stopped.survivors)}")
    if stopped.killed:
        return Check(name, Status.WARN, f"did not end within {limit_seconds:g} s of SIGTERM and was killed")
    return Check(name, Status.PASS, f"ended {stopped.seconds:.1f} s after SIGTERM")


def _is_json(answer: ProbeAnswer) -> bool:
    kind = answer.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return _Opaque(f"no JSON: {clip(repr(body[:80]), 100)}")


def _summary(answer: ProbeAnswer) -> _Opaque:
    return _Opaque(f"{answer.headers.get('content-type', 'untyped')}, {len(answer.body)} bytes")


def _excerpt(body: bytes) -> str | None:
    return clip(body[:2000].decode("utf-8", "replace"), 2000) or None


def _details(error: PxError) -> str | None:
    parts = [error.hint or "", str(error.extra.get("stderr_tail") or "")]
    return "\n".join(part for part in parts if part) or None
