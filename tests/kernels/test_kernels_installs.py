"""Overlays and the managed environment: built once, whole or not at all, told while it happens, never in silence."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels.resolver_house import TAG, ResolverHouse, fake_python
from supervisord_py.errors import ShuttingDownError, StartFailedError, TimedOutError
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.interpreters import MANAGED
from supervisord_py.kernels.session import CandidateVerdict, Source, StartRequest
from waiting import eventually


@pytest.fixture
def house(house: ResolverHouse) -> ResolverHouse:
    house.install_with()
    return house


@pytest.fixture
def bare(house: ResolverHouse) -> Path:
    """The project's interpreter, which has no ipykernel."""
    return fake_python(house.proj / ".venv" / "bin" / "python", lacking=["ipykernel", "zmq"])


# -- overlays ----------------------------------------------------------------------------------------------------------


async def test_an_interpreter_without_ipykernel_gets_an_overlay_once(house: ResolverHouse, bare: Path) -> None:
    overlay = house.folder / "data" / "overlays" / TAG
    for _ in range(2):
        choice = await house.choose()
        assert (choice.interpreter, choice.overlay) == (str(bare), str(overlay))
    assert choice.attempts[0].detail == f"runs, with the overlay {overlay}"
    assert len(house.built()) == 1
    assert house.built()[0].startswith(f"pip install --python {bare} --compile-bytecode --target ")
    log = overlay.with_name(f"{TAG}.log")
    assert house.lines[0] == f"building an overlay with ipykernel for {bare} in {overlay} with uv (its output: {log})"
    assert "fake uv: pip install" in log.read_text()
    assert len(house.lines) == 2
    assert house.lines[-1].startswith("built an overlay with ipykernel for ")
    assert sorted(os.listdir(overlay.parent)) == [TAG, log.name]
    assert overlay.parent.stat().st_mode & 0o077 == 0


async def test_nothing_is_built_where_it_may_not_be(house: ResolverHouse, bare: Path) -> None:
    remedy = f"{bare} -m pip install ipykernel"
    for allowed in (True, False):
        house.config = replace(house.config, managed=allowed)
        with pytest.raises(StartFailedError, match="has no ipykernel, and there is no overlay for it") as caught:
            await house.choose(install=not allowed)
        assert caught.value.hint == remedy
    asked = StartRequest(cwd=str(house.proj))
    explanation = await house.resolver.explain(asked, house.config)
    assert explanation.attempts[0].remedy == remedy
    assert "a start builds" not in str(explanation.failure)
    assert house.built() == []
    for wanted in (asked, StartRequest(cwd=str(house.proj), interpreter=MANAGED)):
        explanation = await house.resolver.explain(wanted, replace(house.config, managed=True))
        assert str(explanation.failure).endswith("; a start builds what is lacking first")
    assert house.built() == []


async def test_a_failed_build_is_told_with_the_command_and_the_next_candidate_is_taken(
    house: ResolverHouse, bare: Path
) -> None:
    house.install_with(first="echo could not resolve host; exit 2")
    python = fake_python(house.bin / "python3")
    choice = await house.choose()
    assert choice.interpreter == str(python)
    (notice,) = choice.notices
    assert notice.startswith(
        f"{bare} (.venv) has no ipykernel, and cannot build an overlay with ipykernel for {bare}: "
    )
    assert "uv exits with 2: could not resolve host" in notice
    assert f"({bare} -m pip install ipykernel)" in notice


async def test_a_call_may_give_up_while_the_build_goes_on_and_the_next_one_joins(
    house: ResolverHouse, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.install_with(first='while [ ! -e "$0.go" ]; do sleep 0.02; done')
    now = asyncio.get_running_loop().time
    with pytest.raises(TimedOutError) as caught:
        await house.choose(deadline=now() + 0.5)
    assert "goes on" in str(caught.value.hint)
    look = interpreters.is_complete

    def slow(target: Path, proof: str) -> bool:
        """Say what was so before the build ended, after it has."""
        found = look(target, proof)
        while proof == "ipykernel" and not look(target, proof):
            threading.Event().wait(0.01)
        return found

    monkeypatch.setattr(interpreters, "is_complete", slow)
    second = asyncio.create_task(house.choose())
    third = asyncio.create_task(house.choose())
    (house.folder / "uv.go").touch()
    assert (await second).overlay == (await third).overlay is not None
    assert len(house.built()) == 1


async def test_the_end_of_the_control_plane_ends_a_build(house: ResolverHouse, bare: Path) -> None:
    house.install_with(first="sleep 600")
    call = asyncio.create_task(house.choose())
    await eventually(house.built)
    await house.resolver.close()
    with pytest.raises(ShuttingDownError):
        await call
    assert list(await house.placement.list("program:")) == []
    house.install_with()
    assert (await house.choose()).overlay is not None
    assert not list((house.folder / "data" / "overlays").glob(".part-*"))


async def test_a_build_sees_the_installers_settings_and_no_secrets(house: ResolverHouse, bare: Path) -> None:
    house.install_with(first='echo "env: $UV_CACHE_DIR $PIP_CERT,$PYTHONPATH,$PI_X,$OPENAI_API_KEY"')
    house.environ |= {"UV_CACHE_DIR": "/cache", "PIP_CERT": "/cert", "PYTHONPATH": "/python"}
    house.environ |= {"PI_X": "gateway-token", "OPENAI_API_KEY": "sk"}
    house.resolver = house.made()
    assert "UV_CACHE_DIR" not in (await house.choose()).env
    assert "env: /cache /cert,,,\n" in (house.folder / "data" / "overlays" / f"{TAG}.log").read_text()


# -- the managed environment -------------------------------------------------------------------------------------------


async def test_the_managed_environment_is_made_when_it_is_named_and_used_ever_after(house: ResolverHouse) -> None:
    """A build that was killed counts for nothing, and the next one makes it whole."""
    root = house.folder / "data" / "python"
    fake_python(root / "bin" / "python")
    (root / "half").touch()
    (root.parent / ".part-python").touch()
    explanation = await house.resolver.explain(StartRequest(cwd=str(house.proj)), house.config)
    attempt = next(each for each in explanation.attempts if each.source is Source.MANAGED)
    assert (attempt.verdict, attempt.detail) == (CandidateVerdict.MISSING, "is not built")
    with pytest.raises(StartFailedError):
        await house.choose()
    assert house.built() == []
    choice = await house.choose(interpreter=MANAGED)
    assert choice.interpreter == str(root / "bin" / "python")
    assert [line.split()[0] for line in house.built()] == ["venv", "pip"]
    assert house.lines[0] == f"building the managed environment in {root} with uv (its output: {root}.log)"
    assert (sorted(os.listdir(root.parent)), (root / "half").exists()) == (["python", "python.log"], False)
    unnamed = await house.choose()
    assert (unnamed.interpreter, unnamed.attempts[2].source) == (choice.interpreter, Source.MANAGED)
    assert len(house.built()) == 2
