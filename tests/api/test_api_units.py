"""Units and the daemon: status, starts and stops, why, metrics, what doctor looks at, and the
description of it all.
"""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema_rs import meta
from prometheus_client.parser import text_string_to_metric_families

from api.api_rig import Rig, output, until
from supervisord_py.api import daemon as checks
from supervisord_py.api import unit_counts
from supervisord_py.api.daemon import FAIL, OK, WARN
from supervisord_py.api.status import KERNEL_MEANINGS, MEANINGS, meaning_of
from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger import instances
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.pipes import Status
from supervisord_py.process.events import Event
from supervisord_py.process.model import Caps, Reason, TreeStat

GONE = {"state": SessionState.STOPPED, "pid": None, "instance": None, "started_at": None}


async def test_status_has_kernels_and_remembered_ones_only_by_name_which_they_give_up_to_living_ones(
    rig: Rig,
) -> None:
    rig.add_tool("echo")
    living = rig.kernels.put(
        "work", state=SessionState.BUSY, running="c1", queued=2, notices=("recycled",)
    )
    failed = rig.kernels.put("bad", "/b", **{**GONE, "state": SessionState.FAILED})
    old = rig.kernels.put("old", "/o", **GONE, reason=Reason.EVICTED_TTL)
    rig.kernels.put("work", "/before", **GONE)
    rig.placement.stats["00000000.K"] = TreeStat(1000, 1.0, 3)
    units = {unit["unit"]: unit for unit in (await rig.get("/api/status"))[1]["units"]}
    assert list(units) == sorted([living.unit, failed.unit, "tool:echo"])
    known = {
        "kind": "kernel",
        "name": living.id,
        "session": "work",
        "state": "busy",
        "in_flight": 1,
        "waiting": 2,
    }
    known |= {
        "rss_bytes": 1000,
        "processes": 3,
        "cwd": "/work",
        "pid": 4242,
        "warnings": ["recycled"],
    }
    assert units[living.unit] == units[living.unit] | known
    (asked,) = (await rig.get("/api/status?unit=old"))[1]["units"]
    assert (asked["unit"], asked["state"], asked["reason"]) == (old.unit, "stopped", "evicted_ttl")
    assert (await rig.get("/api/units?name=work"))[1]["units"][0]["unit"] == living.unit
    another = rig.kernels.put("work", "/other")
    status, problem, _ = await rig.get("/api/units?name=kernel:work")
    assert (status, problem["candidates"]) == (400, sorted([living.unit, another.unit]))


async def test_why_tells_the_chain_from_its_beginning(rig: Rig) -> None:
    rig.add_tool("x")
    ledger, publish = rig.context.ledger, rig.context.events.publish
    with output(rig, "tool:x") as written:
        began = written.append(0.0, STDERR, 1, b"of an earlier life\n")
        written.append(1.0, STDOUT, 2, b"fine\n")
        written.append(1.0, STDERR, 2, b"boom \xff\n")
    await ledger.write(
        INSTANCES.insert(InstanceRow("i.1", "tool:x", 1.0, pid=7, log_position=began))
    )
    await ledger.write(instances.ended("i.1", 2.0, "exit", code=3, log_end=written.position))
    first = publish("starting", "tool:x", instance="i.1")
    second = publish("spawned", "tool:x", instance="i.1", cause=first)
    third = publish("died", "tool:x", Reason.EXIT, instance="i.1", cause=second, code=3)
    publish("pinned", "tool:x")
    rig.launcher.put("x", reason="exit")
    status, document, _ = await rig.get("/api/units/x/why")
    assert (status, document["schema"], document["reason"]) == (200, "px.why/1", "exit")
    assert [event["id"] for event in document["chain"]] == [first, second, third]
    assert (document["stderr_tail"], document["instance"]["code"]) == ("boom \ufffd\n", 3)
    assert ("exit code 3" in document["summary"], document["next_step"]) == (
        True,
        "pxctl logs tool:x --stderr",
    )


async def test_without_waiting_or_over_its_time_the_work_goes_on_by_itself(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.gate = asyncio.Event()
    status, document, _ = await rig.ask("POST", "/api/tools/x/start?wait=0")
    assert (status, document["units"][0]["state"]) == (202, "cold")
    status, problem, _ = await rig.ask("POST", "/api/tools/x/stop?timeout=0.05")
    assert (status, problem["kind"], "goes on" in problem["detail"]) == (504, "timed_out", True)
    rig.launcher.gate.set()
    await until(lambda: rig.launcher.states["x"].reason == "stopped")


async def test_metrics_count_units_events_and_requests(rig: Rig) -> None:
    view = rig.kernels.put("work", queued=3)
    rig.kernels.put("gone", **GONE)
    publish = rig.context.events.publish
    publish("died", view.unit, Reason.SIGNAL)
    publish("execution_failed", "pipe:digest", execution=2, error_type="crash", duration_ms=1500)
    publish("run", 'tool:a"b\\c', outcome="completed", duration_seconds=0.02)
    publish(
        "run", "tool:refused", outcome="failed", error_kind="invalid_input", duration_seconds=0.01
    )
    publish("reloaded")
    await rig.get("/api/health")
    page = (await rig.get("/api/metrics"))[1].decode()
    name = view.unit.removeprefix("kernel:")
    assert set(page.splitlines()) >= {
        "pxd_up 1.0",
        'pxd_units{kind="kernel",state="idle"} 1.0',
        'pxd_waiting{kind="kernel"} 3.0',
        f'pxd_unit_waiting{{kind="kernel",unit="{name}"}} 3.0',
        f'pxd_unit_up{{kind="kernel",unit="{name}"}} 1.0',
        f'pxd_events_total{{event="died",kind="kernel",reason="signal",unit="{name}"}} 1.0',
        'pxd_events_total{event="execution_failed",kind="pipe",reason="crash",unit="digest"} 1.0',
        'pxd_events_total{event="run",kind="tool",reason="invalid_input",unit="refused"} 1.0',
        'pxd_events_total{event="reloaded",kind="daemon",reason="",unit=""} 1.0',
        'pxd_run_duration_seconds_bucket{kind="pipe",le="1",unit="digest"} 0.0',
        'pxd_run_duration_seconds_bucket{kind="pipe",le="2.5",unit="digest"} 1.0',
        'pxd_run_duration_seconds_sum{kind="pipe",unit="digest"} 1.5',
        'pxd_run_duration_seconds_count{kind="tool",unit="a\\"b\\\\c"} 1.0',
        'pxd_http_requests_total{route="GET /api/health",status="200"} 1.0',
    }
    down = [line for line in page.splitlines() if line.startswith("pxd_unit_up") and "gone" in line]
    assert [line.rpartition(" ")[2] for line in down] == ["0.0"], "what is down has its series"
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert {name for name in families if not name.startswith("pxd_")} == set()
    assert families["pxd_run_duration_seconds"].type == "histogram"


def test_counts_of_many_units_are_bounded_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_counts, "UNITS_MAX", 3)
    counts = unit_counts.UnitCounts()
    for number in range(10):
        counts.count(Event(number, 0.0, f"kernel:s{number}", "ready"))
        counts.count(Event(number, 0.0, "tool:busy", "run", facts={"duration_seconds": 0.1}))
    assert len(counts.by_unit) <= 4
    assert counts.by_unit["tool", "busy"].events["run", ""] == 10
    assert sum(each.events["ready", ""] for each in counts.by_unit.values()) == 10


async def test_the_description_is_sound(rig: Rig) -> None:
    paths = (await rig.get("/api/openapi.json"))[1]["paths"]
    operations = [(path, operation) for path, item in paths.items() for operation in item.values()]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["summary"].endswith((".", "?")), path
        answers = [
            content
            for answer in operation["responses"].values()
            for content in answer.get("content", {}).values()
        ]
        for described in (*answers, *operation["parameters"]):
            meta.validate(described["schema"])
        named = sorted(it["name"] for it in operation["parameters"] if it["in"] == "path")
        assert named == sorted(re.findall(r"{(\w+)}", path))


async def test_pipes_are_units_of_status_wait_and_health(rig: Rig) -> None:
    rig.pipes.put(running=3, pid=1, instance="k", started_at=1.0)
    rig.pipes.put("idle", last_status=Status.FAILED)
    rig.pipes.put("off", enabled=False, last_status=Status.COMPLETED)
    rig.pipes.put("broken", config_error="no")
    rig.pipes.put("waiting", queued=2)
    rig.placement.stats["k"] = TreeStat(1000, 1.0, 2)
    units = {unit["unit"]: unit for unit in (await rig.get("/api/status"))[1]["units"]}
    states = {
        name: units[f"pipe:{name}"]["state"]
        for name in ("digest", "idle", "off", "broken", "waiting")
    }
    assert states == {
        "digest": "running",
        "idle": "idle",
        "off": "disabled",
        "broken": "failed",
        "waiting": "queued",
    }
    assert (units["pipe:digest"]["rss_bytes"], units["pipe:digest"]["processes"]) == (1000, 2)
    for name, ok in {"idle": False, "off": True}.items():
        assert (await rig.get(f"/api/units/pipe:{name}/wait?for=done"))[1]["ok"] is ok
    rig.pipes.scheduler_error = "it fell"
    assert [one["detail"] for one in (await rig.get("/api/health"))[1]["degraded"]] == [
        "was restarted: it fell"
    ]


async def test_refused_output_and_what_cannot_run_is_told_wherever_somebody_asks_how_things_are(
    rig: Rig,
) -> None:
    rig.pipes.refused = {"pipe:digest": "No space left on device"}
    for name, more in (
        ("digest", {}),
        ("off", {"enabled": False}),
        ("broken", {"config_error": "pipe.md:3: no"}),
    ):
        rig.pipes.put(name, **more)
    part, detail = (
        "output of pipe:digest",
        "the disk refuses it, and its agent waits: No space left on device",
    )
    known = {"part": part, "detail": detail, "repair": "df -h, then free some space"}
    assert known in (await rig.get("/api/status"))[1]["daemon"]["degraded"]
    assert known in (await rig.get("/api/health"))[1]["degraded"]
    found = {each["name"]: each for each in (await rig.get("/api/doctor"))[1]["checks"]}
    assert (found[part]["status"], found[part]["detail"], found[part]["repair"]) == (
        "fail",
        detail,
        known["repair"],
    )
    told = {
        "name": "pipe:broken",
        "status": "fail",
        "detail": "pipe.md:3: no",
        "repair": "pxctl pipe validate broken",
    }
    assert found["pipe:broken"] == told
    verdicts = [found[name]["status"] for name in ("pipe:digest", "pipe:off", "scheduler")]
    assert (verdicts, found["pipe:digest"]["detail"], "pipes" in found) == (
        ["fail", "warn", "ok"],
        "it is odd",
        False,
    )


@pytest.mark.parametrize(
    ("files", "mebibytes", "mode", "verdicts"),
    [
        (4096, 5000, 0o600, [OK, OK]),
        (128, 500, 0o644, [FAIL, WARN, WARN]),
        (4096, 10, 0o600, [OK, FAIL]),
    ],
)
async def test_open_files_disk_space_and_secrets(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    mebibytes: int,
    mode: int,
    verdicts: list[str],
) -> None:
    (rig.add_tool("x") / ".env").touch(mode=mode)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=mebibytes * checks.MEBIBYTE)
    )
    found = list(checks.check_machine(rig.context))
    assert [one.status for one in found] == verdicts
    repairs = {"open_files": "ulimit -n 288 && ", "disk": "du -sh ", "dotenv:x": "chmod 600 "}
    assert all(
        (one.repair or "").startswith(repairs[one.name]) is (one.status != OK) for one in found
    )


ALL = ("cpu", "memory", "pids")
INSTALL = "pxctl daemon install"


@pytest.mark.parametrize(
    ("platform", "controllers", "place", "said", "found"),
    [
        ("linux", ALL, (False, ALL), "the kernel holds", (OK, None)),
        (
            "linux",
            ("memory", "pids"),
            (False, ALL),
            "`cpu_percent` is not held; in a unit",
            (WARN, INSTALL),
        ),
        (
            "linux",
            (),
            (False, ALL),
            "held by measuring (resident); `processes` counts all of",
            (WARN, INSTALL),
        ),
        ("linux", (), (True, ALL), "no right to them: Delegate=yes", (WARN, f"{INSTALL} --force")),
        (
            "linux",
            (),
            (False, ()),
            "offers no cgroup-v2 controller for memory, pids, cpu",
            (WARN, None),
        ),
        (
            "linux",
            ("memory", "pids"),
            (True, ("memory", "pids")),
            "no cgroup-v2 controller for cpu",
            (WARN, None),
        ),
        ("darwin", (), (False, ()), "`cpu_percent` is not held", (OK, None)),
    ],
)
def test_which_limits_the_kernel_holds_and_what_would_change_that(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    controllers: tuple[str, ...],
    place: Any,
    said: str,
    found: object,
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    caps = Caps(1, 1.0, "boot", "cgroup", "resident", 0, controllers=controllers)
    told = list(checks.check_rungs(caps, is_service=place[0], offered=frozenset(place[1])))[-1]
    assert ((told.status, told.repair), said in told.detail) == (found, True)


def test_every_reason_of_the_closed_list_has_a_meaning_and_a_next_step() -> None:
    assert set(MEANINGS) == set(Reason)
    assert not any(
        "pxctl why" in step for _, step in (*MEANINGS.values(), *KERNEL_MEANINGS.values())
    ), "it was asked"
    for sentence, step in (
        meaning_of(reason, unit) for reason in Reason for unit in ("tool:x", "kernel:x")
    ):
        assert (bool(sentence and step), "{" in step) == (True, False)
    assert "tool" not in str(KERNEL_MEANINGS)
