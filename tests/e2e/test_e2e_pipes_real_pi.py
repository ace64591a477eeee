"""The real `pi` from npm, through the installed daemon, against a provider that does as it is told.

What the user owns is not touched, a key is only in the agent's environment, nothing that a tool started is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import BIN, House, alive, until
from e2e.pipe_house import (
    Row,
    begin,
    ended,
    holders,
    in_time,
    nothing_left,
    output,
    pipes_house,
    row,
    rows,
    run,
    started,
    write,
)
from mock_provider import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, MockProvider

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]  # many starts of node
PI = Path(__file__).parents[2] / os.environ.get("VENV", ".venv") / "peers" / "pi" / "node_modules" / ".bin"
KEY = "sk-mock-5up3r-s3cr3t-k3y-0f-n0b0dy"
MODELS = ("ok", "echo", "tool", "401", "404", "429", "quota", "500", "hang", "drop", "garbage")


@contextlib.contextmanager
def provider() -> Iterator[MockProvider]:
    """Run the provider in a thread of its own."""
    made, ready, over = MockProvider(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with made:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield made
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()


class Spoken:
    """A house whose pipes speak through pi with the provider."""

    def __init__(self, home: House, mock: MockProvider) -> None:
        self.home, self.mock = home, mock
        paid = "input_cost = 3.0\noutput_cost = 15.0"
        tables = [
            f'[presets.m-{model}]\nprovider = "custom"\nmodel = "{model}"\nurl = "{mock.url}"\n'
            f'api_key = "$MOCK_KEY"\n{paid}\n'
            for model in MODELS
        ]
        (home.home / "presets.toml").write_text("\n".join(tables))
        for model in MODELS:
            front = "retries: 1" if model == "429" else ""
            write(home, f"m-{model}", f"schedule: manual\npreset: m-{model}\n{front}", f"Say hello, {model}.\n")

    def requests(self, model: str) -> int:
        return sum(str(each.get("model")) == model for each in self.mock.requests)


@pytest.fixture(scope="module")
def spoken() -> Iterator[Spoken]:
    if not (PI / "pi").exists():
        if os.environ.get("CI"):
            pytest.fail("pi is not installed: .ci/agents")
        pytest.skip("pi is not installed: .ci/agents")
    settings = {"MOCK_KEY": KEY, "PATH": f"{PI}:{BIN}:{os.environ['PATH']}", "PX_PIPES__SLOTS_MANUAL": "3"}
    settings |= {
        "PX_PIPES__RETRY_INITIAL_SECONDS": "0.05",
        "PX_PIPES__STOP_SECONDS": "5",
        "PX_PIPES__SETTLE_SECONDS": "60",
    }
    with provider() as mock, pipes_house(start=False, **settings) as home:
        home.settings["HOME"] = str(home.home / "user")  # type: ignore[index] - a dict
        own = home.home / "user" / ".pi" / "agent"
        own.mkdir(parents=True)
        (own / "settings.json").write_text('{"theme": "mine"}')
        before = tree(home.home / "user")
        home.start()
        yield Spoken(home, mock)
        nothing_left(home)
        assert tree(home.home / "user") == before, "the user's own pi is not touched"
        assert not holders(home.home, KEY), "a key is in no file: ledger, logs, output, what the agent was given"


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in sorted(folder.rglob("*"))
    }


def test_every_answer_and_every_failure_of_a_provider_is_a_row_that_says_so(spoken: Spoken) -> None:
    home, mock = spoken.home, spoken.mock
    mock.command = "echo from-the-tool"
    names = [model for model in MODELS if model != "hang"]
    begun = {model: begin(home, f"m-{model}").id for model in names}
    done = {model: ended(home, number) for model, number in begun.items()}
    assert {model: each.ended for model, each in done.items()} == {
        "ok": ("completed", None),
        "echo": ("completed", None),
        "tool": ("completed", None),
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
    assert b"from-the-tool" in output(home, done["tool"].id, "events")
    assert {each.agent_version for each in done.values()} == {"0.74.2"}
    assert set(mock.keys) == {KEY}
    assert (spoken.requests("500"), spoken.requests("401"), spoken.requests("drop")) == (1, 1, 1), "its retries are off"
    again = until(lambda: [it for it in rows(home, "pipe=m-429") if it.retry_of == begun["429"]], "429 is tried again")
    assert ended(home, again[0].id).ended == ("failed", "rate_limited")
    assert spoken.requests("429") == 2


def _check_usage(done: Row, answers: int) -> None:
    assert done.tokens == answers * (INPUT_TOKENS + OUTPUT_TOKENS)
    assert done.cost == pytest.approx(answers * (INPUT_TOKENS * 3 + OUTPUT_TOKENS * 15) / 1e6)
    assert (done.usage["turns"], done.model, done.provider) == (answers, done.preset_id.removeprefix("m-"), "custom")


def test_a_provider_that_never_answers_is_left_at_the_timeout(spoken: Spoken) -> None:
    """Meanwhile the key is in the agent's environment, and in nothing that others can read."""
    home = spoken.home
    number = begin(home, "m-hang", timeout=100).id
    until(lambda: spoken.requests("hang"), "the request is there")
    leader = started(home, number).pid
    words = Path(f"/proc/{leader}/cmdline").read_bytes()
    assert KEY.encode() not in words
    assert KEY.encode() in Path(f"/proc/{leader}/environ").read_bytes()
    assert not holders(home.home, KEY)
    private = home.home / "state" / "executions" / str(number) / "agent"
    assert "PX_KEY" in (private / "models.json").read_text()
    assert {file.stat().st_mode & 0o77 for file in [private, *private.rglob("*")]} == {0}
    assert home.request("POST", f"/api/pipes/m-hang/executions/{number}/cancel").status == 200
    assert (alive(leader), private.exists()) == (False, False)

    def late(seconds: float) -> Row | None:
        """Run one that asks; None where its time was over before that."""
        asked = spoken.requests("hang")
        done = run(home, "m-hang", timeout=seconds)
        return done if spoken.requests("hang") > asked else None

    done = in_time(late, 8)
    assert done.ended == ("timed_out", "timeout")
    assert (done.incomplete, alive(done.pid)) == (True, False)
    assert not (home.home / "state" / "executions" / str(done.id) / "agent").exists()


def test_a_cancel_during_a_tool_leaves_nothing_of_it(spoken: Spoken) -> None:
    """The tool runs in a session of its own, which no signal to pi's group reaches; its children in further ones."""
    home, mock = spoken.home, spoken.mock
    marks = home.home / "tool.pids"
    mock.command = f"echo $$ > {marks}; setsid sleep 1000 & echo $! >> {marks}; (setsid sleep 1000 &) ; sleep 1000"
    number = begin(home, "m-tool").id
    until(lambda: marks.exists() and marks.read_text().count("\n") == 2, "the tool runs")
    cancelled = home.request("POST", f"/api/pipes/m-tool/executions/{number}/cancel")
    assert (cancelled.status, cancelled.json()["error_type"]) == (200, "cancelled")
    assert not any(alive(int(pid)) for pid in marks.read_text().split())
    nothing_left(home)
    assert row(home, number).tokens == INPUT_TOKENS + OUTPUT_TOKENS, "what was paid for is told"


def test_a_tool_that_leaves_something_behind_is_swept_at_a_normal_end(spoken: Spoken) -> None:
    home, mock = spoken.home, spoken.mock
    mark = home.home / "left.pid"
    mock.command = f"nohup setsid sleep 1000 >/dev/null 2>&1 & echo $! > {mark}"
    done = run(home, "m-tool")
    assert (done.ended, done.stdout.strip()) == (("completed", None), ANSWER)
    assert not alive(int(mark.read_text()))
