"""The example tools, run by a daemon: each keeps the contract of tools (CONTRACT §5) and works
out what it says.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema_rs import Draft202012Validator, meta
from scipy.integrate import solve_ivp

from e2e.house import DEADLINE, Answer, House, UnixConnection, house, until

pytestmark = pytest.mark.deep
EXAMPLES = Path(__file__).parents[2] / "supervisord_py" / "examples" / "tools"
NAMES = ("compound-interest", "lorenz-ode-solver", "text-stats")
SIGMA, RHO, BETA = 10.0, 28.0, 8 / 3


@pytest.fixture(scope="module")
def home(require: Callable[[object, str], None]) -> Iterator[House]:
    require(shutil.which("node"), "needs node")
    with house({"PX_TOOLS__PATHS": str(EXAMPLES)}, start=True) as made:
        yield made


def document(name: str, file: str = "tool.json") -> Any:
    return json.loads((EXAMPLES / name / file).read_text())


def run(home: House, name: str, **body: Any) -> Any:
    answer = home.run(name, body)
    assert answer.status == 200, answer.body
    return answer.json()


def lines(home: House, name: str, **body: Any) -> list[Any]:
    """Return what a tool streams."""
    answer = home.request(
        "POST", f"/api/tools/{name}/stream", body, headers={"Accept": "application/x-ndjson"}
    )
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson"), (
        answer.body
    )
    return [json.loads(line) for line in answer.body.splitlines()]


def direct(home: House, name: str, method: str, path: str) -> Answer:
    """Ask a warm tool itself."""
    port = home.get("/api/launcher/state")[name]["port"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    connection.request(method, path, None if method == "GET" else b"{}")
    response = connection.getresponse()
    answer = Answer(response.status, {}, response.read())
    connection.close()
    return answer


@pytest.mark.parametrize("name", NAMES)
def test_each_is_complete_answers_and_ends_when_it_is_asked_to(home: House, name: str) -> None:
    manifest, request = document(name), document(name, "test-request.json")
    assert (manifest["name"], manifest["input"]["additionalProperties"]) == (name, False)
    for side in ("input", "output"):
        meta.validate(manifest[side])
    assert Draft202012Validator(manifest["input"]).is_valid(request)
    for key, rule in manifest["input"]["properties"].items():
        assert rule["title"], key
        if key not in manifest["input"].get("required", []):
            Draft202012Validator(rule).validate(rule["default"])
    Draft202012Validator(manifest["output"]).validate(run(home, name, **request))
    assert direct(home, name, "GET", "/schema").json() == manifest
    assert len(lines(home, name, **request)) >= 2
    stopped = json.loads(home.pxctl("stop", name, "--json").stdout)
    assert stopped["killed"] == [], "a client that is still connected does not hold up the end"
    assert home.status(name)["reason"] == "stopped"
    assert home.pxctl("logs", name, "--stderr").stdout == ""


def test_who_hangs_up_amid_a_stream_leaves_no_traceback(home: House) -> None:
    name, body = "compound-interest", {"principal": 1, "annual_rate": 0.1, "years": 100}
    for _ in range(10):
        connection = UnixConnection(home.socket)
        connection.request("POST", f"/api/tools/{name}/stream", json.dumps(body))
        connection.getresponse().read(1)
        connection.close()
    port = home.get("/api/launcher/state")[name]["port"]
    for begun in (b"", b"POST /run HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as reset:
            reset.sendall(begun)
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    run(home, name, **body)
    assert home.pxctl("logs", name, "--stderr").stdout == ""


def test_compound_interest_imports_nothing_but_the_standard_library() -> None:
    """It works with no install: -S hides site-packages."""
    argv = [sys.executable, "-I", "-S", "-c", "import runpy; runpy.run_path('main.py')"]
    subprocess.run(argv, cwd=EXAMPLES / "compound-interest", timeout=DEADLINE, check=True)


def test_a_deposit_grows_as_the_formula_says_and_its_schedule_adds_up(home: House) -> None:
    for times in (1, 12, 365):
        deposit = {"principal": 1000, "annual_rate": 0.05, "years": 10, "compounds_per_year": times}
        answer = run(home, "compound-interest", **deposit)
        assert answer["final_balance"] == round(1000 * (1 + 0.05 / times) ** (10 * times), 2)
    paid = {"principal": 500, "annual_rate": -0.1, "years": 4, "monthly_contribution": 10}
    schedule = run(home, "compound-interest", **paid)["schedule"]
    total = 500 + sum(row["contribution"] + row["interest"] for row in schedule)
    assert (len(schedule), schedule[-1]["balance"]) == (4, pytest.approx(total, abs=0.05))
    assert lines(home, "compound-interest", **paid) == schedule


def test_text_is_counted_as_a_reader_sees_it(home: House) -> None:
    request = document("text-stats", "test-request.json")
    answer = run(home, "text-stats", **request)
    assert [(each["word"], each["count"]) for each in answer["frequent"]] == [
        ("sea", 3),
        ("the", 3),
        ("calm", 1),
    ]
    assert [answer[key] for key in ("characters", "words", "sentences", "paragraphs")] == [
        63,
        12,
        3,
        2,
    ]
    assert run(home, "text-stats", text="e\u0301🇩🇪👨‍👩‍👧")["characters"] == 3, (
        "code points that are one character"
    )
    *paragraphs, whole = lines(home, "text-stats", **request)
    assert [(line["paragraph"], line["of"], line["words"]) for line in paragraphs] == [
        (1, 2, 10),
        (2, 2, 2),
    ]
    assert whole == {"done": True} | answer


def test_the_trajectory_is_scipys_its_stream_the_same_points_and_it_can_be_drawn(
    home: House,
) -> None:
    given = {"sigma": SIGMA, "rho": RHO, "beta": BETA, "t_end": 20, "steps": 2000}
    got = np.array(run(home, "lorenz-ode-solver", format="points", **given)["points"])

    def slope(_t: float, s: tuple[float, float, float]) -> list[float]:
        return [SIGMA * (s[1] - s[0]), s[0] * (RHO - s[2]) - s[1], s[0] * s[1] - BETA * s[2]]

    times = np.linspace(0, 20, 2001)
    theirs = solve_ivp(
        slope, (0, 20), [1, 1, 1], method="DOP853", t_eval=times, rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(got[:, 0], times, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got[:, 1:], theirs.y.T, rtol=0, atol=1e-6)
    *blocks, last = lines(home, "lorenz-ode-solver", **given)
    progress = [block["progress"] for block in blocks]
    assert (len(blocks) > 3, progress, progress[-1]) == (True, sorted(progress), 1)
    assert [row for block in blocks for row in block["points"]] == got.tolist()
    assert last == {"done": True, "summary": run(home, "lorenz-ode-solver", **given)}
    answer = home.run("lorenz-ode-solver", {"plot": True, "t_end": 15})
    assert (answer.headers["content-type"], struct.unpack_from(">II", answer.body, 16)) == (
        "image/png",
        (960, 720),
    )
    assert len(answer.body) > 10_000, "there is a curve on it"


def test_a_run_of_minutes_is_cancelled_and_the_next_one_is_not(home: House) -> None:
    run(home, "lorenz-ode-solver", t_end=1)
    answers: list[Answer] = []
    long = {"t_end": 1000, "steps": 10, "rtol": 1e-13, "atol": 1e-15}
    running = threading.Thread(target=lambda: answers.append(home.run("lorenz-ode-solver", long)))
    running.start()
    until(
        lambda: direct(home, "lorenz-ode-solver", "POST", "/cancel") and not running.is_alive(),
        "it is cancelled",
    )
    assert "cancelled at t = " in answers[0].json()["detail"]
    assert run(home, "lorenz-ode-solver", t_end=1)
