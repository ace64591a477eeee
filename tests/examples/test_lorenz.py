"""The Lorenz solver: its numbers against scipy's and against an independent method, its picture, its streams."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import threading
import time
import zlib
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
ORDER = 30


def taylor(start: tuple[float, float, float], t_end: float, steps: int) -> np.ndarray[Any, Any]:
    """Return states [x, y, z] at equal steps by the Taylor series of order 30: another method, in plain Python."""
    width, state, states = t_end / steps, start, [start]
    for _ in range(steps):
        x, y, z = [state[0]], [state[1]], [state[2]]
        for n in range(ORDER):
            xz = sum(x[i] * z[n - i] for i in range(n + 1))
            xy = sum(x[i] * y[n - i] for i in range(n + 1))
            x_next, y_next = SIGMA * (y[n] - x[n]), RHO * x[n] - xz - y[n]
            x.append(x_next / (n + 1))
            y.append(y_next / (n + 1))
            z.append((xy - BETA * z[n]) / (n + 1))
        state = tuple(sum(c * width**k for k, c in enumerate(series)) for series in (x, y, z))  # type: ignore[assignment]
        states.append(state)
    return np.array(states)


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


def test_it_agrees_with_another_method_where_chaos_allows(lorenz: RunningTool) -> None:
    got = points(lorenz, t_end=10, steps=500)
    np.testing.assert_allclose(got[:, 1:], taylor((1, 1, 1), 10, 500), rtol=0, atol=1e-6)


def test_tighter_tolerances_come_closer(lorenz: RunningTool) -> None:
    truth = taylor((1, 1, 1), 5, 250)[-1]
    errors = [
        float(np.max(np.abs(points(lorenz, t_end=5, steps=10, rtol=rtol, atol=rtol)[-1, 1:] - truth)))
        for rtol in (1e-4, 1e-8, 1e-12)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_the_summary_is_that_of_the_points(lorenz: RunningTool) -> None:
    given = {"t_end": 8, "steps": 400, "initial": [0, 1, 20.5]}
    summary = lorenz.post("/run", given).json()
    states = points(lorenz, **given)[:, 1:]
    assert summary["final"] == states[-1].tolist()
    assert summary["minimum"] == states.min(axis=0).tolist()
    assert summary["maximum"] == states.max(axis=0).tolist()
    assert summary["mean"] == pytest.approx(states.mean(axis=0).tolist())
    signs = np.sign(states[states[:, 0] != 0][:, 0])
    assert summary["wing_changes"] == int(np.sum(signs[1:] != signs[:-1]))
    assert "points" not in summary


def test_below_rho_1_it_comes_to_rest_at_the_only_fixed_point(lorenz: RunningTool) -> None:
    answer = lorenz.post("/run", {"rho": 0.5, "t_end": 100, "steps": 10}).json()
    assert answer["fixed_points"] == [[0, 0, 0]]
    assert answer["final"] == pytest.approx([0, 0, 0], abs=1e-9)


def test_at_a_fixed_point_nothing_moves(lorenz: RunningTool) -> None:
    wing = lorenz.post("/run", {"t_end": 0.1, "steps": 1}).json()["fixed_points"][1]
    answer = lorenz.post("/run", {"initial": wing, "t_end": 1, "steps": 7}).json()
    assert answer["final"] == pytest.approx(wing, abs=1e-9)


def test_no_input_at_all_takes_the_defaults(lorenz: RunningTool) -> None:
    answer = lorenz.ask("POST", "/run").json()
    assert (answer["t_end"], answer["steps"]) == (40, 4000)


def test_the_streams_pieces_are_the_points_in_order(lorenz: RunningTool) -> None:
    given = {"t_end": 6, "steps": 300}
    *blocks, last = lorenz.post("/stream", given).lines()
    assert len(blocks) > 3
    assert sorted(block["progress"] for block in blocks) == [block["progress"] for block in blocks]
    assert blocks[-1]["progress"] == 1
    assert [row for block in blocks for row in block["points"]] == points(lorenz, **given).tolist()
    assert last == {"done": True, "summary": lorenz.post("/run", given).json()}


def test_who_accepts_server_sent_events_gets_them(lorenz: RunningTool) -> None:
    given = {"t_end": 2, "steps": 20}
    answer = lorenz.post("/stream", given, Accept="text/event-stream")
    assert answer.content_type == "text/event-stream"
    frames = [
        dict(line.split(": ", 1) for line in frame.split("\n")) for frame in answer.body.decode().split("\n\n")[:-1]
    ]
    assert [frame["event"] for frame in frames][-1] == "done"
    assert [json.loads(frame["data"]) for frame in frames] == lorenz.post("/stream", given).lines()


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


def test_cancel_by_name_spares_the_others(lorenz: RunningTool) -> None:
    """Two runs share the tool; the daemon gives up one of them."""
    with long_run(lorenz, X_Px_Run_Id="one") as (one, _), long_run(lorenz, X_Px_Run_Id="two") as (two, answers):
        cancel_until_ended(lorenz, two, "?run_id=two")
        assert answers[0].status == 409
        assert lorenz.post("/cancel?run_id=three", {}).json() == {"cancelled": 0}
        assert one.is_alive()


def test_an_initial_state_of_two_numbers_is_refused(lorenz: RunningTool) -> None:
    answer = lorenz.post("/run", {"initial": [1, 2]})
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/initial")
    answer = lorenz.post("/run", {"initial": [1, 2, 1e9]})
    assert (answer.status, answer.json()["errors"][0]["pointer"]) == (422, "/initial/2")


def test_the_picture_is_a_png_with_a_curve_on_it(lorenz: RunningTool) -> None:
    answer = lorenz.post("/run", {"plot": True, "t_end": 15})
    assert (answer.status, answer.content_type) == (200, "image/png")
    pixels = decode_png(answer.body)
    assert pixels.shape == (720, 960, 3)
    ground = pixels[0, 0]
    lit = (np.abs(pixels.astype(int) - ground).max(axis=2) > 60).mean()
    assert 0.01 < lit < 0.5
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1000, "edges are to be soft"


def test_a_curve_that_is_one_point_can_be_drawn(lorenz: RunningTool) -> None:
    answer = lorenz.post("/run", {"plot": True, "initial": [0, 0, 0], "t_end": 1, "steps": 1})
    assert decode_png(answer.body).shape == (720, 960, 3)


def decode_png(content: bytes) -> np.ndarray[Any, Any]:
    """Read what encode_png writes, checking each chunk; filters 0 (as is) and 2 (difference to the row above)."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (length,), kind = struct.unpack_from(">I", content, at), content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert set(rows[:, 0]) <= {0, 2}
    pixels = rows[:, 1:].copy()
    for row in range(1, height):
        if rows[row, 0] == 2:
            pixels[row] += pixels[row - 1]
    return pixels.reshape(height, width, 3)


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """The tool's own modules, loaded from its folder and forgotten afterwards."""
    folder = folder_of("lorenz-ode-solver")
    loaded = {}
    sys.path.insert(0, str(folder))
    try:
        for name in ("lorenz", "picture", "main"):
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


def test_the_decoder_of_this_test_reads_the_encoder(modules: dict[str, ModuleType]) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert (decode_png(modules["picture"].encode_png(pixels)) == pixels).all()
