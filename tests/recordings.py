"""What real agent programs printed: tests/pipes/recorded (see the README there), read by our own parsers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisord_py.ledger.pipe_executions import Outcome
from supervisord_py.pipes.adapters import AgentSpec, load_adapters
from supervisord_py.pipes.outcome import Cause, ExitInfo, judge
from supervisord_py.pipes.streams import PARSERS, Summary

RECORDED = Path(__file__).parent / "pipes" / "recorded"
VERSION = "version"
"""The case that is no run: the answer to `--version`."""
AGENTS = load_adapters(None)


@dataclass(frozen=True)
class Recording:
    """One run of a program: its output, how it ended, and how it was started (`told`, the JSON file beside it).

    `program` is the folder: `codex`, or `pi-1.5.2` where several versions are kept.
    """

    program: str
    case: str
    stdout: bytes
    stderr: str
    told: dict[str, Any]

    @property
    def spec(self) -> AgentSpec:
        """The adapter of the program."""
        return AGENTS.get(self.told["program"])


@dataclass(frozen=True)
class Read:
    """What our parser and our judge made of a recording."""

    outcome: Outcome
    summary: Summary
    text: bytes
    records: bytes


def recordings(program: str) -> dict[str, Recording]:
    """Return the recordings of a program by case."""
    return {path.stem: _recording(program, path) for path in sorted((RECORDED / program).glob("*.json"))}


def _recording(program: str, path: Path) -> Recording:
    stdout, stderr = path.with_suffix(".stdout").read_bytes(), path.with_suffix(".stderr").read_text()
    return Recording(program, path.stem, stdout, stderr, json.loads(path.read_text()))


def read(recording: Recording, cuts: Iterable[int] = ()) -> Read:
    """Read a recording in pieces."""
    spec, raw, parts = recording.spec, recording.stdout, []
    parser = PARSERS[spec.parser]()
    for start, end in itertools.pairwise([0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]):
        parts.append(parser.feed(raw[start:end]))
    parts.append(parser.end())
    told, stdout = recording.told, raw.decode()
    ended = ExitInfo(Cause.NOBODY, told["code"], told["signal"], None, stdout, recording.stderr)
    outcome = judge(ended, parser.summary, spec.success, spec.errors, allow_empty=False)
    text, records = (b"".join(it) for it in zip(*parts, strict=True))
    return Read(outcome, parser.summary, text, records)
