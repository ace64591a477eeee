"""Executions of one pipe, of several or of all, newest first, over as many pages as it takes."""

from __future__ import annotations

from pxctl.client import query, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.client import Client

    Execution = dict[str, Any]

_PAGE = 500
"""The longest page that the daemon gives."""


class Wanted:
    """Which executions; empty is all.

    Attributes:
        pipes: Bare names.
        statuses: Of STATUSES.
        since, until: RFC 3339, or an age.
    """

    __slots__ = ("pipes", "since", "statuses", "until")

    def __init__(self, pipes: tuple[str, ...], statuses: tuple[str, ...], since: str | None, until: str | None) -> None:
        self.pipes = pipes
        self.statuses = statuses
        self.since = since
        self.until = until

    def target(self, pipe: str | None, limit: int, cursor: int | None) -> str:
        """Return the request for a page."""
        route = "/api/executions" if pipe is None else f"/api/pipes/{quote(pipe)}/executions"
        filters = [("status", status) for status in self.statuses]
        return query(
            route, [*filters, ("since", self.since), ("until", self.until), ("limit", limit), ("cursor", cursor)]
        )


def read_pages(
    client: Client, wanted: Wanted, most: int | None, cursor: int | None = None
) -> tuple[list[Execution], int | None]:
    """Return the newest executions and the cursor behind them; None where there are no more.

    Args:
        client: Of the daemon.
        wanted: Which.
        most: At most so many; None for all.
        cursor: Begin behind it.
    """
    sources = [_rows(client, wanted, pipe, most, cursor) for pipe in wanted.pipes or (None,)]
    found: list[Execution] = []
    # Ids grow with time: those of several pipes are merged by them.
    heads = [(head, source) for source in sources if (head := next(source, None)) is not None]
    while heads and (most is None or len(found) < most):
        at = max(range(len(heads)), key=lambda index: int(heads[index][0]["id"]))
        head, source = heads.pop(at)
        found.append(head)
        if (following := next(source, None)) is not None:
            heads.append((following, source))
    return found, int(found[-1]["id"]) if heads and found else None


def _rows(
    client: Client, wanted: Wanted, pipe: str | None, most: int | None, cursor: int | None
) -> Iterator[Execution]:
    """Yield the executions of one source; a page is asked for when its first row is wanted."""
    size = _PAGE if most is None else min(most + 1, _PAGE)
    while True:
        page = client.get(wanted.target(pipe, size, cursor)).document
        yield from page.get("executions", [])
        cursor = page.get("next_cursor")
        if cursor is None:
            return
