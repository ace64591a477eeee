"""What others run: the workflow is one that GitHub takes, and runs `make test` on both systems; the release notes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from supervisord_py import __version__

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


TEXT, TEXTS = {"type": "string", "minLength": 1}, {"type": "object", "additionalProperties": {"type": "string"}}
STEPS = {
    "oneOf": [
        _object("uses", name=TEXT, uses={"pattern": r"^[\w-]+/[\w-]+@v\d+$"}, **{"with": TEXTS}),
        _object("run", name=TEXT, run=TEXT, env=TEXTS),
    ]
}
MATRIX = {"type": "object", "additionalProperties": {"type": "array", "items": TEXT, "minItems": 1}}
JOB = _object(
    "runs-on",
    "timeout-minutes",
    "steps",
    **{"runs-on": {"pattern": r"^(ubuntu|macos)-\d+(\.\d+)?$"}, "timeout-minutes": {"pattern": r"^\d+$"}},
    env=TEXTS,
    strategy=_object("matrix", matrix=MATRIX, **{"fail-fast": {"enum": ["true", "false"]}}),
    steps={"type": "array", "items": STEPS, "minItems": 1},
)
SCHEMA = _object(
    "name",
    "on",
    "permissions",
    "jobs",
    name=TEXT,
    on=_object(push=_object(branches={"type": "array", "items": TEXT}), pull_request={"const": ""}),
    permissions={"const": {"contents": "read"}},
    jobs={"type": "object", "additionalProperties": JOB, "minProperties": 1},
)
"""Of the workflow syntax what we use, every scalar as text (YAML 1.1 takes the key `on` for true)."""


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.load(WORKFLOW.read_text(), yaml.BaseLoader)  # noqa: S506 - it makes nothing but texts


def test_the_workflow_is_valid(workflow: Any) -> None:
    jsonschema_rs.validator_for(SCHEMA).validate(workflow)


def test_make_test_runs_on_linux_and_on_macos(workflow: Any) -> None:
    systems = {
        job["runs-on"].partition("-")[0]
        for job in workflow["jobs"].values()
        if any(step.get("run", "").endswith("make test") for step in job["steps"])
    }
    assert systems == {"ubuntu", "macos"}


def test_the_release_notes_are_the_newest_part_of_the_changelog() -> None:
    notes = subprocess.run(["make", "-s", "notes"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert notes.startswith(f"## [{__version__.partition('.dev')[0]}]")
    assert notes.count("\n## ") == 0
    assert "### " in notes
