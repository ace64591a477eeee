"""The repository: scripts and targets, lock files, the workflow that others run, the demo,
release notes, man pages.
"""

from __future__ import annotations

import json
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

from supervisord_py import __version__, errors
from supervisord_py.config.settings import DEFAULTS, KEYS, value_of
from supervisord_py.daemon.main import main as pxd
from supervisord_py.errors import PxError
from supervisord_py.tools.manifest import COMMON_KEYS, OWN_KEYS, PIXIE_KEYS, PLAIN_KEYS

ROOT = Path(__file__).parents[2]


def test_links_in_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert "://" in target or (ROOT / target).exists(), target


@pytest.mark.deep
def test_the_demo_shows_what_it_promises_and_leaves_nothing(
    require: Callable[[object, str], None],
) -> None:
    """It is run as it is, but for the environment, which is the tests' own."""
    require((Path(sys.prefix) / "bin" / "pxctl").exists(), "needs the installed commands")
    require(shutil.which("node"), "needs node")
    before = set(Path("/tmp").glob("pxdemo.*"))
    how = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    env = os.environ | {"VENV": sys.prefix}
    demo = subprocess.run([ROOT / ".ci" / "demo"], env=env, timeout=110, check=False, **how)
    for promised in ('"final_balance": 1647.01', "both are below 1e-6: agreed", "pxd stopped"):
        assert (demo.returncode, promised in demo.stdout) == (0, True), demo.stdout
    assert (ROOT / ".demo" / "lorenz.png").read_bytes().startswith(b"\x89PNG")
    assert set(Path("/tmp").glob("pxdemo.*")) == before


def test_the_release_notes_are_the_newest_part_of_the_changelog() -> None:
    notes = subprocess.run(
        ["make", "-s", "notes"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert notes.startswith(f"## [{__version__.partition('.dev')[0]}]")
    assert (notes.count("\n## "), "### " in notes) == (0, True)


# -- locks -----------------------------------------------------------------------------------------

# each has all of the one before
LOCKS = ("requirements.lock", "requirements-demo.lock", "requirements-dev.lock")
PEERS = tuple(
    str(each.relative_to(ROOT)) for each in sorted((ROOT / "tests" / "peers").glob("*.lock"))
)


def locked(name: str) -> dict[str, list[Requirement]]:
    """Return the pinned requirements of a lock by canonical name; several where markers tell
    them apart.
    """
    found: dict[str, list[Requirement]] = {}
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line.split("--hash")[0])
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


@pytest.mark.parametrize("number", range(len(LOCKS)), ids=LOCKS)
def test_every_declared_dependency_is_locked_within_its_bounds_and_alike_in_all_locks(
    number: int,
) -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts, pins = list(project["project"]["dependencies"]), locked(LOCKS[number])
    for group in ("demo", "dev")[:number]:
        texts += [each for each in project["dependency-groups"][group] if isinstance(each, str)]
    for wanted in map(Requirement, texts):
        for pin in pins[canonicalize_name(wanted.name)]:  # KeyError: run make lock
            (exact,) = pin.specifier
            assert wanted.specifier.contains(Version(exact.version), prereleases=True), (
                f"{pin} against {wanted}"
            )
    for name, smaller in locked(LOCKS[max(0, number - 1)]).items():
        assert {str(pin.specifier) for pin in pins[name]} == {
            str(pin.specifier) for pin in smaller
        }, name


@pytest.mark.parametrize("name", LOCKS + PEERS)
def test_every_pin_is_exact_and_hashed_and_no_address_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    for block in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert re.match(r"[\w.-]+(\[\S+\])?==\S+ .*--hash=sha256:", block, re.DOTALL), block
    assert not re.search(
        r"://|^\s*(-i|-f|--(extra-)?index|--find-links|--trusted-host)", text, re.MULTILINE
    )


def test_no_file_of_the_project_names_a_package_index() -> None:
    flags = r"(--(extra-)?index-url|--find-links|--trusted-host|PIP_INDEX_URL|UV_INDEX)"
    option = rf"{flags}[= ]\S*(https?://(?!127\.)[\w-]+\.|file:///)|pypi\." + "org/simple"
    found = subprocess.run(
        ["git", "grep", "--untracked", "-IlP", option], cwd=ROOT, capture_output=True, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (1, b"", b"")


# -- the workflow ----------------------------------------------------------------------------------


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


# Of GitHub's workflow syntax what we use, every scalar as text (YAML 1.1 takes the key `on` for
# true).
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
USES = _object("uses", name={}, uses={"pattern": r"^[\w-]+/[\w-]+@v\d+$"}, **{"with": TEXTS})
STEPS = {
    "type": "array",
    "items": {"oneOf": [USES, _object("run", name={}, run={}, env=TEXTS)]},
    "minItems": 1,
}
JOB = _object(
    "runs-on", "timeout-minutes", "steps", env=TEXTS, strategy={"type": "object"}, steps=STEPS
)
JOB["properties"] |= {
    "runs-on": {"pattern": r"^(ubuntu|macos)-\d+(\.\d+)?$"},
    "timeout-minutes": {"pattern": r"^\d+$"},
}
TOP = {
    "name": {},
    "on": _object(push=_object(branches={"type": "array"}), pull_request={"const": ""}),
}
TOP |= {
    "permissions": {"const": {"contents": "read"}},
    "jobs": {"type": "object", "additionalProperties": JOB},
}


def test_the_workflow_is_valid_and_runs_make_test_on_linux_and_on_macos() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    workflow = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes nothing but texts
    jsonschema_rs.validator_for(_object(*TOP, **TOP)).validate(workflow)
    jobs = [
        job
        for job in workflow["jobs"].values()
        if any("make test" in it.get("run", "") for it in job["steps"])
    ]
    assert {job["runs-on"].partition("-")[0] for job in jobs} == {"ubuntu", "macos"}


# -- the man pages: well-formed, and complete where the code can say what complete is --------------

MAN = ROOT / "man"
PAGES = sorted(str(path.relative_to(MAN)) for path in MAN.rglob("*.[1-8]"))


def source(page: str) -> str:
    return (MAN / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_formatted_without_a_warning_and_fits_into_80_columns(
    page: str, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("groff"), "needs groff")
    formatted = subprocess.run(
        ["groff", "-t", "-man", "-ww", "-Tutf8", MAN / page], capture_output=True, check=True
    )
    assert (formatted.stderr, len(formatted.stdout) > 500) == (b"", True)
    plain = subprocess.run(
        ["groff", "-t", "-man", "-rLL=78n", "-Tutf8", "-P-cbou", MAN / page],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line for line in plain.stdout.splitlines() if len(line) > 80] == []
    headings = re.findall(r"^\.SH \"?(.+?)\"?$", source(page), re.MULTILINE)
    assert (headings[0], headings[-1]) == ("NAME", "SEE ALSO")


def test_pages_refer_only_to_pages_that_exist() -> None:
    ours = {Path(page).name for page in PAGES}
    for page in PAGES:
        for name, section in re.findall(r"^\.BR ([\w.\\-]+) \((\d)\)", source(page), re.MULTILINE):
            target = name.replace("\\-", "-")
            assert f"{target}.{section}" in ours or not target.startswith(("px", "tool")), (
                page,
                target,
            )


def test_the_settings_are_documented_with_their_defaults_and_no_others() -> None:
    _, *parts = re.split(r"^\.SS \[(\w+)\]$", source("man5/pxd.toml.5"), flags=re.MULTILINE)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    tags = {
        (section, key): tag.replace("\\(dq", '"')
        for section, text in texts.items()
        for key, tag in re.findall(r"^\.TP\n\.BR? (\w+)(.*)", text, re.MULTILINE)
    }
    assert sorted(tags) == sorted(KEYS)
    for (section, key), tag in tags.items():
        default = value_of(DEFAULTS, section, key)
        if key in {"env_allow", "env_deny"}:
            assert set(re.findall(r"^\.BR (\S+) [,.]$", texts[section], re.MULTILINE)) >= set(
                default
            )
        else:
            assert tag == f' " ({"none" if default is None else json.dumps(default)})"', (
                section,
                key,
            )


def test_every_key_of_a_tool_is_documented() -> None:
    text = source("man5/tool.json.5")
    for key in {*PLAIN_KEYS, *PIXIE_KEYS, *COMMON_KEYS, *OWN_KEYS}:
        assert re.search(rf"^\.BR?\b.*\b{key}\b", text, re.MULTILINE), key


def test_every_option_of_the_daemon_is_documented() -> None:
    text = source("man8/pxd.8").replace("\\-", "-")
    for parameter in pxd.params:
        for name in parameter.opts:
            assert name in text, name


def test_every_route_is_documented_with_its_parameters() -> None:
    from msgspec.structs import fields

    from supervisord_py.api.routes import ROUTES, handler_of

    text = source("man7/pxd-api.7").replace("\\-", "-")
    for route in ROUTES:
        line = re.search(
            rf'^\.BI? "?{route.method} {re.escape(route.path)}(\?.*)?$', text, re.MULTILINE
        )
        assert line, f"{route.method} {route.path} is not in pxd-api.7"
        for parameter in fields(handler_of(route.handler).query):
            assert f"{parameter.encode_name}=" in line[0], f"{route.path}: {parameter.encode_name}"


def test_every_kind_of_error_is_documented_with_its_status() -> None:
    rows = re.findall(r'^\.BR (\d{3}) " (.+)"$', source("man7/pxd-api.7"), re.MULTILINE)
    documented = {kind: int(status) for status, kinds in rows for kind in kinds.split(", ")}
    kinds = {
        it.kind: it.status
        for it in vars(errors).values()
        if isinstance(it, type) and issubclass(it, PxError)
    }
    del kinds[PxError.kind]
    assert kinds.items() <= documented.items()
