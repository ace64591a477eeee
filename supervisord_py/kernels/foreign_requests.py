"""Requests of clients that are not ours, as a kernel's iopub tells of them: its busy and idle. Pure.

Law: a kernel is in foreign use from the first `busy` of such a request to its `idle`. Where an `idle` was lost, the end
of a later request of our own settles it: shell requests are worked off one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ForeignRequests:
    """What is known of other clients.

    Attributes:
        used_at: When one of them last began or ended something, Unix seconds; None for never.
    """

    used_at: float | None = None
    _under_way: set[str] = field(default_factory=set)

    @property
    def busy(self) -> bool:
        """True while the kernel works for one of them."""
        return bool(self._under_way)

    def note(self, state: str, request: str, now: float) -> None:
        """A status message of a foreign request came.

        Args:
            state: Its execution state.
            request: Message id of the request.
            now: Unix seconds.
        """
        self.used_at = now
        if state == "busy":
            self._under_way.add(request)
        elif state == "idle":
            self._under_way.discard(request)

    def settle(self) -> None:
        """A shell request of our own has ended: earlier ones have too."""
        self._under_way.clear()
