"""What clients that are not ours do with kernels: JupyterLab or a console on the same channels.

Laws: a kernel that works for one of them is not evicted, and one that was used by one of them is as young as that. One
whose front end is there keeps its place: else five open notebooks on four places would evict each other without end.
The handle sees work on the wire, a front end says that it is there; here it is only carried to the set, before the set
decides something that it bears on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisord_py.kernels.lives.kernel_life import KernelLife
HOLD_SECONDS = 30.0
"""How long a front end that said that it is there is believed: they say it every 3 s, or every 20 s by a WebSocket."""


def news_of(lives: Iterable[KernelLife]) -> Iterator[ev.Event]:
    """Yield what the set has not heard yet."""
    for life in lives:
        handle = life.handle
        if handle is None or life.ready_at is None or life.ending:
            continue
        used = handle.foreign_used_at
        if used is not None and used != life.foreign_used_at:
            life.foreign_used_at = used
            yield ev.Used(life.session.id, clock.now() - max(0.0, time.time() - used))
        if handle.foreign_busy != life.foreign_busy:
            life.foreign_busy = handle.foreign_busy
            yield ev.ForeignBusy(life.session.id, life.foreign_busy)
        if (held := clock.now() < life.held_until) != life.held:
            life.held = held
            yield ev.Held(life.session.id, held)
