"""Every requirement of pipes (A1 to I4) has a test of that name: here those of presets (A), and the check.

The others: test_requirements_b_c.py, test_requirements_d_e.py, test_requirements_f_to_i.py.
"""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from mock_provider import MockProvider
from requirement_stage import begun, ended, in_one_room, preset, presets, settings
from supervisord_py.api.pipes import execution_document
from supervisord_py.ledger.pipe_executions import ErrorType, Status, Trigger
from supervisord_py.pipes.adapters import load_adapters
from supervisord_py.pipes.launch import provider_doubt

if TYPE_CHECKING:
    import pytest

    from pipe_rig import PipeRig

HERE = Path(__file__).parent
COUNTS = {"a": 9, "b": 5, "c": 8, "d": 6, "e": 6, "f": 5, "g": 4, "h": 4, "i": 4}
IDS = tuple(f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1))


@in_one_room
async def test_a1_a_switched_preset_leaves_a_run_alone(rig: PipeRig) -> None:
    """The store is read whole before it is parsed, and what runs never looks at it again."""
    presets(rig, preset("a1", 'provider = "openai"', 'model = "before"'))
    folder = rig.write("a1", "agent: tell\npreset: a1")
    (folder / "wait").touch()
    number = await begun(rig, "a1")
    rig.config.presets_file.write_text('[presets.a1]\nprovider = "openai"\nmodel = "aft')
    (folder / "gate").touch()
    done = await rig.room.wait(number)
    assert (done.status, done.stdout) == (Status.COMPLETED, "--provider openai --model before\n")


@in_one_room
async def test_a2_the_preset_is_frozen_in_the_queue(rig: PipeRig) -> None:
    """What waits runs with the model that was meant when it was queued; the next one with the new model."""
    presets(rig, preset("a2", 'provider = "openai"', 'model = "before"'))
    folder = rig.write("a2", "agent: tell\npreset: a2")
    (folder / "wait").touch()
    first = await begun(rig, "a2")
    second = await rig.room.run("a2", queue=True)
    presets(rig, preset("a2", 'provider = "openai"', 'model = "after"'))
    row = await rig.room.execution(second.id, blobs=True)
    assert (row.status, row.preset.id, row.preset.model) == (Status.QUEUED, "a2", "before")
    (folder / "gate").touch()
    assert (await rig.room.wait(first)).status is Status.COMPLETED
    assert (await rig.room.wait(second.id)).stdout == "--provider openai --model before\n"
    assert (await rig.run("a2")).stdout == "--provider openai --model after\n"


@in_one_room
async def test_a3_a_missing_preset_fails_by_name(rig: PipeRig) -> None:
    """By hand and by schedule; never the file's own model instead, and nothing stays taken (fault 1)."""
    presets(rig, preset("a3-there", 'model = "other"'))
    rig.write("a3", "agent: tell\npreset: a3-gone\nmodel: own\nschedule: every 1h")
    await rig.room.refresh()
    by_itself = (await ended(rig, "a3"))[0]
    by_hand = await rig.run("a3")
    assert (by_itself.trigger, by_hand.trigger) == (Trigger.SCHEDULED, Trigger.MANUAL)
    for done in (by_itself, by_hand):
        assert (done.status, done.error_type, done.pid) == (Status.FAILED, ErrorType.PRESET_NOT_FOUND, None)
        assert "'a3-gone'" in (done.error_message or "")
        assert f"add [presets.a3-gone] to {rig.config.presets_file}" in (done.error_message or "")
    assert (rig.room.get("a3").running, rig.room.get("a3").queued) == (None, 0)


@in_one_room
async def test_a4_provider_errors_have_a_type(rig: PipeRig) -> None:
    """What agents write to stderr becomes one word of a closed list, in the row and in the API."""
    for at, (said, word) in enumerate(
        (
            ("404 The model `gtp` does not exist", "model_not_found"),
            ("401 invalid_api_key", "auth_failed"),
            ("429 rate_limit_exceeded", "rate_limited"),
            ("429 insufficient_quota", "quota_exhausted"),
        )
    ):
        rig.shell(f"a4-{at}", f"echo 'Error: {said}' >&2; exit 1", "retries: 0")
        done = await rig.run(f"a4-{at}")
        assert execution_document(done)["error_type"] == word
        assert said in (done.error_message or "")


@in_one_room
async def test_a5_a_missing_or_expired_key_is_told(rig: PipeRig) -> None:
    """Which variable of which provider is missing; or what the provider said of the key."""
    presets(rig, preset("a5", 'provider = "openai"', 'api_key = "$A5_KEY"'))
    rig.write("a5", "agent: tell\npreset: a5")
    missing = await rig.run("a5")
    assert (missing.error_type, missing.pid, missing.preset.provider) == (ErrorType.AUTH_FAILED, None, "openai")
    assert "A5_KEY is not set" in (missing.error_message or "")
    rig.shell("a5-old", "echo '401 Unauthorized: this key expired' >&2; exit 1")
    expired = await rig.run("a5-old")
    assert (expired.error_type, "key expired" in (expired.error_message or "")) == (ErrorType.AUTH_FAILED, True)


@in_one_room
async def test_a6_an_unreachable_provider_ends_with_the_timeout(rig: PipeRig) -> None:
    """Whatever an agent does with an address where nobody answers: the timeout ends it."""
    presets(rig, preset("a6", 'url = "http://192.0.2.1/v1"', 'model = "m"'))
    folder = rig.write("a6", "agent: tell\npreset: a6\ntimeout: 0.2\nretries: 0")
    (folder / "wait").touch()
    done = await rig.run("a6")
    assert (done.status, done.error_type, done.preset.url) == (
        Status.TIMED_OUT,
        ErrorType.TIMEOUT,
        "http://192.0.2.1/v1",
    )


@in_one_room
async def test_a7_ollama_is_asked_before_the_spawn(rig: PipeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not running and without the model are two things."""
    monkeypatch.setattr("supervisord_py.pipes.preflight.FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("supervisord_py.pipes.preflight.READ_SECONDS", 60.0)
    rig.write("a7", "agent: tell\npreset: a7\nretries: 0")
    with settings(rig, preflight=True, preflight_seconds=60.0), socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        presets(rig, _ollama(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1", "ok"))
        down = await rig.run("a7")
        async with MockProvider() as provider:
            presets(rig, _ollama(provider.url, "absent"))
            absent = await rig.run("a7")
            presets(rig, _ollama(provider.url, "ok"))
            assert (await rig.run("a7")).status is Status.COMPLETED
    assert (down.error_type, absent.error_type) == (ErrorType.PREFLIGHT_FAILED, ErrorType.MODEL_NOT_FOUND)
    assert "Ollama is not running" in (down.error_message or "")
    assert "ollama pull absent" in (absent.error_message or "")
    assert {down.pid, absent.pid} == {None}


def _ollama(url: str, model: str) -> str:
    return preset("a7", 'provider = "ollama"', f'url = "{url}"', f'model = "{model}"')


@in_one_room
async def test_a8_a_corrupt_store_is_told_and_harms_no_other(rig: PipeRig) -> None:
    """Who names a preset fails with file and line; who names none runs with what its file says, and that is told.

    The store is the user's own file and never written here, so there is nothing to rename into place.
    """
    rig.config.presets_file.write_text("[presets.a8\n")
    rig.write("a8", "agent: tell\npreset: a8")
    rig.write("a8-own", "agent: tell\nmodel: own")
    named, own = await rig.run("a8"), await rig.run("a8-own")
    assert named.error_type is ErrorType.PRESET_NOT_FOUND
    assert f"{rig.config.presets_file}: is no TOML" in (named.error_message or "")
    assert (own.status, own.stdout) == (Status.COMPLETED, "--model own\n")
    queued = next(it for it in await rig.said("pipe:a8-own") if it.event == "execution_queued")
    assert "is no TOML" in str(queued.facts["warnings"])
    presets(rig, preset("a8", 'model = "good"') + preset("a8-torn", 'effort = "much"'))
    assert (await rig.run("a8")).stdout == "--model good\n"


@in_one_room
async def test_a9_an_unknown_provider_is_passed_on(rig: PipeRig) -> None:
    """As it stands, to the agent and into the row; and that nobody knows it is told."""
    rig.write("a9", "agent: tell\nprovider: acme-llm\nmodel: m")
    done = await rig.run("a9")
    assert (done.stdout, done.preset.provider) == ("--provider acme-llm --model m\n", "acme-llm")
    doubt = provider_doubt(load_adapters(None).get("pi"), "acme-llm")
    assert doubt is not None
    assert "is not known to be one of pi's; it is passed on as it stands" in doubt


# -- the check ---------------------------------------------------------------------------------------------------------


def _named_tests() -> dict[str, list[str]]:
    """Return the tests of each id, read from the files without running them."""
    found: dict[str, list[str]] = {each: [] for each in IDS}
    for file in sorted(HERE.glob("test_requirements*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = re.match(r"test_([a-i]\d)_", node.name)
                if named is not None:
                    found[named[1]].append(node.name)
    return found


def test_every_requirement_has_a_test_and_a_row_in_the_design() -> None:
    design = (HERE.parents[1] / "DESIGN.md").read_text()
    rows = {row[1].lower(): row[2] for row in re.finditer(r"^\| ([A-I]\d) \|.*\| ([^|]+) \|$", design, re.MULTILINE)}
    assert len(IDS) == 51
    for each, tests in _named_tests().items():
        assert tests, f"no test for {each}"
        assert re.findall(r"`(\w+)`", rows.get(each, "")) == tests, f"the row of {each} in DESIGN.md §9"
