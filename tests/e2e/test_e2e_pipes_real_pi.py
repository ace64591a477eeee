"""The real `pi` from npm, through the installed daemon, against a provider that does as it is told.

What the user owns is not touched, a key is only in the agent's environment, nothing that a tool
started is left.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.house import BIN, alive, until
from e2e.pipe_house import DONE, PipeHouse, Row, in_time, pipes_house
from mock_provider import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, MockProvider

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]  # many starts of node
PI = (
    Path(__file__).parents[2]
    / os.environ.get("VENV", ".venv")
    / "peers"
    / "pi"
    / "node_modules"
    / ".bin"
)
KEY = "sk-mock-5up3r-s3cr3t-k3y-0f-n0b0dy"
MODELS = ("ok", "echo", "tool", "401", "404", "429", "quota", "500", "hang", "drop", "garbage")


@pytest.fixture(scope="module")
def mock() -> Iterator[MockProvider]:
    """The provider, in a loop and a thread of its own."""
    made, loop = MockProvider(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.__aenter__(), loop).result(30)
    yield made
    asyncio.run_coroutine_threadsafe(made.__aexit__(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture(scope="module")
def home(mock: MockProvider, require: Callable[[object, str], None]) -> Iterator[PipeHouse]:
    """A house whose pipes speak through pi with the provider."""
    require((PI / "pi").exists(), "pi is not installed: .ci/agents")
    settings = {
        "MOCK_KEY": KEY,
        "PATH": f"{PI}:{BIN}:{os.environ['PATH']}",
        "PX_PIPES__SLOTS_MANUAL": "3",
    }
    times = {
        "PX_PIPES__RETRY_INITIAL_SECONDS": "0.05",
        "PX_PIPES__STOP_SECONDS": "5",
        "PX_PIPES__SETTLE_SECONDS": "60",
    }
    with pipes_house(start=False, **settings, **times) as made:
        user = made.home / "user"
        made.settings = {**made.settings, "HOME": str(user)}
        (user / ".pi" / "agent").mkdir(parents=True)
        (user / ".pi" / "agent" / "settings.json").write_text('{"theme": "mine"}')
        before = tree(user)
        preset = f'provider = "custom"\nurl = "{mock.url}"\napi_key = "$MOCK_KEY"\ninput_cost = 3.0\noutput_cost = 15.0'
        tables = [f'[presets.m-{model}]\nmodel = "{model}"\n{preset}\n' for model in MODELS]
        (made.home / "presets.toml").write_text("\n".join(tables))
        for model in MODELS:
            front = f"schedule: manual\npreset: m-{model}\nretries: {int(model == '429')}"
            made.write(f"m-{model}", front, f"Say hello, {model}.\n")
        made.start()
        yield made
        made.nothing_left()
        assert tree(user) == before, "the user's own pi is not touched"
        assert not made.holders(KEY), (
            "a key is in no file: ledger, logs, output, what the agent was given"
        )


def requests(mock: MockProvider, model: str) -> int:
    return sum(str(each.get("model")) == model for each in mock.requests)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            file.read_bytes() if file.is_file() else b"",
        )
        for file in sorted(folder.rglob("*"))
    }


def test_every_answer_and_every_failure_of_a_provider_is_a_row_that_says_so(
    home: PipeHouse, mock: MockProvider
) -> None:
    mock.command = "echo from-the-tool"
    names = [model for model in MODELS if model != "hang"]
    begun = {model: home.begin(f"m-{model}").id for model in names}
    done = {model: home.ended(number) for model, number in begun.items()}
    assert {model: each.ended for model, each in done.items()} == {
        "ok": DONE,
        "echo": DONE,
        "tool": DONE,
        "401": ("failed", "auth_failed"),
        "404": ("failed", "model_not_found"),
        "429": ("failed", "rate_limited"),
        "quota": ("failed", "quota_exhausted"),
        "500": ("failed", "provider_error"),
        "drop": ("failed", "network"),
        "garbage": ("failed", "provider_error"),
    }
    assert {each.exit_code for each in done.values()} == {0}, "pi's exit code tells nothing"
    assert (done["ok"].stdout.strip(), done["tool"].stdout.strip()) == (ANSWER, ANSWER)
    assert done["echo"].stdout.strip() == done["echo"].rendered_prompt.strip()
    _check_usage(done["ok"], 1)
    _check_usage(done["tool"], 2)
    assert b"from-the-tool" in home.output(done["tool"].id, "events")
    assert {each.agent_version for each in done.values()} == {"0.74.2"}
    assert set(mock.keys) == {KEY}
    assert (requests(mock, "500"), requests(mock, "401"), requests(mock, "drop")) == (1, 1, 1), (
        "its retries are off"
    )
    again = until(
        lambda: [it for it in home.rows("pipe=m-429") if it.retry_of == begun["429"]],
        "429 is tried again",
    )
    assert home.ended(again[0].id).ended == ("failed", "rate_limited")
    assert requests(mock, "429") == 2


def _check_usage(done: Row, answers: int) -> None:
    assert done.tokens == answers * (INPUT_TOKENS + OUTPUT_TOKENS)
    assert done.cost == pytest.approx(answers * (INPUT_TOKENS * 3 + OUTPUT_TOKENS * 15) / 1e6)
    assert (done.usage["turns"], done.model, done.provider) == (
        answers,
        done.preset_id.removeprefix("m-"),
        "custom",
    )


def test_a_provider_that_never_answers_is_left_at_the_timeout(
    home: PipeHouse, mock: MockProvider
) -> None:
    """Meanwhile the key is in the agent's environment, and in nothing that others can read."""
    number = home.begin("m-hang", timeout=100).id
    until(lambda: requests(mock, "hang"), "the request is there")
    leader = home.started(number).pid
    words = Path(f"/proc/{leader}/cmdline").read_bytes()
    assert KEY.encode() not in words
    assert KEY.encode() in Path(f"/proc/{leader}/environ").read_bytes()
    assert not home.holders(KEY)
    private = home.home / "state" / "executions" / str(number) / "agent"
    assert "PX_KEY" in (private / "models.json").read_text()
    assert {file.stat().st_mode & 0o77 for file in [private, *private.rglob("*")]} == {0}
    assert home.request("POST", f"/api/pipes/m-hang/executions/{number}/cancel").status == 200
    assert (alive(leader), private.exists()) == (False, False)

    def late(seconds: float) -> Row | None:
        """Run one that asks; None where its time was over before that."""
        asked = requests(mock, "hang")
        done = home.execute("m-hang", timeout=seconds)
        return done if requests(mock, "hang") > asked else None

    done = in_time(late, 8)
    assert done.ended == ("timed_out", "timeout")
    assert (done.incomplete, alive(done.pid)) == (True, False)
    assert not (home.home / "state" / "executions" / str(done.id) / "agent").exists()


def test_a_cancel_during_a_tool_leaves_nothing_of_it(home: PipeHouse, mock: MockProvider) -> None:
    """The tool runs in a session of its own, which no signal to pi's group reaches; its children
    in further ones.
    """
    marks = home.home / "tool.pids"
    mock.command = (
        f"echo $$ > {marks}; setsid sleep 1000 & echo $! >> {marks}; (setsid sleep 1000 &) ; sleep "
        "1000"
    )
    number = home.begin("m-tool").id
    until(lambda: marks.exists() and marks.read_text().count("\n") == 2, "the tool runs")
    cancelled = home.request("POST", f"/api/pipes/m-tool/executions/{number}/cancel")
    assert (cancelled.status, cancelled.json()["error_type"]) == (200, "cancelled")
    assert not any(alive(int(pid)) for pid in marks.read_text().split())
    home.nothing_left()
    assert home.row(number).tokens == INPUT_TOKENS + OUTPUT_TOKENS, "what was paid for is told"
