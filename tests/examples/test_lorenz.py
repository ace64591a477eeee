"""The Lorenz solver: its numbers against scipy's and against an independent method, its picture, its streams."""

from __future__ import annotations

import importlib.util
import struct
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from examples.running_tool import DEADLINE, RunningTool, folder_of, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.deep

SIGMA, RHO, BETA = 10.0, 28.0, 8 / 3


def points(lorenz: RunningTool, **given: Any) -> np.ndarray[Any, Any]:
    return np.array(lorenz.post("/run", {"format": "points", **given}).json()["points"])


def test_it_agrees_with_scipys_solution_of_the_same_system(lorenz: RunningTool) -> None:
    got = points(lorenz, sigma=SIGMA, rho=RHO, beta=BETA, t_end=20, steps=2000)

    def slope(_t: float, s: tuple[float, float, float]) -> list[float]:
        return [SIGMA * (s[1] - s[0]), s[0] * (RHO - s[2]) - s[1], s[0] * s[1] - BETA * s[2]]

    times = np.linspace(0, 20, 2001)
    theirs = solve_ivp(slope, (0, 20), [1, 1, 1], method="DOP853", t_eval=times, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(got[:, 0], times, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got[:, 1:], theirs.y.T, rtol=0, atol=1e-6)


def test_the_streams_pieces_are_the_points_in_order(lorenz: RunningTool) -> None:
    given = {"t_end": 6, "steps": 300}
    *blocks, last = lorenz.post("/stream", given).lines()
    assert len(blocks) > 3
    assert sorted(block["progress"] for block in blocks) == [block["progress"] for block in blocks]
    assert blocks[-1]["progress"] == 1
    assert [row for block in blocks for row in block["points"]] == points(lorenz, **given).tolist()
    assert last == {"done": True, "summary": lorenz.post("/run", given).json()}


LONG = {"t_end": 1000, "steps": 10, "rtol": 1e-13, "atol": 1e-15}


@contextmanager
def long_run(lorenz: RunningTool, **headers: str) -> Iterator[tuple[threading.Thread, list[Any]]]:
    """Run something that takes minutes; whatever happens it is cancelled in the end."""
    answers: list[Any] = []
    running = threading.Thread(target=lambda: answers.append(lorenz.post("/run", LONG, **headers)))
    running.start()
    try:
        yield running, answers
    finally:
        cancel_until_ended(lorenz, running)


def cancel_until_ended(lorenz: RunningTool, running: threading.Thread, query: str = "") -> None:
    deadline = time.monotonic() + DEADLINE
    while running.is_alive() and time.monotonic() < deadline:
        lorenz.post(f"/cancel{query}", {})
        running.join(0.05)
    assert not running.is_alive()


def test_cancel_ends_the_run_under_way_and_no_later_one(lorenz: RunningTool) -> None:
    with long_run(lorenz) as (running, answers):
        cancel_until_ended(lorenz, running)
    assert answers[0].status == 409
    assert "cancelled at t = " in answers[0].json()["detail"]
    assert lorenz.post("/run", {"t_end": 1}).status == 200


def test_the_picture_is_a_png_with_a_curve_on_it(lorenz: RunningTool) -> None:
    answer = lorenz.post("/run", {"plot": True, "t_end": 15})
    assert (answer.status, answer.content_type) == (200, "image/png")
    assert answer.body.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack_from(">II", answer.body, 16) == (960, 720)
    assert len(answer.body) > 10_000, "there is a curve on it"


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """The tool's own modules, loaded from its folder and forgotten afterwards."""
    folder = folder_of("lorenz-ode-solver")
    loaded = {}
    sys.path.insert(0, str(folder))
    try:
        for name in ("lorenz", "main"):
            spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = loaded[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
    finally:
        sys.path.remove(str(folder))
        for name in loaded:
            sys.modules.pop(name, None)
    return loaded


def test_the_model_and_the_manifest_declare_the_same_input(modules: dict[str, ModuleType]) -> None:
    declared = manifest_of("lorenz-ode-solver")["input"]["properties"]
    model = modules["main"].Input.model_json_schema()["properties"]
    words = {"type", "default", "enum", "minimum", "maximum", "exclusiveMinimum", "minItems", "maxItems", "items"}
    assert {name: {k: v for k, v in rule.items() if k in words} for name, rule in model.items()} == {
        name: {k: v for k, v in rule.items() if k in words} for name, rule in declared.items()
    }


def test_an_overflow_is_an_error_that_names_the_time(modules: dict[str, ModuleType]) -> None:
    lorenz = modules["lorenz"]
    problem = lorenz.Problem(10.0, 28.0, 8 / 3, (1e200, 1e200, 1e200), 10.0, 10, 1e-3, 1e-3)
    with np.errstate(all="ignore"), pytest.raises(lorenz.IntegrationError, match="failed at t = "):
        list(lorenz.trajectory(problem))
