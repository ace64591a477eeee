"""Pure parts of the API of kernels: the two listeners, documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.kernel_fakes import ok
from supervisord_py.api.app import JUPYTER, routed_path
from supervisord_py.api.kernel_streams import event_document
from supervisord_py.kernels.cell import (
    CellDone,
    CellStarted,
    KernelStarting,
    Notice,
    Queued,
    RungClimbed,
    Step,
)

# -- doors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "unix", "tcp"),
    [
        ("/api", "/api", "/jupyter/api"),
        ("/api?x=1", "/api?x=1", "/jupyter/api?x=1"),
        ("/api/kernels", "/api/kernels", "/jupyter/api/kernels"),
        ("/api/kernels/a/x?y=1", "/api/kernels/a/x?y=1", "/jupyter/api/kernels/a/x?y=1"),
        ("/api/kernelspecs/python3", "/api/kernelspecs/python3", "/jupyter/api/kernelspecs/python3"),
        ("/api/kernelsx", "/api/kernelsx", "/api/kernelsx"),
        ("/api/status", "/api/status", "/api/status"),
        ("/px/api/kernels?cwd=/a", "/api/kernels?cwd=/a", "/api/kernels?cwd=/a"),
        ("/px/api/status", "/api/status", "/api/status"),
        ("/px", "/px", "/px"),
        ("/jupyter/api/kernels", "/jupyter/api/kernels", "/jupyter/api/kernels"),
        ("/px/px/api/x", "/px/px/api/x", "/px/px/api/x"),
        ("/", "/", "/"),
        ("*", "*", "*"),
    ],
)  # fmt: skip
def test_each_door_has_its_reading(path: str, unix: str, tcp: str) -> None:
    assert (routed_path(path, is_tcp=False), routed_path(path, is_tcp=True)) == (unix, tcp)


@given(st.text(), st.booleans())
def test_a_door_adds_or_takes_one_prefix_and_leaves_the_rest(path: str, is_tcp: bool) -> None:
    found = routed_path(path, is_tcp=is_tcp)
    assert found in {path, JUPYTER + path, path.removeprefix("/px")}
    assert routed_path(found, is_tcp=False) in {found, path.removeprefix("/px")}


# -- events ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (Queued(2), "queued"),
        (KernelStarting("s", "/p"), "starting"),
        (CellStarted(0, "c", None, "s"), "cell_started"),
        (RungClimbed("c", Step("sigint", 0.0)), "rung"),
        (CellDone(ok()), "cell_done"),
        (Notice("x"), "notice"),
    ],
)
def test_every_event_has_its_word(event: Any, word: str) -> None:
    document = event_document(event)
    assert document is not None
    assert document["event"] == word
