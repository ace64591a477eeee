"""`pxctl tools validate`: twelve checks, each pass, warn, fail or skip (CONTRACT §5).

The checks of files collect everything; those of a running instance stop at the first failure,
because what follows would only repeat it. That instance lives apart from the warm set, on a socket
of its own, recorded like every instance (start method `probe`), and is stopped whatever happens: a
later control plane does not adopt it, its note is empty.

The input is the tool's own `test-request.json`, else one made from what it declares, as plain as
can be: const, default, first example or option, the middle or an end of a range. If that does not
fit, its author is to write one.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from supervisord_py.config.documents import DocumentError, Problem, convert, read_document
from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    ConfigError,
    InvalidInputError,
    KeeperTimeoutError,
    PxError,
    StartFailedError,
    TimedOutError,
)
from supervisord_py.process.model import Reason
from supervisord_py.tools import failures
from supervisord_py.tools.content_coding import ContentCodingError
from supervisord_py.tools.driver import ToolInstance, may_be_the_handover, with_plain_port
from supervisord_py.tools.environment import PYPROJECT, find_interpreter, read_project
from supervisord_py.tools.manifest import MANIFEST, ToolSpec, check_input, load_tool
from supervisord_py.tools.pixie import FILE_TYPES, PixieManifest, value_schema
from supervisord_py.tools.proxy import (
    TRACEBACK_SECONDS,
    constant_in,
    make_room,
    media_type,
    run_calls,
)
from supervisord_py.tools.schema import clip, compile_schema, differences, violations
from supervisord_py.tools.service import Tools
from supervisord_py.tools.upstream import BROKEN, NOT_OFFERED, Call, RedirectError, schema_drift

NAMES = (
    "folder_structure", "tool_json_parses", "schemas_coherent", "pyproject_ok", "venv_functional",
    "tool_spawns", "schema_matches_disk", "sample_input_run", "output_conforms", "streaming_check",
    "clean_shutdown", "reference_fixtures_match",
)  # fmt: skip
"""The twelve checks in their order."""
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
METHOD = "probe"
PIXIE_NEEDS = ("fastapi", "uvicorn", "pydantic", "python-dotenv")
CHECK_SECONDS = 30.0  # bound of each check on the instance, where the tool overrides nothing
STREAM_SECONDS = 10.0
RUN_MARGIN_SECONDS = 5.0
VALIDATING = {"PIXIE_VALIDATE": "true"}  # tells a Pixie tool that this run is a validation
TOLERANCES = "tolerance.yaml"
_TOLERANCE_KEYS = frozenset({"atol", "abs", "rtol", "rel", "allow_extra"})
TEST_REQUEST = "test-request.json"
_MAX_ANSWER = 64 * 1024 * 1024
_MAX_DEPTH = 20
_SHOWN_BYTES = 2000  # of an answer that is refused
_DISTRIBUTION = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR4nGNgAAIAAAUAAXpe"
    "qz8AAAAASUVORK5CYII="
)
_SILENCE = "data:audio/wav;base64,UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQQAAACAgICA"
_PIXIES: dict[str, Any] = {
    "file": _PICTURE, "image": _PICTURE, "audio": _SILENCE, "colour": "#000000", "time": "12:00",
    "date": "2026-01-01",
    "datetime": "2026-01-01T12:00:00", "date_range": ["2026-01-01", "2026-01-02"],
    "map_point": [0, 0],
    "map_bbox": [[0, 0], [0.01, 0.01]], "map_polygon": [[0, 0]], "map_multipoint": [[0, 0]],
}  # fmt: skip
"""Samples of inputs whose schema says less than their type."""


class ToolCheck(NamedTuple):
    """How a check came out: a line for people, and details of several lines where there are any."""

    status: str
    message: str
    details: str | None = None


async def validate_tool(tools: Tools, folder: Path, now: datetime) -> dict[str, Any]:
    """Run the twelve checks on the tool in `folder` at `now` (aware, UTC); return the document
    px.validation/1.
    """
    spec, checks = await asyncio.to_thread(check_files, folder, tools.config.settings)
    trial = None
    if spec is not None and all(check.status != FAIL for check in checks.values()):
        trial = _Trial(tools, spec)
        await trial.run(checks)
    not_reached = ToolCheck(SKIP, "not reached: an earlier check failed")
    ordered = {name: checks.get(name, not_reached) for name in NAMES}
    found = {check.status for check in ordered.values()}
    return {
        "schema": "px.validation/1",
        "tool_id": folder.name if spec is None else spec.name,
        "tool_path": str(folder),
        "timestamp": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "overall": next((each for each in (FAIL, WARN) if each in found), PASS),
        "checks": [{"name": name, **check._asdict()} for name, check in ordered.items()],
        "sample_inputs": trial.sample.value if trial else None,
        "sample_output": trial.answer if trial else None,
        "spawn_log": (trial.stderr if trial else "") or None,
        "warnings": list(spec.warnings) if spec else [],
    }


# -- checks 1 to 5: what can be said without starting anything -------------------------------------


def check_files(
    folder: Path, settings: ToolsSettings
) -> tuple[ToolSpec | None, dict[str, ToolCheck]]:
    """Run checks 1 to 5; the spec is None when the tool cannot be loaded."""
    try:
        spec = load_tool(folder, settings)
    except ConfigError as error:
        lines = [f"{Problem(**each).where()}: {each['message']}" for each in error.extra["errors"]]
        broken = ToolCheck(FAIL, lines[0], "\n".join(lines))
        members = {
            each["pointer"].split("/")[1] if each["pointer"] else ""
            for each in error.extra["errors"]
        }
        if not (folder / MANIFEST).is_file() or "entrypoint" in members:
            return None, {"folder_structure": broken}
        checks = {
            "folder_structure": ToolCheck(PASS, f"{MANIFEST} is there"),
            "tool_json_parses": broken,
        }
        if members <= {"input", "inputs", "output", "outputs", "secrets"}:
            checks |= {
                "tool_json_parses": ToolCheck(PASS, f"{MANIFEST} is JSON"),
                "schemas_coherent": broken,
            }
        return None, checks
    checks = {
        "folder_structure": ToolCheck(PASS, f"{MANIFEST} and what it starts are there"),
        "tool_json_parses": ToolCheck(PASS, f"{MANIFEST} is sound, dialect {spec.dialect}"),
        "schemas_coherent": ToolCheck(PASS, "input and output are sound schemas"),
        "pyproject_ok": check_pyproject(spec),
        "venv_functional": _check_start(spec, settings.python),
    }
    if spec.pixie is not None and not (folder / PYPROJECT).is_file():
        checks["folder_structure"] = ToolCheck(
            WARN, f"there is no {PYPROJECT}; Pixie itself would refuse the tool"
        )
    if spec.warnings:
        checks["schemas_coherent"] = ToolCheck(FAIL, spec.warnings[0], "\n".join(spec.warnings))
    return spec, checks


def check_pyproject(spec: ToolSpec) -> ToolCheck:
    """Check 4: pyproject.toml parses and names what a tool of its dialect imports."""
    if not (spec.folder / PYPROJECT).exists():
        return ToolCheck(SKIP, f"there is no {PYPROJECT}")
    try:
        listed = read_project(spec).dependencies
    except ConfigError as error:
        return ToolCheck(FAIL, error.detail)
    names = (_DISTRIBUTION.match(each) for each in listed)
    found = {re.sub(r"[-_.]+", "-", each[1]).lower() for each in names if each}
    if missing := [each for each in PIXIE_NEEDS if each not in found and spec.pixie is not None]:
        return ToolCheck(
            WARN, f"dependencies do not name {', '.join(missing)}", "\n".join(listed) or None
        )
    if foreign := [each for each in listed if "@" in each or "://" in each]:
        return ToolCheck(
            WARN, f"not from the package index: {foreign[0][:200]}", "\n".join(foreign)
        )
    return ToolCheck(PASS, f"{len(listed)} dependencies")


def _check_start(spec: ToolSpec, settings_python: str | None) -> ToolCheck:
    if not spec.command:
        try:
            return ToolCheck(PASS, f"runs with {find_interpreter(spec, settings_python)}")
        except StartFailedError as error:
            return ToolCheck(FAIL, error.detail, error.hint)
    program = spec.command[0]
    found = shutil.which(str(spec.folder / program) if "/" in program else program)
    if found is None:
        return ToolCheck(
            FAIL, f"the program {program!r} of the command is not there or not executable"
        )
    return ToolCheck(PASS, f"runs with {found}")


# -- checks 6 to 12: on one instance ---------------------------------------------------------------


class _Answer(NamedTuple):
    """An HTTP answer; of a stream, its first chunk that is not empty."""

    status: int
    content_type: str
    body: bytes

    def refused(self, what: str, status: str = FAIL) -> ToolCheck:
        return ToolCheck(
            status,
            f"{what} {self.status}",
            self.body[:_SHOWN_BYTES].decode("utf-8", "replace") or None,
        )

    def value(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _Trial:
    """One instance of a tool for the length of a validation; a check of it is a method of the
    check's name.
    """

    def __init__(self, tools: Tools, spec: ToolSpec) -> None:
        self.sample = sample_input(spec)
        self.answer: Any = None
        self.stderr = ""
        self._is_json = True
        self._tools = tools
        self._spec = spec
        self._seconds = float(
            (spec.pixie and spec.pixie.validator_timeout_override) or CHECK_SECONDS
        )
        trial = msgspec.structs.replace(spec, start_timeout_seconds=self._seconds)
        self._instance = self._new_instance(tools.as_started(trial))

    def _new_instance(self, spec: ToolSpec) -> ToolInstance:
        instance = ToolInstance(self._tools.supervisor.placement.new_key(), spec.unit, spec)
        instance.trial_env = VALIDATING
        instance.start_method = METHOD
        return instance

    async def run(self, checks: dict[str, ToolCheck]) -> None:
        """Run the checks in their order until one fails; the shutdown is always checked once the
        start succeeded.
        """
        try:
            for name in (each for each in NAMES[5:] if each != "clean_shutdown"):
                try:
                    checks[name] = await getattr(self, name)()
                except PxError as error:  # of the tool: a failed check
                    self.stderr = str(error.extra.get("stderr_tail") or "") or self.stderr
                    details = "\n".join(
                        part for part in (error.hint, error.extra.get("stderr_tail")) if part
                    )
                    checks[name] = ToolCheck(FAIL, clip(error.detail), details or None)
                if checks[name].status == FAIL:
                    break
        finally:
            stopped = await asyncio.shield(self.clean_shutdown())
        if checks["tool_spawns"].status != FAIL:
            checks["clean_shutdown"] = stopped

    async def _ask(self, seconds: float, call: Call, limit: int = _MAX_ANSWER) -> _Answer:
        upstream, asked = self._instance.upstream, f"{call.method} {call.path}"
        assert upstream is not None
        try:
            async with asyncio.timeout(seconds), await upstream.fetch(call) as answer:
                body, _ = await answer.read_up_to(limit)
                return _Answer(
                    answer.status, answer.headers.get("Content-Type", "application/json"), body
                )
        except TimeoutError as error:
            detail = f"{self._spec.unit} did not answer {asked} within {seconds:g} s."
            raise TimedOutError(detail, unit=self._spec.unit) from error
        except RedirectError as error:
            stderr = await self._tools.supervisor.tail(self._instance)
            raise failures.redirect(self._spec, str(error), stderr) from error
        except ContentCodingError as error:
            stderr = await self._tools.supervisor.tail(self._instance)
            raise failures.encoding(self._spec, str(error), stderr) from error
        except BROKEN as error:
            what = f"broke off its answer to {asked} ({type(error).__name__})"
            raise failures.bad_answer(
                self._spec, what, await self._tools.supervisor.tail(self._instance)
            ) from error

    async def _calls(self, value: Any, *, streaming: bool) -> list[Call]:
        spec, root, run_id = self._spec, self._tools.config.data_dir, str(uuid.uuid4())
        if spec.pixie is not None:
            await asyncio.to_thread(make_room, root / spec.name, run_id, spec.pixie.retain_runs)
        return run_calls(
            spec, json.dumps(value).encode(), value, run_id, root, {}, streaming=streaming
        )

    async def _post(self, value: Any) -> _Answer:
        (call,) = await self._calls(value, streaming=False)
        return await self._ask(
            (self._spec.max_runtime_seconds or self._seconds) + RUN_MARGIN_SECONDS, call
        )

    async def tool_spawns(self) -> ToolCheck:
        trouble = ""
        try:
            await self._tools.supervisor.start(self._tools.driver, self._instance)
        except PxError as error:
            if not may_be_the_handover(self._instance):
                raise
            # As a request would have it: once more with a plain port, whose error would be the true
            # one.
            trouble = error.detail
            await self._tools.supervisor.stop(self._tools.driver, self._instance, None)
            self._instance = self._new_instance(with_plain_port(self._instance.spec))
            await self._tools.supervisor.start(self._tools.driver, self._instance)
        health = await self._ask(self._seconds, Call("GET", "/healthz"))
        said = health.value()
        if health.status != 200 or not isinstance(said, dict) or said.get("ok") is not True:
            what = 'GET /healthz does not answer 200 and {"ok": true} but'
            return health.refused(what, FAIL if health.status != 200 else WARN)
        if trouble:
            ready = f"ready after {self._instance.cold_start_ms} ms, but only with a plain port"
            return ToolCheck(WARN, ready, f"{trouble}\n{failures.plain_port_hint(self._spec)}")
        return ToolCheck(PASS, f"ready after {self._instance.cold_start_ms} ms")

    async def schema_matches_disk(self) -> ToolCheck:
        assert self._instance.upstream is not None
        if drift := await schema_drift(self._instance.upstream, self._spec.manifest):
            return ToolCheck(
                WARN, f"GET /schema differs from tool.json at {drift[0]}", "\n".join(drift)
            )
        return ToolCheck(PASS, "GET /schema is tool.json")

    async def sample_input_run(self) -> ToolCheck:
        if self.sample.trouble:
            return ToolCheck(FAIL, f"no input to try: {self.sample.trouble}")
        asked_at = time.time()
        answer = await self._post(self.sample.value)
        if answer.status >= 500:
            return await self._failed_run(answer, asked_at)
        if not 200 <= answer.status < 300:
            return answer.refused("POST /run answers")
        self.answer = answer.value()
        self._is_json = media_type(answer.content_type).endswith(("/json", "+json"))
        if not self._is_json or (self.answer is None and answer.body.strip() != b"null"):
            self.answer, self._is_json = f"{answer.content_type}, {len(answer.body)} bytes", False
        elif (constant := constant_in(answer.body)) is not None:
            text = f"POST /run answers {answer.status} with {constant}, which JSON does not have"
            return ToolCheck(
                WARN, text, "Answer null in its place: many readers of JSON refuse it."
            )
        return ToolCheck(PASS, f"POST /run answers {answer.status}")

    async def _failed_run(self, answer: _Answer, since: float) -> ToolCheck:
        """Return the check of a run that the tool failed, with the cause that its stderr tells."""
        await asyncio.sleep(TRACEBACK_SECONDS)
        self.stderr = await self._tools.supervisor.tail(self._instance, since)
        words = answer.body[:_SHOWN_BYTES].decode("utf-8", "replace")
        error = failures.bad_answer(
            self._spec, f"answers {answer.status}", self.stderr, words=words
        )
        said = error.detail.removeprefix(f"{self._spec.unit} ")
        details = "\n".join(part for part in (error.hint, self.stderr) if part)
        return ToolCheck(FAIL, clip(f"POST /run {said}"), details)

    async def output_conforms(self) -> ToolCheck:
        schema = self._spec.output
        if not self._is_json:
            declared = "an output is declared" if schema else "no output is declared"
            return ToolCheck(
                WARN if schema else PASS, f"the answer is no JSON but {self.answer}; {declared}"
            )
        if found := violations(compile_schema(schema), self.answer):
            lines = [f"{each.pointer or 'the answer'} {each.message}" for each in found]
            return ToolCheck(FAIL, lines[0], "\n".join(lines))
        extra = (
            self.answer.keys() - schema.get("properties", {}).keys()
            if isinstance(self.answer, dict)
            else set()
        )
        if self._spec.pixie is not None and extra:
            return ToolCheck(
                WARN, f"the answer has outputs that are not declared: {', '.join(sorted(extra))}"
            )
        return ToolCheck(PASS, "the answer fits what is declared")

    async def streaming_check(self) -> ToolCheck:
        if self._spec.pixie is not None and not self._spec.pixie.streams:
            return ToolCheck(SKIP, "no output streams")
        *before, streamed = await self._calls(self.sample.value, streaming=True)
        for call in before:
            await self._ask(STREAM_SECONDS, call)
        first = await self._ask(STREAM_SECONDS, streamed, limit=0)
        if self._spec.pixie is None and first.status in NOT_OFFERED:
            return ToolCheck(SKIP, "the tool has no /stream")
        if first.status != 200 or not first.body.strip():
            return first.refused("/stream sends no event and answers")
        return ToolCheck(PASS, "/stream sends events")

    async def reference_fixtures_match(self) -> ToolCheck:
        """Hold answers to known inputs (`reference/fixture_*.json`) against what is expected."""
        troubles: list[str] = []
        skipped: list[str] = []
        folder = self._spec.folder / "reference"
        paths = sorted(folder.glob("fixture_*.json"))
        try:
            tolerances = read_tolerances(folder / TOLERANCES, self._spec)
        except DocumentError as error:
            return ToolCheck(FAIL, f"{error.problem.where()}: {error.problem.message}")
        for path in paths:
            try:
                fixture = read_document(path).value
                if fixture.get("skip_reason"):
                    skipped.append(f"{path.name} is skipped: {fixture['skip_reason']}")
                    continue
                answer = await self._post(fixture["inputs"])
                found = [f"POST /run answers {answer.status}"]
                if answer.status == 200:
                    found = compare(fixture, answer.value(), tolerances)
            except (DocumentError, TypeError, KeyError, AttributeError) as error:
                found = [f"must be an object with inputs and expected_outputs: {error}"]
            troubles += [f"{path.name}: {each}" for each in found]
        if troubles:
            return ToolCheck(FAIL, clip(troubles[0]), "\n".join([*troubles, *skipped]))
        if not paths:
            return ToolCheck(SKIP, "there is no reference/fixture_*.json")
        count = len(paths) - len(skipped)
        if not count:
            return ToolCheck(SKIP, skipped[0], "\n".join(skipped))
        words = "1 fixture matches" if count == 1 else f"{count} fixtures match"
        left_out = f"; {len(skipped)} skipped" if skipped else ""
        return ToolCheck(PASS, f"{words}{left_out}", "\n".join(skipped) or None)

    async def clean_shutdown(self) -> ToolCheck:
        spec, driver, instance = self._spec, self._tools.driver, self._instance
        stopping = self._tools.supervisor.stop(driver, instance, Reason.STOPPED)
        try:
            await self._tools.supervisor.placement.unless_silent(stopping, f"{spec.unit} stopped")
        except KeeperTimeoutError as error:
            return ToolCheck(FAIL, clip(error.detail), error.hint)
        self.stderr = await self._tools.supervisor.tail(instance)
        await driver.trials.drop(spec.name)
        if instance.report.survivors:
            return ToolCheck(FAIL, failures.survived(spec.unit, instance.report).detail)
        if instance.report.killed:
            return ToolCheck(
                WARN,
                f"did not end within {spec.stop_timeout_seconds:g} s of SIGTERM and was killed",
            )
        return ToolCheck(PASS, "ended at SIGTERM")


class Tolerance(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far an output may be off; the two names of a bound are those of numpy and of pytest."""

    atol: float | None = None
    abs: float | None = None
    rtol: float | None = None
    rel: float | None = None
    allow_extra: bool = False


class ToleranceFile(msgspec.Struct, frozen=True):
    """`reference/tolerance.yaml`."""

    overrides: dict[str, Tolerance] = {}  # by key of an output
    defaults: dict[str, Tolerance] = {}  # by type of an output


class Tolerances(NamedTuple):
    """What a tool's fixtures allow beside what they say themselves."""

    file: ToleranceFile = ToleranceFile()
    types: Mapping[str, str] = MappingProxyType({})  # of the declared outputs, by key

    def of(self, key: str) -> Mapping[str, Any]:
        """Return what is allowed for an output; nothing where the file says nothing of it."""
        given = self.file.overrides.get(key) or self.file.defaults.get(self.types.get(key, ""))
        return {} if given is None else msgspec.to_builtins(given)


def read_tolerances(path: Path, spec: ToolSpec) -> Tolerances:
    """Read the tolerances of a tool's fixtures; none where there is no file.

    Raises DocumentError: it is broken.
    """
    if not path.exists():
        return Tolerances()
    document = read_document(path)
    # The reader of YAML leaves numbers as texts; an empty file is None.
    file, problems = convert(document, ToleranceFile, value=document.value or {}, strict=False)
    if file is None:
        raise DocumentError(problems[0])
    if spec.pixie is not None:
        types = {each.key: each.type for each in spec.pixie.outputs}
    else:
        properties = spec.output.get("properties", {})
        types = {
            key: str(each.get("type")) for key, each in properties.items() if isinstance(each, dict)
        }
    return Tolerances(file, types)


def compare(
    fixture: Mapping[str, Any], answer: Any, tolerances: Tolerances | None = None
) -> list[str]:
    """Return how an answer differs from the `expected_outputs` of a fixture; empty when it does
    not.

    `atol` (`abs`), `rtol` (`rel`) and `allow_extra` stand in its `tolerance` for an output, or at
    the top for all; else in `tolerances`.
    """
    tolerances = tolerances or Tolerances()
    is_for_all = not _TOLERANCE_KEYS.isdisjoint(fixture)
    if not isinstance(answer, dict):
        return ["the answer is no object"]
    found: list[str] = []
    for key, value in fixture["expected_outputs"].items():
        given = (fixture.get("tolerance") or {}).get(key) or (
            fixture if is_for_all else tolerances.of(key)
        )
        absolute, relative = (
            given.get("atol", given.get("abs")),
            given.get("rtol", given.get("rel")),
        )
        bounds = (
            (1e-6, 1e-3) if absolute is relative is None else (absolute or 0.0, relative or 0.0)
        )
        if key in answer:
            told = differences(
                _bare(value), _bare(answer[key]), *bounds, extra=given.get("allow_extra") is True
            )
            found += [f"{key}{each}" for each in told]
        else:
            found.append(f"{key} is missing in the answer")
    return found


def _bare(value: Any) -> Any:
    """Unwrap the `{"value": …}` that scalars may have, and the `{"pairs": …}` of a kv."""
    for member in ("value", "pairs"):
        value = value[member] if isinstance(value, dict) and value.keys() == {member} else value
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, dict) and "key" in each for each in value)
    ):
        return {str(each["key"]): each.get("value") for each in value}
    return value


# -- what it is asked ------------------------------------------------------------------------------


class Sample(NamedTuple):
    """An input to try, and why it does not fit (empty when it does)."""

    value: Any
    trouble: str = ""


def sample_input(spec: ToolSpec) -> Sample:
    """Return an input for the tool: its test request, else a generated one."""
    path = spec.folder / TEST_REQUEST
    is_written = path.exists()
    value: Any = {}
    try:
        if is_written:
            value = read_document(path).value
        else:
            value = _plain(spec.input, spec.input) if spec.pixie is None else _pixie(spec.pixie)
        check_input(spec, value)
    except DocumentError as error:
        return Sample(value, f"{error.problem.where()}: {error.problem.message}")
    except InvalidInputError as error:
        faults = [
            f"{each['pointer'] or 'the input'} {each['message']}" for each in error.extra["errors"]
        ]
        if is_written:
            return Sample(
                value, f"{TEST_REQUEST} does not fit the input in {MANIFEST}: {'; '.join(faults)}"
            )
        return Sample(
            value,
            f"one that is made from {MANIFEST} does not fit ({faults[0]}); write {TEST_REQUEST}",
        )
    return Sample(value)


def _plain(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the plainest value that a schema names; whether it fits is for others to check."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if first := schema.get("examples") or schema.get("enum"):
        return first[0]
    if other := schema.get("anyOf") or schema.get("oneOf"):
        return _plain(other[0], root, depth + 1)
    if str(schema.get("$ref", "")).startswith("#/$defs/"):
        return _plain(
            root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/")), root, depth + 1
        )
    kinds, low, high = schema.get("type", "object"), schema.get("minimum"), schema.get("maximum")
    match (
        kinds
        if isinstance(kinds, str)
        else next((kind for kind in kinds if kind != "null"), "null")
    ):
        case "object":
            known, must = schema.get("properties", {}), schema.get("required", ())
            wanted = [
                name for name, each in known.items() if isinstance(each, dict) and "default" in each
            ]
            return {
                name: _plain(known.get(name, {}), root, depth + 1)
                for name in dict.fromkeys([*wanted, *must])
            }
        case "array":
            return [_plain(schema.get("items", {}), root, depth + 1)] * min(
                int(schema.get("minItems", 0)), 1000
            )
        case "string":
            return "sample"[: schema.get("maxLength")]
        case "integer" | "number" as kind:
            if low is None or high is None:
                return min(0, high or 0) if low is None else low
            return (low + high) // 2 if kind == "integer" else low / 2 + high / 2
        case "boolean":
            return False
    return None


def _pixie(traits: PixieManifest) -> dict[str, Any]:
    """Return values for all inputs but those that are optional without default, or hidden by
    their `show_if`.
    """
    if traits.layout == "chat":
        return {"messages": [{"role": "user", "content": "Validation probe"}], "history": []}
    values = {each.key: each.default for each in traits.inputs if each.default is not None}
    for each in traits.inputs:
        hidden = each.show_if is not None and values.get(each.show_if.key) != each.show_if.equals
        if each.default is None and each.required and not hidden:
            schema = value_schema(each)
            value = _PIXIES.get(each.type) or _plain(schema, schema)
            values[each.key] = [value] if each.multiple and each.type in FILE_TYPES else value
    return values
