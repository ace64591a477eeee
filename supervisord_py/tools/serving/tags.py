"""The note that the keeper holds with each instance: enough for a later control plane to go on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from supervisord_py.process.spec import Reason


@dataclass(frozen=True, slots=True)
class Tag:
    """What is known of an instance besides its process. A tag of another version is not understood.

    Attributes:
        tool: Name of the tool.
        port: Where it listens on 127.0.0.1.
        digest: Of the declaration it was started from.
        listen: Its listen mode.
        start_method: How it was started.
        ready: It had become ready.
        cold_start_ms: How long that took.
        stopping: Why it is being stopped; None while it is not.
    """

    tool: str
    port: int
    digest: str
    listen: str
    start_method: str
    ready: bool = False
    cold_start_ms: int = 0
    stopping: str | None = None

    @property
    def wanted(self) -> Reason | None:
        """Why it is being stopped, as a reason."""
        return Reason(self.stopping) if self.stopping else None

    def encode(self) -> str:
        """Return the text for the keeper."""
        return json.dumps({"v": 1, **asdict(self)}, separators=(",", ":"))


def decode(text: str) -> Tag | None:
    """Read a tag; None when it is none of ours or of another version."""
    try:
        members = json.loads(text)
        if members.pop("v") != 1:
            return None
        tag = Tag(**members)
        return tag if tag.wanted or not tag.stopping else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
