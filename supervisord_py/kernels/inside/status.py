"""Status events of the prelude's helpers, and texts and lists that show themselves as they are."""

from __future__ import annotations

# mypy: allow-untyped-calls
# ipykernel and IPython are typed in parts only.
import itertools
from typing import TYPE_CHECKING

from .cell_writer import STATUS_MIME  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Iterable
from typing import Any

PREVIEW_CHARACTERS = 500
LISTED = 20


class Text(str):
    """A str that shows itself as it is when it is the value of a cell, without quotes and escapes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Lines(list):  # type: ignore[type-arg] # Python 3.8 cannot subscript it here
    """A list that shows one entry a line when it is the value of a cell."""

    def __repr__(self) -> str:
        return "\n".join(str(entry) for entry in self) or "(nothing)"


def tell(op: str, **fields: Any) -> None:
    """Emit a status event: a display of type `application/x-px-status+json`.

    Args:
        op: Which helper.
        fields: What it did, in a few words and numbers.
    """
    from IPython.display import publish_display_data

    event = {"op": op, **{name: _small(value) for name, value in fields.items()}}
    publish_display_data({STATUS_MIME: event})


def clipped(text: str, limit: int = PREVIEW_CHARACTERS) -> str:
    """Return the beginning of `text`; an ellipsis as the last character where there is more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(entries: Iterable[object]) -> Any:
    """Return the first entries as clipped texts."""
    return [clipped(str(entry)) for entry in itertools.islice(entries, LISTED)]


def _small(value: Any) -> Any:
    if isinstance(value, str):
        return clipped(value)
    if isinstance(value, (list, tuple)):
        return listed(value)
    return value if isinstance(value, (int, float, bool, type(None))) else clipped(str(value))
