"""The gates of coverage: nine tenths overall, and every line and branch of the modules that only decide.

Run after `coverage combine`; prints what is below and exits 1 when a gate is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import coverage

OVERALL_PERCENT = 90.0
PURE = (
    "supervisord_py/process/lifecycle.py",
    "supervisord_py/process/backoff.py",
    "supervisord_py/tools/serving/warm_set.py",
    "supervisord_py/tools/serving/warm_slot.py",
    "supervisord_py/kernels/sessions/session_set.py",
    "supervisord_py/kernels/sessions/session_slot.py",
    "supervisord_py/kernels/sessions/session_events.py",
    "supervisord_py/kernels/sessions/session_refusals.py",
    "supervisord_py/kernels/lives/ladder.py",
    "supervisord_py/kernels/calls/call_rules.py",
    "supervisord_py/kernels/exposure.py",
    "supervisord_py/api/stream_place.py",
    "supervisord_py/kernels/choosing/environment.py",
    "supervisord_py/kernels/choosing/candidates.py",
    "supervisord_py/kernels/choosing/explanation.py",
    "supervisord_py/kernels/choosing/legacy_environment.py",
    "supervisord_py/kernels/choosing/capabilities.py",
    "supervisord_py/kernels/output/records.py",
    "supervisord_py/kernels/output/display_text.py",
    "supervisord_py/kernels/output/two_ends.py",
    "supervisord_py/kernels/output/survey.py",
    "supervisord_py/kernels/output/shown.py",
    "supervisord_py/kernels/output/mime.py",
    "supervisord_py/kernels/output/retention.py",
    "supervisord_py/kernels/output/script.py",
    "supervisord_py/kernels/bash/shell_cell.py",
    "supervisord_py/kernels/foreign_requests.py",
    "supervisord_py/kernels/sessions/session_places.py",
    "supervisord_py/kernels/sessions/session_waits.py",
    "supervisord_py/kernels/sessions/session_laws.py",
    "supervisord_py/kernels/kernel_endings.py",
    "supervisord_py/kernels/calls/cell_ending.py",
    "supervisord_py/kernels/lives/kernel_tags.py",
    "supervisord_py/kernels/output/replies.py",
    "supervisord_py/kernels/start_failure.py",
    "supervisord_py/kernels/launch_command.py",
    "supervisord_py/kernels/direct/message.py",
    "supervisord_py/kernels/direct/mailbox.py",
    "supervisord_py/jupyter/launch_order.py",
    "supervisord_py/api/doors.py",
    "supervisord_py/api/jupyter_wire.py",
    "supervisord_py/api/members.py",
    "supervisord_py/api/kernel_documents.py",
    "cli/pxctl/shown_text.py",
    "cli/pxctl/rich_text.py",
    "cli/pxctl/inline_images.py",
    "cli/pxctl/explaining.py",
    "supervisord_py/kernels/gateway/wire.py",
    "supervisord_py/kernels/gateway/cell_progress.py",
    "supervisord_py/kernels/gateway/refusals.py",
    "supervisord_py/kernels/gateway/init_code.py",
    "supervisord_py/kernels/gateway/outcome.py",
    "supervisord_py/kernels/gateway/gateway_command.py",
    "supervisord_py/kernels/shortened.py",
    "supervisord_py/api/json_text.py",
    "supervisord_py/api/names.py",
    "supervisord_py/keeper/backoff.py",
    "supervisord_py/pipes/judging/values.py",
    "supervisord_py/pipes/judging/gathering.py",
    "supervisord_py/pipes/judging/reading.py",
    "supervisord_py/pipes/judging/line_stream.py",
    "supervisord_py/pipes/judging/document_stream.py",
    "supervisord_py/pipes/judging/pi_stream.py",
    "supervisord_py/pipes/judging/claude_stream.py",
    "supervisord_py/pipes/judging/codex_stream.py",
    "supervisord_py/pipes/judging/gemini_stream.py",
    "supervisord_py/pipes/judging/opencode_stream.py",
    "supervisord_py/pipes/judging/text_stream.py",
    "supervisord_py/pipes/judging/parsers.py",
    "supervisord_py/pipes/judging/classify.py",
    "supervisord_py/pipes/judging/outcome.py",
    "supervisord_py/pipes/judging/retry.py",
    "supervisord_py/pipes/judging/aider_stream.py",
    "supervisord_py/pipes/judging/ceilings.py",
    "supervisord_py/pipes/scheduling/schedule.py",
    "supervisord_py/pipes/scheduling/grammar.py",
    "supervisord_py/pipes/scheduling/due.py",
    "supervisord_py/pipes/scheduling/events.py",
    "supervisord_py/pipes/scheduling/agenda.py",
    "supervisord_py/pipes/scheduling/forecast.py",
    "supervisord_py/pipes/scheduling/describe.py",
    "supervisord_py/pipes/scheduling/wall.py",
    "supervisord_py/pipes/scheduling/cron_fields.py",
    "supervisord_py/pipes/scheduling/cron_rule.py",
    "supervisord_py/pipes/scheduling/calendar_rule.py",
    "supervisord_py/pipes/scheduling/clock_words.py",
    "supervisord_py/pipes/scheduling/interval_words.py",
    "supervisord_py/pipes/scheduling/config_map.py",
    "supervisord_py/pipes/scheduling/instants.py",
    "supervisord_py/pipes/scheduling/nearest.py",
    "supervisord_py/pipes/scheduling/zones.py",
    "supervisord_py/pipes/declaring/decoding.py",
    "supervisord_py/pipes/declaring/edit.py",
    "supervisord_py/pipes/declaring/field_reader.py",
    "supervisord_py/pipes/declaring/fields.py",
    "supervisord_py/pipes/declaring/front_matter.py",
    "supervisord_py/pipes/declaring/kept_keys.py",
    "supervisord_py/pipes/declaring/lines.py",
    "supervisord_py/pipes/declaring/nodes.py",
    "supervisord_py/pipes/declaring/pipe_name.py",
    "supervisord_py/pipes/declaring/problems.py",
    "supervisord_py/pipes/declaring/rule_fields.py",
    "supervisord_py/pipes/declaring/sections.py",
    "supervisord_py/pipes/declaring/source.py",
    "supervisord_py/pipes/declaring/trigger_fields.py",
    "supervisord_py/pipes/declaring/values.py",
    "supervisord_py/pipes/declaring/yaml_cures.py",
    "supervisord_py/pipes/declaring/yaml_text.py",
    "supervisord_py/pipes/queueing/queue.py",
    "supervisord_py/pipes/running/counting.py",
    "supervisord_py/pipes/running/cut_values.py",
    "supervisord_py/pipes/running/freezing.py",
    "supervisord_py/pipes/running/not_kept.py",
    "supervisord_py/pipes/running/row_text.py",
    "supervisord_py/pipes/running/run_tag.py",
    "supervisord_py/pipes/running/trail.py",
    "supervisord_py/pipes/running/budgets.py",
    "supervisord_py/pipes/running/hook_words.py",
    "supervisord_py/pipes/rows.py",
    "supervisord_py/pipes/execution.py",
    "supervisord_py/ledger/instants.py",
    "supervisord_py/keeper/holding.py",
    "supervisord_py/kernels/direct/spare_rules.py",
    "supervisord_py/api/pipe_documents.py",
    "supervisord_py/pipes/agents/breakers.py",
    "supervisord_py/pipes/agents/command_line.py",
    "supervisord_py/pipes/agents/environment.py",
    "supervisord_py/pipes/agents/file_texts.py",
    "supervisord_py/pipes/agents/gap_values.py",
    "supervisord_py/pipes/agents/presets.py",
    "supervisord_py/pipes/agents/prompt.py",
    "supervisord_py/pipes/agents/redaction.py",
    "supervisord_py/pipes/agents/spec.py",
    "supervisord_py/pipes/agents/spec_reading.py",
    "supervisord_py/pipes/agents/templates.py",
    "supervisord_py/pipes/agents/toml_table.py",
    "supervisord_py/pipes/agents/versions.py",
)


def misses(report: dict[str, Any]) -> list[str]:
    """Return a sentence for each gate that `report` (coverage's JSON) misses."""
    found = []
    percent = report["totals"]["percent_covered"]
    if percent < OVERALL_PERCENT:
        found.append(f"coverage is {percent:.2f} %, below {OVERALL_PERCENT:g} %")
    for name in PURE:
        measured = report["files"].get(name)
        if measured is None:
            found.append(f"{name} was not measured")
            continue
        if measured["missing_lines"]:
            found.append(f"{name} is pure and lacks lines {measured['missing_lines']}")
        if measured["missing_branches"]:
            found.append(f"{name} is pure and lacks branches {measured['missing_branches']}")
    return found


def low(report: dict[str, Any]) -> list[str]:
    """Return a line for each file below the overall gate, lowest first."""
    files = [(each["summary"]["percent_covered"], name) for name, each in report["files"].items()]
    return [f"{percent:6.1f} %  {name}" for percent, name in sorted(files) if percent < OVERALL_PERCENT]


def read_report() -> dict[str, Any]:
    """Return coverage's own JSON report of the combined measurement."""
    measurement = coverage.Coverage()
    measurement.load()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "coverage.json"
        measurement.json_report(outfile=str(target))
        report: dict[str, Any] = json.loads(target.read_text())
    return report


def main() -> int:
    """Print the verdict; return the exit code."""
    report = read_report()
    for line in low(report):
        print(line)
    print(f"coverage: {report['totals']['percent_covered']:.2f} % of lines and branches")
    found = misses(report)
    for sentence in found:
        print(f"gate missed: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
