"""What fills the gaps of an adapter for one execution. Pure. The key itself is never among it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.pipes.agents.spec import AgentSpec
    from supervisord_py.pipes.agents.templates import Values
    from supervisord_py.pipes.agents.versions import Version
    from supervisord_py.pipes.execution import Preset

CUSTOM = "custom"
"""Provider of a preset that names only a url."""
HAS_KEY = "[hidden]"
"""Stands for the key, so that conditions can ask whether there is one."""


@dataclass(frozen=True, slots=True)
class Places:
    """Paths and names of an execution."""

    run_dir: str
    agent_dir: str
    prompt_file: str
    session_dir: str
    output_dir: str
    pipe_dir: str
    pipe: str
    execution_id: int
    socket: str


def gap_values(
    spec: AgentSpec, preset: Preset, places: Places, *, version: Version | None = None, has_key: bool = False
) -> Values:
    """Return the value of every gap that has one."""
    url = preset.url or spec.provider_urls.get(preset.provider or "")
    values: dict[str, str | int | float | None] = {
        "provider": preset.provider or (CUSTOM if url else None),
        "model": preset.model,
        "effort": preset.effort,
        "url": url,
        "url_root": None if url is None else url.rstrip("/").removesuffix("/v1"),
        "api": preset.api,
        "key": HAS_KEY if has_key else None,
        "key_reference": spec.reference(version),
        "context_window": preset.context_window,
        "max_tokens": preset.max_tokens,
        "input_cost": preset.input_cost,
        "output_cost": preset.output_cost,
    }
    return {**values, **{each.name: getattr(places, each.name) for each in fields(places)}}
