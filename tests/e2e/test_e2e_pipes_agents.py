"""What agents tell of themselves: what a run cost, that they stopped, what they were not
allowed; and who shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.house import of_module, until
from e2e.pipe_house import DONE, PipeHouse, pipes_house

shared = of_module(pipes_house)
PRESETS = """
[presets.priced]
provider = "openai"
model = "m"
input_cost = 3.0
output_cost = 15.0
[presets.bare]
provider = "openai"
model = "m"
"""
CODEX = (
    {"type": "item.completed", "item": {"type": "agent_message", "text": "hi"}},
    {"type": "turn.completed", "usage": {"input_tokens": 9_000_000, "output_tokens": 1000}},
)
GEMINI = (
    {"type": "message", "role": "assistant", "content": "I will look."},
    {"type": "tool_use", "tool_name": "bash"},
    {"type": "tool_result", "status": "error"},
    {"type": "error", "severity": "warning", "message": "Loop detected, stopping execution"},
    {"type": "result", "status": "success", "stats": {}},
)
CLAUDE = (
    {
        "type": "assistant",
        "message": {"id": "1", "content": [{"type": "text", "text": "I could not write it."}]},
    },
    {
        "type": "result",
        "subtype": "success",
        "result": "I could not write it.",
        "permission_denials": [{"tool_name": "Bash"}, {"tool_name": "Bash"}],
    },
)
SAYS: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "counts": ("codex-jsonl", CODEX),
    "loops": ("gemini-json", GEMINI),
    "asks": ("claude-json", CLAUDE),
}


@pytest.fixture(scope="module")
def home(shared: PipeHouse) -> Iterator[PipeHouse]:
    """A house with agents that print what real ones do."""
    tables = [(shared.home / "agents.toml").read_text()]
    tables.append(
        f'[agents.slow]\nargv = ["/bin/sh", "{shared.home}/slow"]\nparser = "codex-jsonl"\n'
    )
    stays = f"cat >/dev/null\ncat {shared.home}/counts.jsonl\nexec sleep 1000\n"
    (shared.home / "stays").write_text(stays)
    argv = json.dumps(["/bin/sh", str(shared.home / "stays")])
    tables.append(
        f'[agents.stays]\nargv = {argv}\nparser = "codex-jsonl"\nstop = {{settle_seconds = 1}}\n'
    )
    (shared.home / "slow").write_text(
        'cat >/dev/null\necho \'{"type": "turn.started"}\'\nexec sleep 1000\n'
    )
    for name, (parser, records) in SAYS.items():
        (shared.home / f"{name}.jsonl").write_text(
            "".join(json.dumps(each) + "\n" for each in records)
        )
        program = shared.home / name
        program.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {shared.home}/{name}.jsonl\n")
        program.chmod(0o755)
        tables.append(f'[agents.{name}]\nargv = ["{program}"]\nparser = "{parser}"\n')
    (shared.home / "agents.toml").write_text("\n".join(tables))
    (shared.home / "presets.toml").write_text(PRESETS)
    yield shared
    shared.nothing_left()


def test_a_run_costs_its_tokens_times_the_prices_of_the_preset_and_a_budget_knows_it(
    home: PipeHouse,
) -> None:
    home.write("priced", "agent: counts\npreset: priced\nbudget: {daily_cost: 0.01}")
    first = home.execute("priced")
    assert (first.ended, first.tokens, first.cost_source) == (DONE, 9_001_000, "preset")
    assert first.cost == first.usage["cost"] == pytest.approx(27.015)
    second = home.execute("priced")
    assert second.ended == ("failed", "budget_exceeded")
    assert "27.0150 USD today of 0.01" in second.error_message
    assert "$27.0150" in home.pxctl("pipe", "runs", "priced").stdout


def test_how_long_an_agent_takes_to_exit_decides_nothing_about_a_ceiling(home: PipeHouse) -> None:
    for agent in ("counts", "stays"):
        ceilings = "limits: {cost: 0.01, tokens: 1k}"
        home.write(f"over-{agent}", f"agent: {agent}\npreset: priced\n{ceilings}")
        done = home.execute(f"over-{agent}")
        assert (done.ended, done.tokens, done.cost) == (DONE, 9_001_000, pytest.approx(27.015))


def test_a_cost_that_nobody_tells_is_null_and_a_ceiling_without_effect_is_told(
    home: PipeHouse,
) -> None:
    home.write(
        "bare",
        "agent: counts\npreset: bare\nbudget: {daily_cost: 0.01}\nlimits: {cost: 0.01, tokens: 1k}",
    )
    done = home.execute("bare")
    assert (done.ended, done.tokens, done.cost, done.cost_source) == (DONE, 9_001_000, None, None)
    assert done.usage["cost"] is None
    checks = {each["name"]: each for each in home.json("pipe", "validate", "bare")["checks"]}
    for ceiling in ("limits.cost", "budget.daily_cost"):
        assert checks[ceiling]["verdict"] == "warn"
        assert (
            checks[ceiling]["detail"]
            == f'{ceiling} has no effect: counts tells no cost, and the preset "bare" has no prices'
        )
        assert "[presets.bare]" in checks[ceiling]["hint"]
    assert (checks["limits.tokens"]["line"], checks["budget.daily_cost"]["line"]) == (5, 4)
    assert any("budget.daily_cost has no effect" in each for each in home.pipe("bare")["warnings"])


def test_what_a_run_used_that_was_cut_off_before_its_agent_told_is_not_known(
    home: PipeHouse,
) -> None:
    home.write("slow", "agent: slow\npreset: priced")
    begun = home.started(home.begin("slow").id)
    done = home.cancel(begun)
    assert (done.status, done.tokens, done.cost) == ("cancelled", None, None)
    assert done.warnings == ["what it used is not known: the agent tells that at its end"]


def test_a_run_that_the_agent_itself_broke_off_is_a_failure_with_its_words(home: PipeHouse) -> None:
    home.write("loops", "agent: loops")
    done = home.pxctl("pipe", "run", "loops")
    assert done.returncode == 1
    assert "Loop detected, stopping execution" in done.stderr
    [row] = home.of("loops", 1)
    assert row.ended == ("failed", "missing_output")


def test_what_an_agent_was_not_allowed_is_in_the_row_and_in_every_view(home: PipeHouse) -> None:
    home.write("asks", "agent: asks")
    warning = "was not allowed to use Bash (2 times)"
    done = home.pxctl("pipe", "run", "asks")
    assert (done.returncode, f"warning: {warning}" in done.stderr) == (0, True)
    [row] = home.of("asks", 1)
    assert (row.ended, row.warnings) == (DONE, [warning])
    assert warning in home.pxctl("pipe", "show", str(row.id)).stdout
    assert warning in home.pxctl("pipe", "runs", "asks").stdout
    [event] = home.events("pipe:asks", "execution_completed")
    assert event["warnings"] == [warning]


def test_a_pipe_is_shown_with_all_that_it_would_be_run_with(home: PipeHouse) -> None:
    home.write(
        "whole",
        "agent: counts\npreset: priced\ntimeout: 10m\nlimits: {turns: 7}\nretries: "
        "3\ntimezone: UTC",
    )
    home.execute("whole")
    shown = home.json("pipe", "show", "whole")
    assert (shown["timeout_seconds"], shown["timezone"], shown["presets"]) == (
        600.0,
        "UTC",
        ["priced"],
    )
    assert (shown["limits"]["turns"], shown["limits"]["cost"], shown["retries"]["max"]) == (
        7,
        None,
        3,
    )
    assert shown["range_starts_at"] == home.of("whole", 1)[0].context_end
    text = home.pxctl("pipe", "show", "whole").stdout
    assert "range_starts_at" in text


def test_executions_are_found_by_pipes_agent_preset_error_and_time(home: PipeHouse) -> None:
    for name, agent in (("find-a", "counts"), ("find-b", "loops")):
        home.write(name, f"agent: {agent}\npreset: bare")
        home.execute(name)

    def found(*asked: str) -> list[str]:
        return sorted(
            each["pipe_name"] for each in home.json("pipe", "runs", "find-*", *asked)["executions"]
        )

    assert found() == ["find-a", "find-b"]
    assert found("--agent", "counts") == ["find-a"]
    assert found("--preset", "bare", "--error-type", "missing_output") == ["find-b"]
    assert found("--preset", "priced") == []
    assert found("--until", "1h") == []
    assert found("--since", "1h", "--status", "completed") == ["find-a"]
    refused = home.pxctl("pipe", "runs", "--until", "soon")
    assert (refused.returncode, "--until" in refused.stderr) == (2, True)


def test_an_agent_that_may_only_read_is_told_before_a_run(home: PipeHouse) -> None:
    home.write("reads", "agent: claude")
    until(lambda: "reads" in home.names(), "it is seen")
    checks = home.json("pipe", "validate", "reads", code=None)["checks"]
    [told] = [each for each in checks if "may not write files" in each["detail"]]
    assert (told["verdict"], "acceptEdits" in told["hint"]) == ("warn", True)
