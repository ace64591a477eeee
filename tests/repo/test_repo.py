"""The repository: its scripts and targets, lock files, the workflow that others run, the demo, the release notes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from supervisord_py import __version__

ROOT = Path(__file__).parents[2]


def test_links_in_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert "://" in target or (ROOT / target).exists(), target


@pytest.mark.deep
def test_the_demo_shows_what_it_promises_and_leaves_nothing(require: Callable[[object, str], None]) -> None:
    """It is run as it is, but for the environment, which is the tests' own."""
    require((Path(sys.prefix) / "bin" / "pxctl").exists(), "needs the installed commands")
    require(shutil.which("node"), "needs node")
    before = set(Path("/tmp").glob("pxdemo.*"))
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = os.environ | {"VENV": sys.prefix}
    demo = subprocess.run([ROOT / ".ci" / "demo"], env=env, timeout=110, check=False, **how)
    for promised in ('"final_balance": 1647.01', "both are below 1e-6: agreed", "pxd stopped"):
        assert (demo.returncode, promised in demo.stdout) == (0, True), demo.stdout
    assert (ROOT / ".demo" / "lorenz.png").read_bytes().startswith(b"\x89PNG")
    assert set(Path("/tmp").glob("pxdemo.*")) == before


def test_the_release_notes_are_the_newest_part_of_the_changelog() -> None:
    notes = subprocess.run(["make", "-s", "notes"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert notes.startswith(f"## [{__version__.partition('.dev')[0]}]")
    assert (notes.count("\n## "), "### " in notes) == (0, True)


# -- locks ------------------------------------------------------------------------------------------------------------

LOCKS = ("requirements.lock", "requirements-demo.lock", "requirements-dev.lock")  # each has all of the one before
PEERS = tuple(str(each.relative_to(ROOT)) for each in sorted((ROOT / "tests" / "peers").glob("*.lock")))


def locked(name: str) -> dict[str, list[Requirement]]:
    """Return the pinned requirements of a lock by canonical name; several where markers tell them apart."""
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line.split("--hash")[0])
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


@pytest.mark.parametrize("number", range(len(LOCKS)), ids=LOCKS)
def test_every_declared_dependency_is_locked_within_its_bounds_and_alike_in_all_locks(number: int) -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts, pins = list(project["project"]["dependencies"]), locked(LOCKS[number])
    for group in ("demo", "dev")[:number]:
        texts += [each for each in project["dependency-groups"][group] if isinstance(each, str)]
    for wanted in map(Requirement, texts):
        for pin in pins[canonicalize_name(wanted.name)]:  # KeyError: run make lock
            (exact,) = pin.specifier
            assert wanted.specifier.contains(Version(exact.version), prereleases=True), f"{pin} against {wanted}"
    for name, smaller in locked(LOCKS[max(0, number - 1)]).items():
        assert {str(pin.specifier) for pin in pins[name]} == {str(pin.specifier) for pin in smaller}, name


@pytest.mark.parametrize("name", LOCKS + PEERS)
def test_every_pin_is_exact_and_hashed_and_no_address_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    for block in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert re.match(r"[\w.-]+(\[\S+\])?==\S+ .*--hash=sha256:", block, re.DOTALL), block
    assert not re.search(r"://|^\s*(-i|-f|--(extra-)?index|--find-links|--trusted-host)", text, re.MULTILINE)


def test_no_file_of_the_project_names_a_package_index() -> None:
    flags = r"(--(extra-)?index-url|--find-links|--trusted-host|PIP_INDEX_URL|UV_INDEX)"
    option = rf"{flags}[= ]\S*(https?://(?!127\.)[\w-]+\.|file:///)|pypi\." + "org/simple"
    found = subprocess.run(["git", "grep", "--untracked", "-IlP", option], cwd=ROOT, capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (1, b"", b"")


# -- the workflow -----------------------------------------------------------------------------------------------------


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


# Of GitHub's workflow syntax what we use, every scalar as text (YAML 1.1 takes the key `on` for true).
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
USES = _object("uses", name={}, uses={"pattern": r"^[\w-]+/[\w-]+@v\d+$"}, **{"with": TEXTS})
STEPS = {"type": "array", "items": {"oneOf": [USES, _object("run", name={}, run={}, env=TEXTS)]}, "minItems": 1}
JOB = _object("runs-on", "timeout-minutes", "steps", env=TEXTS, strategy={"type": "object"}, steps=STEPS)
JOB["properties"] |= {"runs-on": {"pattern": r"^(ubuntu|macos)-\d+(\.\d+)?$"}, "timeout-minutes": {"pattern": r"^\d+$"}}
TOP = {"name": {}, "on": _object(push=_object(branches={"type": "array"}), pull_request={"const": ""})}
TOP |= {"permissions": {"const": {"contents": "read"}}, "jobs": {"type": "object", "additionalProperties": JOB}}


def test_the_workflow_is_valid_and_runs_make_test_on_linux_and_on_macos() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    workflow = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes nothing but texts
    jsonschema_rs.validator_for(_object(*TOP, **TOP)).validate(workflow)
    jobs = [job for job in workflow["jobs"].values() if any("make test" in it.get("run", "") for it in job["steps"])]
    assert {job["runs-on"].partition("-")[0] for job in jobs} == {"ubuntu", "macos"}
