"""What somebody sent, as it is repeated to them: an answer is not as long as whatever was asked. Pure."""

from __future__ import annotations

SHOWN = 200


def shortened(text: str, most: int = SHOWN) -> str:
    """Return a text of at most `most` characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]}… and {len(text) - most} characters more"
