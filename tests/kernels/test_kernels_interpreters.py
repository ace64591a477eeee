"""The order of interpreters: named ones decide alone, then what is active, what lies in the directory, and PATH."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.choice import Source
from supervisord_py.kernels.interpreters import (
    MANAGED,
    Candidate,
    candidates,
)


def order(**around: Any) -> tuple[Candidate, ...]:
    return candidates(**{"cwd": "/proj", "environ": {}, **around})


def test_the_whole_order() -> None:
    environ = {"VIRTUAL_ENV": "/v/", "CONDA_PREFIX": "/c", "PATH": "/a:/b"}
    found = order(environ=environ, managed="/data/python")
    assert [(each.source, each.paths[0]) for each in found] == [
        (Source.VIRTUAL_ENV, "/v/bin/python"),
        (Source.CONDA_PREFIX, "/c/bin/python"),
        (Source.DOT_VENV, "/proj/.venv/bin/python"),
        (Source.VENV, "/proj/venv/bin/python"),
        (Source.MANAGED, "/data/python/bin/python"),
        (Source.PATH, "/a/python3"),
        (Source.PATH, "/a/python"),
    ]
    assert [each.root for each in found] == ["/v", "/c", "/proj/.venv", "/proj/venv", "/data/python", None, None]
    assert found[-2].paths == ("/a/python3", "/b/python3")
    assert found[0].paths == ("/v/bin/python", "/v/bin/python3")


@pytest.mark.parametrize(
    ("around", "source", "paths"),
    [
        ({"request": "/x/python", "setting": "/y"}, Source.REQUEST, ("/x/python", "/x/python/bin/python")),
        ({"request": "envs/a/"}, Source.REQUEST, ("/proj/envs/a", "/proj/envs/a/bin/python")),
        ({"request": "~/e", "home": "/h/"}, Source.REQUEST, ("/h/e", "/h/e/bin/python")),
        ({"request": "~", "home": "/h"}, Source.REQUEST, ("/h", "/h/bin/python")),
        ({"request": "/"}, Source.REQUEST, ("/",)),
        ({"request": "python3.12"}, Source.REQUEST, ("/usr/local/bin/python3.12", "/usr/bin/python3.12")),
        ({"setting": "pypy", "environ": {"PATH": "/p:rel:/q/"}}, Source.SETTING, ("/p/pypy", "/q/pypy")),
        ({"setting": "pypy", "environ": {"PATH": "rel"}}, Source.SETTING, ("/pypy",)),
        ({"request": MANAGED, "managed": "/m"}, Source.REQUEST, ("/m/bin/python",)),
        ({"request": MANAGED, "path": "/p"}, Source.REQUEST, ("/p/managed",)),
    ],
)
def test_what_is_named_decides_alone(around: dict[str, Any], source: Source, paths: tuple[str, ...]) -> None:
    (only,) = order(**around)
    assert only.source is source
    assert only.source.decisive
    assert only.paths[: len(paths)] == paths


DIRECTORIES = st.text("ab/", min_size=1, max_size=6).map(lambda text: f"/{text}")
ENVIRONS = st.dictionaries(st.sampled_from(["VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "HOME"]), DIRECTORIES)


@given(ENVIRONS, DIRECTORIES, DIRECTORIES)
def test_no_directory_is_given_the_environment_of_another(environ: dict[str, str], one: str, other: str) -> None:
    """D3: what lies in a directory comes only from that directory; the answer depends on nothing else."""
    found = {cwd: candidates(cwd, environ) for cwd in (one, other, one)}
    for cwd, each in found.items():
        for candidate in each:
            if candidate.source in {Source.DOT_VENV, Source.VENV}:
                assert candidate.root == f"{cwd.rstrip('/')}/{candidate.source.value}"
    assert found[one] == candidates(one, environ)
