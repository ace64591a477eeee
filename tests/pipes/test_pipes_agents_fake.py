"""The stand-in agent speaks its dialects as the parsers know them, and does the faults that other tests need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.judging.outcome import judge
from supervisord_py.pipes.judging.parsers import parser_for
from supervisord_py.pipes.judging.values import Cause, Ending, Requirement, SuccessRule, Summary, Text

AGENT = Path(__file__).with_name("fake_agent.py")
PARSERS = {"text": "text", "pi-new": "pi-jsonl", "pi-old": "pi-jsonl", "claude": "claude-json"}
PATIENCE = 60


def run(dialect: str, *steps: str, prompt: str = "a prompt", **env: str) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-I", "-S", str(AGENT), "--as", dialect, "--provider", "custom", *steps]
    env = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(argv, input=prompt.encode(), capture_output=True, env=env, timeout=PATIENCE, check=False)


def judged(dialect: str, *steps: str, prompt: str = "a prompt") -> tuple[Outcome, Summary, bytes]:
    """Run it and judge it as the daemon does."""
    done = run(dialect, *steps, prompt=prompt)
    parser = parser_for(PARSERS[dialect])
    happenings = [*parser.feed(done.stdout), *parser.end()]
    code, number = (done.returncode, None) if done.returncode >= 0 else (None, -done.returncode)
    stderr, stdout = done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
    ending = Ending(Cause.NOBODY, code, number, None, stdout, stderr)
    require = Requirement.TEXT if dialect == "text" else Requirement.FINAL_TEXT
    outcome = judge(ending, parser.summary, SuccessRule((0,), require), allow_empty=False)
    return outcome, parser.summary, b"".join(each.data for each in happenings if isinstance(each, Text))


@pytest.mark.parametrize("dialect", PARSERS)
def test_an_answer_is_a_success_in_every_dialect(dialect: str) -> None:
    outcome, summary, text = judged(dialect, prompt="FAKE: say:one usage:10/5/0.5 turns:1 'answer:one two'")
    assert outcome.status is Status.COMPLETED, outcome
    assert b"one" in text
    if dialect != "text":
        assert summary.final_text == "one two"
        assert summary.usage.cost >= 0.5


@pytest.mark.parametrize(
    ("dialect", "kind", "error_type"),
    [
        ("text", "401", ErrorType.AUTH_FAILED),
        ("pi-new", "404", ErrorType.MODEL_NOT_FOUND),
        ("text", "429-hint", ErrorType.RATE_LIMITED),
        ("claude", "429-hint", ErrorType.RATE_LIMITED),
        ("pi-old", "429-hint", ErrorType.RATE_LIMITED),
        ("text", "quota", ErrorType.QUOTA_EXHAUSTED),
        ("pi-new", "500", ErrorType.PROVIDER_ERROR),
        ("pi-old", "network", ErrorType.NETWORK),
        ("claude", "overflow", ErrorType.CONTEXT_OVERFLOW),
        ("pi-new", "refusal", ErrorType.SAFETY_REFUSAL),
    ],
)
def test_a_failure_is_understood_in_every_dialect(dialect: str, kind: str, error_type: ErrorType) -> None:
    outcome, _, _ = judged(dialect, f"fail:{kind}")
    assert (outcome.status, outcome.error_type) == (Status.FAILED, error_type)
    if kind == "429-hint":
        assert outcome.retry_after_seconds == 7


def test_where_steps_come_from(tmp_path: Path) -> None:
    assert run("text").stdout == b"done\n"
    assert run("text", "echo", prompt="what it was asked").stdout == b"what it was asked\n"
    assert run("text", FAKE_AGENT="say:env").stdout == b"env"
    assert json.loads(run("text", "env", A="1").stdout)["A"] == "1"
    assert "--provider" in json.loads(run("text", "argv").stdout)
    version = subprocess.run([sys.executable, str(AGENT), "--version"], capture_output=True, check=True)
    assert version.stdout == b"fake-agent 1.2.3\n"
    out = run("text", "write:x=y", f"touch:{tmp_path}/t", f"waitfile:{tmp_path}/t", PX_OUTPUT_DIR=str(tmp_path))
    assert (out.returncode, (tmp_path / "x").read_text()) == (0, "y")


def test_faults() -> None:
    assert run("text", "exit:3").returncode == 3
    assert run("text", "say:half", f"kill:{signal.SIGKILL.value}").stdout == b"half"
    assert run("text", "bad-utf8").stdout == b"caf\xe9 \xff\xfe\n"
    flooded = run("text", "flood-err:200000", "flood-out:200001", "err:last")
    assert len(flooded.stdout) == 200001
    assert len(flooded.stderr) > 190_000
    assert flooded.stderr.endswith(b"last\n")
    old, new = run("pi-old", "flood-out:20000"), run("pi-new", "flood-out:20000")
    assert len(old.stdout) > 5 * len(new.stdout) > 90_000


def test_what_it_leaves_behind_says_who_it_is(tmp_path: Path) -> None:
    run("text", "child:0", "setsid:0", "daemon:0", "sleep:0", PX_OUTPUT_DIR=str(tmp_path))
    # The pipes were closed by all of the children that had them, so they have written; the others are waited for.
    lines = (tmp_path / "pids").read_text().split()
    assert "child" in lines
