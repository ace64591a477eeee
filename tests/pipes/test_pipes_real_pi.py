"""The newest pi, installed by .ci/agents with a node of its own. The older one: tests/e2e/test_e2e_pipes_real_pi.py."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mock_provider import ANSWER, INPUT_TOKENS, MockProvider
from supervisord_py.ledger.pipe_executions import ErrorType, Execution, Outcome, Plan, Preset, Status
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.config import PipesConfig
from supervisord_py.pipes.launch import LaunchSpec, cleanup, prepare
from supervisord_py.pipes.outcome import Cause, ExitInfo, judge
from supervisord_py.pipes.preflight import Completed
from supervisord_py.pipes.shelf import AgentShelf
from supervisord_py.pipes.streams import parser_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisord_py.pipes.streams import Summary

pytestmark = pytest.mark.deep

PEERS = Path(__file__).parents[2] / os.environ.get("VENV", ".venv") / "peers"
KEY = "sk-real-pi-test-key"
PATIENCE = 100.0


@dataclass(frozen=True)
class Run:
    """What became of one run."""

    prepared: LaunchSpec
    outcome: Outcome
    summary: Summary
    requests: int
    stored: bytes


async def run(argv: Sequence[str], *, name: str, timeout: float, cwd: str, env: Mapping[str, str]) -> Completed:
    """Run a small program; `Programs` has a test of its own."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), timeout)
    return Completed(child.returncode, None, out.decode(), err.decode())


class House:
    """Folders for the executions, and the context."""

    def __init__(self, root: Path, nodes: Path) -> None:
        self.root = root
        (root / "pipe").mkdir()
        found = [str(each.parent) for each in nodes.glob("node_modules/node-*/bin/node")]
        path = os.pathsep.join([str(PEERS / "pi-newest" / "node_modules" / ".bin"), *found, os.environ["PATH"]])
        environ = {"PATH": path, "HOME": str(root / "home"), "PROVIDER_KEY": KEY}
        files = (root / "pipes", root / "examples", root / "presets.toml", root / "agents.toml", root / "runs")
        names = ("PATH", "HOME")
        config = PipesConfig(*files, "/run/pxd.sock", preflight_seconds=PATIENCE, env_allow=names)
        room: Any = SimpleNamespace(config=config, placement=None)
        self.shelf = AgentShelf(room, environ)
        self.shelf.run = run

    async def prepare(self, number: int, model: str, url: str) -> LaunchSpec:
        preset = Preset(
            "x", "custom", model, url, "openai-completions", "$PROVIDER_KEY", input_cost=3.0, output_cost=15.0
        )
        it = Execution(id=number, pipe_name="p", rendered_prompt="Say hello.", plan=Plan("pi"), preset=preset)
        return await prepare(it, self.root / "pipe", self.shelf)

    async def run(self, number: int, model: str) -> Run:
        async with MockProvider() as provider:
            prepared = await self.prepare(number, model, provider.url)
            run_dir = self.root / "runs" / str(number)
            ending, out = await self._ended(prepared)
            adapter = prepared.adapter
            parser = parser_for(adapter.parser)
            parser.feed(out)
            parser.end()
            outcome = judge(ending, parser.summary, adapter.success, adapter.errors, allow_empty=False)
            assert set(provider.keys) == {KEY}
            stored = out + b"".join(each.read_bytes() for each in run_dir.rglob("*") if each.is_file())
            await asyncio.to_thread(cleanup, run_dir)
            return Run(prepared, outcome, parser.summary, len(provider.requests), stored)

    async def _ended(self, prepared: LaunchSpec) -> tuple[ExitInfo, bytes]:
        assert prepared.stdin_file is not None
        with prepared.stdin_file.open("rb") as prompt:
            child = await asyncio.create_subprocess_exec(
                *prepared.argv,
                cwd=prepared.cwd,
                env=dict(prepared.env),
                stdin=prompt,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        out, err = await asyncio.wait_for(child.communicate(), PATIENCE)
        code = child.returncode
        assert code is not None
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        return ExitInfo(Cause.NOBODY, exit_code, number, None, "", err.decode()), out


@pytest.mark.timeout(600)
async def test_the_newest_pi_runs_on_its_node_and_is_named_on_an_older_one(
    tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require((PEERS / "pi-newest" / "node_modules" / ".bin" / "pi").exists(), "needs the newest pi: .ci/agents")
    (tmp_path / "new").mkdir()
    run = await House(tmp_path / "new", PEERS / "node22").run(1, "tool")
    assert (run.outcome.status, run.summary.final_text, run.requests) == (Status.COMPLETED, ANSWER, 2)
    assert (run.summary.usage.input_tokens, run.summary.settled) == (2 * INPUT_TOKENS, True)
    assert (run.prepared.version.text, run.prepared.warnings) == ("1.5.2", ())
    assert KEY.encode() not in run.stored
    old = tmp_path / "old" / "node_modules" / "node-of-yesterday" / "bin" / "node"
    await asyncio.to_thread(old.parent.mkdir, parents=True)
    crash = "SyntaxError: The requested module does not provide an export named enableCompileCache"
    await asyncio.to_thread(old.write_text, f"#!/bin/sh\necho '{crash}' >&2\nexit 1\n")
    await asyncio.to_thread(old.chmod, 0o700)
    house = House(tmp_path / "old", tmp_path / "old")
    with pytest.raises(CannotRunError, match="does not start under what is there to run it") as caught:
        await house.prepare(2, "ok", "http://127.0.0.1:9/v1")
    assert caught.value.error_type is ErrorType.AGENT_INCOMPATIBLE
    assert "pi-coding-agent@0.74.2" in (caught.value.hint or "")
