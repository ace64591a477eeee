"""The prompt of an execution: five facts, the preset's words, and the pipe's body as it was written. Pure.

The facts are the contract for which published pipes were written. `{{…}}` in a body passes through untouched, as
everything else in it does.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_FILE_VARIABLE = "PX_API_TOKEN_FILE"  # noqa: S105 - the name of a variable


class PromptFacts(msgspec.Struct, frozen=True):
    """What the prompt says of the execution.

    Attributes:
        context_start, context_end: The time window, Unix seconds; date and offset are those of its end.
        zone: IANA name.
        output_dir: As the agent is to write it, relative to its working directory.
        api: Where the daemon's API is, as `api_address` says it.
        context: Facts of the trigger or of the caller (JSON values); None for none.
    """

    context_start: float
    context_end: float
    zone: str
    output_dir: str
    api: str
    context: Mapping[str, Any] | None = None


def api_address(socket: str, port: int | None, host: str = "127.0.0.1") -> str:
    """Say where the API is: the TCP port where there is a listener, else the control socket.

    The port asks for a token. The agent is told in which file it lies; the token itself is in no prompt.
    """
    if port is None:
        return f"unix socket {socket}"
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port} (bearer token in the file ${TOKEN_FILE_VARIABLE})"


def render_prompt(facts: PromptFacts, preset_prompt: str | None, body: str) -> str:
    """Return the whole prompt: facts, blank line, the preset's prompt and a blank line where it has one, body."""
    local = datetime.fromtimestamp(facts.context_end, ZoneInfo(facts.zone))
    minutes = round((local.utcoffset() or timedelta()).total_seconds() / 60)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    lines = [
        f"Time range: {_utc(facts.context_start)} to {_utc(facts.context_end)}",
        f"Date: {local.date().isoformat()}",
        f"Timezone: {facts.zone} (UTC{offset})",
        f"Output directory: {facts.output_dir}",
        f"API: {facts.api}",
    ]
    if facts.context is not None:
        lines.append(f"Trigger: {json.dumps(facts.context, ensure_ascii=False, sort_keys=True)}")
    words = (preset_prompt or "").strip("\n")
    return "\n\n".join(["\n".join(lines), *([words] if words.strip() else []), body])


def _utc(moment: float) -> str:
    """Write a time as the ledger does: the row and the prompt name the same values."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
