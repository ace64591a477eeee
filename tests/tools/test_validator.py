"""The twelve checks, on real tools that are started, asked and stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import supervisord_py
from supervisord_py.errors import TimedOutError
from supervisord_py.tools.checking.static_checks import canonical, check_pyproject
from supervisord_py.tools.checking.validation import NAMES, Check, Report, Status
from supervisord_py.tools.checking.validator import ProbeAnswer, ProbeStop, check_start, validate_tool
from supervisord_py.tools.config import ToolsConfig
from supervisord_py.tools.declaring.manifest import load_tool
from supervisord_py.tools.making.scaffold import new_tool
from tool_folders import pixie, pixie_manifest, plain, write_tool
from tool_processes import SubprocessProbe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.spec import ToolSpec

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EXAMPLES = Path(supervisord_py.__file__).parent / "examples" / "tools"


class Scripted:
    """A probe that answers what it is told: `answers` by `METHOD path`, a status with a JSON value or bytes."""

    def __init__(self, manifest: Any, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"healthz": (200, {"ok": True}), "schema": (200, manifest), **answers}
        self.stopped = ProbeStop(0.1)
        self.requests: list[tuple[str, str, bytes, Mapping[str, str]]] = []
        self.env: Mapping[str, str] = {}
        self.timeout = 0.0
        self.timeouts: set[float] = set()
        self.stops = 0

    async def start(self, extra_env: Mapping[str, str], *, timeout_seconds: float) -> float:
        self.env, self.timeout = extra_env, timeout_seconds
        return 12.0

    def _answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ProbeAnswer:
        self.requests.append((method, path, body, headers))
        found = self.answers.get(path.partition("?")[0].strip("/"), (404, {}))
        if isinstance(found, Exception):
            raise found
        status, content, *kind = found
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return ProbeAnswer(status, {"content-type": kind[0] if kind else "application/json"}, raw)

    async def get(self, path: str, *, timeout_seconds: float) -> ProbeAnswer:
        self.timeouts.add(timeout_seconds)
        return self._answer("GET", path, b"", {})

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float) -> ProbeAnswer:
        self.timeouts.add(timeout_seconds)
        return self._answer("POST", path, body, headers)

    async def first_chunk(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float
    ) -> ProbeAnswer:
        self.timeouts.add(timeout_seconds)
        return self._answer(method, path, body, headers)

    async def stop(self) -> ProbeStop:
        self.stops += 1
        return self.stopped

    def spawn_log(self) -> str:
        return "log"


def config(tmp_path: Path) -> ToolsConfig:
    return ToolsConfig(data_dir=tmp_path / "artefacts", run_dir=tmp_path, validate_timeout_seconds=60)


def by_name(report: Report) -> dict[str, Check]:
    assert [check.name for check in report.checks] == list(NAMES)
    return {check.name: check for check in report.checks}


async def tried(tmp_path: Path, spec: ToolSpec, **answers: Any) -> tuple[dict[str, Check], Scripted]:
    probe = Scripted(spec.manifest, **answers)
    report = await validate_tool(spec.folder, config(tmp_path), lambda _spec: probe, NOW)
    assert probe.stops == 1
    return by_name(report), probe


async def really(tmp_path: Path, folder: Path, *, stop_seconds: float = 60.0) -> tuple[Report, SubprocessProbe | None]:
    probes: list[SubprocessProbe] = []

    def probe_for(spec: ToolSpec) -> SubprocessProbe:
        probes.append(SubprocessProbe(replace(spec, stop_timeout_seconds=stop_seconds)))
        return probes[-1]

    report = await validate_tool(folder, config(tmp_path), probe_for, NOW)
    return report, probes[0] if probes else None


async def test_a_good_tool_passes(tmp_path: Path) -> None:
    folder = new_tool(tmp_path, "x")
    report, probe = await really(tmp_path, folder)
    statuses = [check.status for check in report.checks]
    passed, skipped = Status.PASS, Status.SKIP
    assert statuses == [passed] * 3 + [skipped] + [passed] * 5 + [skipped, passed, skipped], report.checks
    assert report.overall is Status.PASS
    assert probe is not None
    assert probe.stops == 1
    document = report.document()
    assert document["schema"] == "px.validation/1"
    assert document["timestamp"] == "2026-03-01T12:00:00.000Z"
    assert (document["tool_id"], document["tool_path"], document["overall"]) == ("x", str(folder), "pass")
    assert document["sample_inputs"] == {"text": "hello", "times": 3}
    assert document["sample_output"] == {"result": "hellohellohello", "length": 15}
    assert json.loads(json.dumps(document)) == document


async def test_the_standard_library_example_passes_with_its_stream(tmp_path: Path) -> None:
    report, _ = await really(tmp_path, EXAMPLES / "compound-interest")
    assert report.overall is Status.PASS, report.document()
    assert by_name(report)["streaming_check"].status is Status.PASS


async def test_a_tool_that_raises_at_import_fails_with_its_words(tmp_path: Path) -> None:
    folder = new_tool(tmp_path, "x")
    (folder / "main.py").write_text("import no_such_module_px\n")
    report, probe = await really(tmp_path, folder)
    checks = by_name(report)
    assert checks["tool_spawns"].status is Status.FAIL
    assert "no_such_module_px" in (checks["tool_spawns"].details or "")
    assert "no_such_module_px" in (report.spawn_log or "")
    assert {checks[name].status for name in NAMES[6:]} == {Status.SKIP}
    assert probe is not None
    assert probe.stops == 1


async def test_a_tool_that_ignores_the_signal_is_a_warning(tmp_path: Path) -> None:
    folder = new_tool(tmp_path, "x")
    main = (folder / "main.py").read_text().replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    (folder / "main.py").write_text(main)
    report, _ = await really(tmp_path, folder, stop_seconds=0.2)
    assert by_name(report)["clean_shutdown"].status is Status.WARN
    assert report.overall is Status.WARN


async def test_a_broken_file_is_not_started(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "folder_structure"),
        ("{", "tool_json_parses"),
        ({"name": "tool", "zzz": 1}, "tool_json_parses"),
        ({"name": "tool", "input": {"type": "x"}}, "schemas_coherent"),
        ({"name": "tool", "entrypoint": "nope.py"}, "folder_structure"),
        (pixie_manifest(input_transport="pigeon"), "tool_json_parses"),
        (pixie_manifest(inputs=[{"key": "a", "type": "x"}, {"key": "b", "type": "y"}]), "schemas_coherent"),
    ]
    for manifest, failing in cases:
        folder = write_tool(tmp_path, "tool", manifest)
        if manifest is None:
            (folder / "tool.json").unlink()
        report, probe = await really(tmp_path, folder)
        checks = by_name(report)
        assert probe is None
        assert [name for name in NAMES if checks[name].status is Status.FAIL] == [failing], manifest
        assert report.overall is Status.FAIL
    assert len((checks["schemas_coherent"].details or "").splitlines()) == 2


async def test_what_does_not_fit_together_is_not_started(tmp_path: Path) -> None:
    spec = pixie(tmp_path, inputs=[{"key": "h", "type": "hidden", "label": "H"}])
    report, probe = await really(tmp_path, spec.folder)
    assert probe is None
    assert by_name(report)["schemas_coherent"].status is Status.FAIL


async def test_doubtful_declarations_are_warnings(tmp_path: Path) -> None:
    spec = plain(tmp_path, command=["python3", "main.py"])
    checks, _ = await tried(tmp_path, spec, run=(200, {}))
    assert checks["schemas_coherent"].status is Status.WARN
    assert checks["folder_structure"].status is Status.PASS


async def test_a_half_built_environment_fails_before_anything_starts(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    (spec.folder / ".venv").mkdir()
    (spec.folder / ".venv" / ".px-incomplete").touch()
    checks = by_name((await really(tmp_path, spec.folder))[0])
    assert checks["folder_structure"].status is Status.FAIL
    assert "pxctl tools sync tool" in checks["folder_structure"].message


@pytest.mark.parametrize(
    ("answers", "name", "status", "words"),
    [
        ({"healthz": (500, "no")}, "tool_spawns", Status.FAIL, "answers 500"),
        ({"healthz": (200, {"ok": False})}, "tool_spawns", Status.WARN, "does not answer"),
        ({"healthz": TimedOutError("too late")}, "tool_spawns", Status.FAIL, "too late"),
        ({"schema": (404, {})}, "schema_matches_disk", Status.WARN, "answers 404"),
        ({"schema": (200, {"name": "other"})}, "schema_matches_disk", Status.WARN, "/name"),
        ({"schema": (200, b"{")}, "schema_matches_disk", Status.WARN, "differs"),
        ({"run": (500, "boom")}, "sample_input_run", Status.FAIL, "answers 500"),
        ({"run": TimedOutError("no answer")}, "sample_input_run", Status.FAIL, "no answer"),
        ({"run": (200, {"out": "x"})}, "output_conforms", Status.FAIL, "/out must be of type integer"),
        ({"run": (200, b"nonsense")}, "output_conforms", Status.WARN, "is no JSON"),
        ({"run": (200, b"PNG", "image/png")}, "output_conforms", Status.WARN, "image/png, 3 bytes"),
        ({"run": (200, {"out": 1}), "stream": (200, b"")}, "streaming_check", Status.FAIL, "without an event"),
        ({"run": (200, {"out": 1}), "stream": (501, b"")}, "streaming_check", Status.SKIP, "no /stream"),
        ({"run": (200, {"out": 1}), "stream": (200, b"{}\n")}, "streaming_check", Status.PASS, "sends events"),
    ],
)
async def test_each_check_of_a_running_tool(
    tmp_path: Path, answers: dict[str, Any], name: str, status: Status, words: str
) -> None:
    spec = plain(tmp_path, output={"type": "object", "properties": {"out": {"type": "integer"}}})
    checks, probe = await tried(tmp_path, spec, **answers)
    assert checks[name].status is status
    assert words in checks[name].message
    if status is Status.FAIL:
        later = [checks[each].status for each in NAMES[NAMES.index(name) + 1 :] if each != "clean_shutdown"]
        assert set(later) <= {Status.SKIP}
    assert probe.env == {"PIXIE_VALIDATE": "true"}


async def test_an_answer_that_is_no_json_is_fine_where_none_is_declared(tmp_path: Path) -> None:
    checks, _ = await tried(tmp_path, plain(tmp_path), run=(200, b"PNG", "image/png"))
    assert checks["output_conforms"].status is Status.PASS


async def test_a_test_request_that_does_not_fit_fails(tmp_path: Path) -> None:
    spec = plain(tmp_path, input={"type": "object"})
    (spec.folder / "test-request.json").write_text("[]")
    checks, _ = await tried(tmp_path, spec)
    assert "no input to try" in checks["sample_input_run"].message


async def test_survivors_of_the_stop_fail(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    probe = Scripted(spec.manifest, run=(200, {}))
    probe.stopped = ProbeStop(1.0, killed=True, survivors=("sleep (99)",))
    report = await validate_tool(spec.folder, config(tmp_path), lambda _spec: probe, NOW)
    assert by_name(report)["clean_shutdown"].message == "survived the stop: sleep (99)"
    assert report.overall is Status.FAIL
    assert report.spawn_log == "log"


async def test_a_pixie_tool_is_asked_in_its_own_dialect(tmp_path: Path) -> None:
    spec = pixie(
        tmp_path,
        validator_timeout_override=77,
        outputs=[
            {"key": "out", "type": "number", "label": "O"},
            {"key": "s", "type": "log", "label": "S", "streaming": True},
        ],
    )
    answers = {"run": (200, {"out": 1, "extra": 2}), "stream": (200, b"data: {}\n\n")}
    checks, probe = await tried(tmp_path, spec, **answers)
    assert probe.timeout == 77
    assert probe.timeouts == {77, 60, 65, 10}
    assert checks["folder_structure"].status is Status.WARN
    assert checks["output_conforms"].status is Status.WARN
    assert "extra" in checks["output_conforms"].message
    assert checks["streaming_check"].status is Status.PASS
    runs = [request for request in probe.requests if request[1] == "/run"]
    stream = next(request for request in probe.requests if request[1].startswith("/stream"))
    body = json.loads(runs[-1][2])
    assert stream[:2] == ("GET", f"/stream?run_id={body['run_id']}")
    assert body["inputs"] == {"a": 1}
    assert Path(runs[-1][3]["X-Pixie-Artefacts-Dir"]).is_dir()


async def test_a_pixie_tool_that_does_not_stream_is_not_asked_to(tmp_path: Path) -> None:
    checks, probe = await tried(tmp_path, pixie(tmp_path), run=(200, {"out": 1}))
    assert checks["streaming_check"].status is Status.SKIP
    assert not [request for request in probe.requests if request[1].startswith("/stream")]


async def test_answers_are_held_against_their_reference(tmp_path: Path) -> None:
    outputs = [
        {"key": "n", "type": "number", "label": "N"},
        {"key": "c", "type": "chart_line", "label": "C"},
        {"key": "t", "type": "text", "label": "T"},
    ]
    spec = pixie(tmp_path, outputs=outputs)
    folder = spec.folder / "reference"
    folder.mkdir()
    chart = {"x": [1.0], "series": []}
    answer = {"n": {"value": 1.00001}, "c": {"x": [1.0005], "series": []}, "t": "x"}

    def expect(expected: Any, **more: Any) -> None:
        (folder / "fixture_a.json").write_text(json.dumps({"inputs": {"a": 2}, "expected_outputs": expected, **more}))

    async def outcome() -> Check:
        return (await tried(tmp_path, spec, run=(200, answer)))[0]["reference_fixtures_match"]

    expect({"n": 1, "c": chart, "t": "x"})
    assert await outcome() == Check("reference_fixtures_match", Status.PASS, "1 fixtures match")
    expect({"n": 1.1}, tolerance={"n": {"abs": 0.2}})
    assert (await outcome()).status is Status.PASS
    expect({"n": 1.1, "t": "y", "zz": 1})
    failed = await outcome()
    assert failed.status is Status.FAIL
    assert (failed.details or "").splitlines() == [
        "fixture_a.json: n/: expected 1.1, got 1.00001",
        "fixture_a.json: t/: expected 'y', got 'x'",
        "fixture_a.json: zz is missing in the answer",
    ]
    (folder / "fixture_b.json").write_text("{")
    (folder / "fixture_c.json").write_text("{}")
    expect({})
    assert len(((await outcome()).details or "").splitlines()) == 2


async def test_a_fixture_that_fails_to_run_is_a_difference(tmp_path: Path) -> None:
    spec = plain(tmp_path)
    (spec.folder / "reference").mkdir()
    (spec.folder / "reference" / "fixture_a.json").write_text('{"expected_outputs": {"a": 1}}')
    for run, words in (((201, {}), "answers 201"), ((200, [1]), "the answer is no object")):
        checks, _ = await tried(tmp_path, spec, run=run)
        assert words in checks["reference_fixtures_match"].message


def test_what_a_tool_is_started_with_is_looked_for(tmp_path: Path) -> None:
    assert check_start(plain(tmp_path), None).status is Status.PASS
    missing = check_start(plain(tmp_path, python="/nowhere/python"), None)
    assert (missing.status, missing.details) == (Status.FAIL, "pxctl tools sync tool")
    assert check_start(plain(tmp_path, command=["sh", "{port}"]), None).status is Status.PASS
    absent = check_start(plain(tmp_path, command=["./serve", "{port}"]), None)
    assert absent.status is Status.FAIL
    (tmp_path / "tool" / "serve").touch(0o755)
    assert check_start(plain(tmp_path, command=["./serve", "{port}"]), None).status is Status.PASS


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("[[", Status.FAIL, "pyproject.toml"),
        ("project = 5", Status.WARN, "do not name fastapi"),
        ("[project]\ndependencies = 5", Status.FAIL, "array of strings"),
        ("[project]\ndependencies = ['fastapi']", Status.WARN, "uvicorn, pydantic, python-dotenv"),
        (
            "[project]\ndependencies = ['FastAPI>=0.1', 'uvicorn[standard]', 'pydantic', 'python_dotenv']",
            Status.PASS,
            "4 dependencies",
        ),
        (
            "[project]\ndependencies = ['fastapi', 'uvicorn', 'pydantic', 'python-dotenv', 'x @ https://h/x.whl']",
            Status.WARN,
            "not from the package index",
        ),
    ],
)
def test_dependencies_of_a_pixie_tool(tmp_path: Path, content: str, status: Status, words: str) -> None:
    folder = write_tool(tmp_path, "tool", pixie_manifest(), pyproject__toml=content)
    check = check_pyproject(load_tool(folder))
    assert check.status is status
    assert words in check.message


def test_names_of_distributions() -> None:
    assert canonical("Python_DotEnv[cli] >= 1") == "python-dotenv"
    assert canonical("???") == ""
