"""Reads presets.toml: whole, then parsed; once more shortly after when what was read is no TOML (I3, A1). Shell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.presets import Presets, parse_presets
from supervisord_py.pipes.definition import ConfigProblem
from supervisord_py.process.bounded_file import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

AGAIN_SECONDS = 0.2
"""Somebody may be writing the file just now, without a temporary one."""


async def read_presets(file: Path, *, again_seconds: float = AGAIN_SECONDS) -> Presets:
    """Return the presets; none where there is no file. Never raises for what users wrote."""
    presets = await asyncio.to_thread(load_presets, file)
    if presets.file_problem is not None:
        await asyncio.sleep(again_seconds)
        presets = await asyncio.to_thread(load_presets, file)
    return presets


def load_presets(file: Path) -> Presets:
    """Read the file once. Blocking."""
    try:
        text = read_bounded(file).decode("utf-8-sig")
    except FileNotFoundError:
        return Presets(str(file))
    except UnicodeDecodeError as error:
        problem = ConfigProblem(f"is not UTF-8 at byte {error.start}", "save it as UTF-8", str(file))
    except OSError as error:
        problem = ConfigProblem(f"cannot be read: {error.strerror or error}", "mend or remove the file", str(file))
    else:
        return parse_presets(text, str(file))
    return Presets(str(file), file_problem=problem)
