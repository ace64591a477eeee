"""The daemon's own routes, waiting, why, and the description of it all."""

from __future__ import annotations

import re
import time
from pathlib import Path

from jsonschema_rs import meta
from msgspec import structs

from api.api_rig import STDERR, Output, Rig
from supervisord_py.api.openapi import openapi_document
from supervisord_py.api.routes import ROUTES
from supervisord_py.ledger import instances
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.process.model import Reason


async def test_the_daemon_object_says_how_long_each_half_has_run(rig: Rig) -> None:
    began = time.time()
    rig.placement.caps = structs.replace(rig.placement.caps, keeper_started_at=began - 90)
    rig.control.facts = structs.replace(rig.control.facts, control_started_at=began + 90)  # the clock was set back
    daemon = (await rig.get("/api/daemon"))[1]
    assert 90 <= daemon["keeper"]["uptime_seconds"] <= 90 + time.time() - began + 0.001
    assert daemon["control"]["uptime_seconds"] == 0


async def test_why_tells_the_chain_from_its_beginning(rig: Rig) -> None:
    rig.add_tool("x")
    ledger, publish = rig.context.ledger, rig.context.events.publish
    output = Output(Path(rig.placement.log_dir), "tool:x")
    output.write(b"of an earlier life\n", STDERR)
    began = output.position
    output.write(b"fine\n")
    output.write(b"boom \xff\n", STDERR)
    await ledger.write(INSTANCES.insert(InstanceRow("i.1", "tool:x", 1.0, port=4711, spec_digest="d")))
    await ledger.write(INSTANCES.update("i.1", pid=7, start_time=1, boot_id="boot", log_position=began))
    await ledger.write(
        instances.ended(
            "i.1",
            2.0,
            "exit",
            code=3,
            signal=None,
            verdict=None,
            max_rss_bytes=1,
            cpu_seconds=0.1,
            log_end=output.position,
        )
    )
    first = publish("starting", "tool:x", instance="i.1")
    second = publish("spawned", "tool:x", instance="i.1", cause=first)
    third = publish("died", "tool:x", Reason.EXIT, instance="i.1", cause=second, code=3)
    publish("pinned", "tool:x")
    rig.launcher.put("x", state="cold", reason="exit")
    status, document, _ = await rig.get("/api/units/x/why")
    assert (status, document["schema"], document["unit"]) == (200, "px.why/1", "tool:x")
    assert [event["id"] for event in document["chain"]] == [first, second, third]
    assert document["reason"] == "exit"
    assert document["stderr_tail"] == "boom \ufffd\n"
    assert "exit code 3" in document["summary"]
    assert document["next_step"] == "pxctl logs tool:x --stderr"
    assert document["instance"]["code"] == 3


def test_the_description_is_sound() -> None:
    document = openapi_document(ROUTES, "1")
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    identifiers = [operation["operationId"] for operation in operations]
    assert len(set(identifiers)) == len(identifiers)
    for operation in operations:
        assert operation["summary"].endswith((".", "?"))
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Problem"}
        successes = {code: answer for code, answer in operation["responses"].items() if code != "default"}
        assert successes
        for code, answer in successes.items():
            assert re.fullmatch(r"2\d\d|101", code)
            assert answer["description"]
            for content in answer.get("content", {}).values():
                meta.validate(content["schema"])
        names = [(parameter["in"], parameter["name"]) for parameter in operation["parameters"]]
        assert len(set(names)) == len(names)
        for parameter in operation["parameters"]:
            meta.validate(parameter["schema"])
    for path, item in document["paths"].items():
        wanted = set(re.findall(r"{(\w+)}", path))
        for operation in item.values():
            assert {p["name"] for p in operation["parameters"] if p["in"] == "path"} == wanted
