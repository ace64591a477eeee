"""The prompt: five facts in five lines, then what people wrote, untouched."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from pipe_texts import pipes_config
from supervisord_py.ledger.pipes import Execution, Plan, Preset
from supervisord_py.pipes.context import machine_zone, render_prompt

NOVEMBER = datetime.fromisoformat("2026-11-21T20:41:03.123Z").timestamp()


def api(port: int | None = 7860, **more: Any) -> str:
    return pipes_config(Path("/run"), api_port=port, **more).api


def rendered(body: str, words: str | None = None, context: object = None, end: float = NOVEMBER, **more: str) -> str:
    plan, preset = Plan("pi", context=context), Preset(prompt=words)  # type: ignore[arg-type]
    it = Execution(id=7, pipe_name="p", context_start=end - 3600, context_end=end, plan=plan, preset=preset)
    return render_prompt(it, body, **{"zone": "Europe/Berlin", "api": api(), **more})


def test_the_five_facts_stand_first_then_the_presets_words() -> None:
    head = (
        "Time range: 2026-11-21T19:41:03.123Z to 2026-11-21T20:41:03.123Z\n"
        "Date: 2026-11-21\n"
        "Timezone: Europe/Berlin (UTC+01:00)\n"
        "Output directory: ./output/7/\n"
        "API: http://127.0.0.1:7860 (bearer token in the file $PX_API_TOKEN_FILE)\n"
    )
    assert rendered("# Do {{it}} $x `y`\n") == f"{head}\n# Do {{{{it}}}} $x `y`\n"
    assert rendered("body", "\nBe brief.\n\n") == f"{head}\nBe brief.\n\nbody"
    assert rendered("body", "\n \n") == f"{head}\nbody"
    told = rendered("x", context={"event": "ü", "data": {"b": "1\n2"}})
    assert told == f'{head}Trigger: {{"data": {{"b": "1\\n2"}}, "event": "ü"}}\n\nx'
    assert api(None) == "unix socket /run/pxd.sock"
    assert api(api_host="::1").startswith("http://[::1]:7860 (")


def test_date_and_offset_are_those_of_the_zone_at_that_moment() -> None:
    for zone, date, offset in (("Asia/Kolkata", "2026-11-22", "+05:30"), ("America/St_Johns", "2026-11-21", "-03:30")):
        assert rendered("", zone=zone).splitlines()[1:3] == [f"Date: {date}", f"Timezone: {zone} (UTC{offset})"]


def test_the_machines_zone(tmp_path: Path) -> None:
    missing, named, linked = str(tmp_path / "none"), tmp_path / "timezone", tmp_path / "localtime"
    named.write_text("Asia/Tokyo\n")
    linked.symlink_to("/usr/share/zoneinfo/Europe/Paris")
    assert machine_zone({"TZ": ":Europe/Berlin"}, localtime=str(linked), timezone=str(named)) == "Europe/Berlin"
    assert machine_zone({"TZ": "CET-1CEST"}, localtime=str(linked), timezone=str(named)) == "Europe/Paris"
    assert machine_zone({}, localtime=missing, timezone=str(named)) == "Asia/Tokyo"
    with capture_logs() as told:
        assert machine_zone({"TZ": "Mars/X"}, localtime=missing, timezone=missing) == "UTC"
    assert [(it["event"], it["wanted"]) for it in told] == [("time_zone_unknown", "Mars/X")]
