"""The prompt of an execution: five facts, the preset's words, and the pipe's body as it was written. Pure.

The facts are the contract for which published pipes were written. `{{…}}` in a body passes through untouched, as
everything else in it does.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_executions import Execution

TOKEN_FILE_VARIABLE = "PX_API_TOKEN_FILE"  # noqa: S105 - the name of a variable


def api_address(socket: str, port: int | None, host: str = "127.0.0.1") -> str:
    """Say where the API is: the TCP port where there is a listener, else the control socket.

    The port asks for a token. The agent is told in which file it lies; the token itself is in no prompt.
    """
    if port is None:
        return f"unix socket {socket}"
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port} (bearer token in the file ${TOKEN_FILE_VARIABLE})"


def render_prompt(it: Execution, body: str, *, zone: str, api: str) -> str:
    """Return the whole prompt: facts, blank line, the preset's prompt and a blank line where it has one, body.

    The date is that of the window's end in the `zone`; the output directory is relative to the working directory.
    """
    start, end, context = it.context_start or it.queued_at, it.context_end or it.queued_at, it.plan.context
    local = datetime.fromtimestamp(end, ZoneInfo(zone))
    minutes = round((local.utcoffset() or timedelta()).total_seconds() / 60)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    lines = [
        f"Time range: {_utc(start)} to {_utc(end)}",
        f"Date: {local.date().isoformat()}",
        f"Timezone: {zone} (UTC{offset})",
        f"Output directory: ./output/{it.id}/",
        f"API: {api}",
    ]
    if context is not None:
        lines.append(f"Trigger: {json.dumps(context, ensure_ascii=False, sort_keys=True)}")
    words = (it.preset.prompt or "").strip("\n")
    return "\n\n".join(["\n".join(lines), *([words] if words.strip() else []), body])


def _utc(moment: float) -> str:
    """Write a time as the ledger does: the row and the prompt name the same values."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
