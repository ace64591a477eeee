"""Imports the wire on a thread, once: zmq and jupyter_client take a quarter of a second, which no loop may lose.

A start does it beside the boot of the kernel's own interpreter, which takes about as long.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "supervisord_py.kernels.direct.wire"


async def wire_module() -> Any:
    """Return the module `wire`."""
    return await asyncio.to_thread(_load)


def _load() -> ModuleType:
    return importlib.import_module(_NAME)
