"""The lock files: complete, hashed, and free of addresses."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-demo.lock", "requirements-dev.lock")
PEERS = tuple(str(each.relative_to(ROOT)) for each in sorted((ROOT / "tests" / "peers").glob("*.lock")))


def locked(name: str) -> dict[str, list[Requirement]]:
    """Return the pinned requirements of a lock by canonical name; several where markers tell them apart."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    found: dict[str, list[Requirement]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line.split("--hash")[0])
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def declared(name: str) -> list[Requirement]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = list(project["project"]["dependencies"])
    if name != "requirements.lock":
        texts += project["dependency-groups"]["demo"]
    if name == "requirements-dev.lock":
        texts += [each for each in project["dependency-groups"]["dev"] if isinstance(each, str)]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", LOCKS)
def test_every_declared_dependency_is_locked_within_its_bounds(name: str) -> None:
    pins = locked(name)
    for wanted in declared(name):
        assert canonicalize_name(wanted.name) in pins, f"{wanted.name} is not in {name}: run make lock"
        for pin in pins[canonicalize_name(wanted.name)]:
            (exact,) = pin.specifier
            assert wanted.specifier.contains(Version(exact.version), prereleases=True), f"{pin} against {wanted}"


@pytest.mark.parametrize("name", LOCKS + PEERS)
def test_every_pin_is_exact_and_hashed_and_no_address_is_named(name: str) -> None:
    for pins in locked(name).values():
        assert all([each.operator for each in pin.specifier] == ["=="] for pin in pins)
    text = (ROOT / name).read_text()
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z0-9])", text)[1:])
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index|--find-links|--trusted-host)", text, re.MULTILINE)


@pytest.mark.parametrize(("smaller", "larger"), [(LOCKS[0], LOCKS[1]), (LOCKS[1], LOCKS[2])])
def test_what_is_in_both_locks_is_the_same(smaller: str, larger: str) -> None:
    small, large = locked(smaller), locked(larger)
    for name, pins in small.items():
        assert {str(pin.specifier) for pin in pins} == {str(pin.specifier) for pin in large[name]}, name


def test_no_file_of_the_project_names_a_package_index() -> None:
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True)
    options = re.compile(
        rb"(--(extra-)?index-url|--find-links|--trusted-host|PIP_INDEX_URL|UV_INDEX)[= ]\S*(https?://(?!127\.)[\w-]+\.|file:///)"
    )
    for path in listed.stdout.decode().split("\0"):
        if path and (ROOT / path).is_file():
            content = (ROOT / path).read_bytes()
            assert not options.search(content), path
            assert b"pypi." + b"org/simple" not in content, path
