"""What a cell at a server came to: its reply, and whether its output is known to be whole. Pure.

Law: continuity is claimed only where the kernel writes by itself. A connection that broke in mid-cell may have taken
messages with it that no replay brings back, and from here that cannot be told.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisord_py.kernels.backend import Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.output.replies import reply_of

if TYPE_CHECKING:
    from supervisord_py.kernels.gateway.cell_progress import CellProgress

PRELUDE = frozenset("append diff env find grep output read run tree write".split())  # noqa: SIM905  # a list of names
"""Helpers that kernels of ours offer to cells: px-prelude(7)."""
_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def outcome_of(progress: CellProgress, *, spool: bool, broken: bool) -> Reply:
    """Return the reply of a cell whose execute_reply came.

    Args:
        progress: What was heard of it.
        spool: The kernel wrote its output down by itself.
        broken: The connection broke while it ran.
    """
    reply = reply_of(progress.reply or {})
    if spool:
        return replace(reply, iopub_lost=not progress.idle)
    notices = []
    if progress.held_back:
        notices.append(
            f"The gateway held output back ({progress.held_back[0]}): part of it is missing."
            " Its settings iopub_data_rate_limit, iopub_msg_rate_limit or limit_rate would let it through."
        )
    if broken:
        notices.append("The connection to the gateway broke while the cell ran: output may be missing.")
    elif not progress.idle:
        notices.append("The end of the output was not seen: some of it may be missing.")
    if progress.is_altered:
        notices.append("The server passes text on, not bytes: what was no UTF-8 came altered.")
    is_lossy = bool(notices)
    if (name := _missing_helper(reply)) is not None:
        notices.append(f"Kernels of an external gateway have no prelude: `{name}` is not there.")
    return replace(reply, iopub_lost=not progress.idle, lossy=is_lossy, notice=" ".join(notices) or None)


def _missing_helper(reply: Reply) -> str | None:
    """Return the name of our prelude that the cell missed, if that is why it failed."""
    if reply.error is None or reply.error.name != "NameError":
        return None
    found = _UNDEFINED.match(reply.error.value)
    return found[1] if found and found[1] in PRELUDE else None


def outcome_unknown(place: str) -> Reply:
    """Return the reply of a cell that is over, while its execute_reply was lost."""
    text = f"The connection to {place} broke, and how the cell ended was not heard; perhaps it never ran."
    return Reply(
        CellStatus.ERROR,
        error=CellError("ReplyLost", text),
        lossy=True,
        notice="The connection to the gateway broke while the cell ran: output may be missing.",
    )
