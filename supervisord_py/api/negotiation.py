"""Which of the offered media types does an `Accept` header want? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JSON = "application/json"
PROBLEM = "application/problem+json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
RAW = "application/octet-stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Return the first of `offered` that `Accept` names, in the order of the header; without one the first of all."""
    named = [part.partition(";")[0].strip().lower() for part in (accept or "").split(",")]
    return next((media for media in named if media in offered), offered[0])
