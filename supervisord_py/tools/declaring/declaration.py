"""What a dialect says about a tool, before the settings of ours are added: the meeting point of both readers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.declaring.fields import Fields
    from supervisord_py.tools.spec import PixieTraits

MAX_NAME = 64
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tool in the words of its dialect; fields as in `ToolSpec`."""

    title: str
    version: str
    description: str
    input_schema: Mapping[str, Any] = field(repr=False)
    output_schema: Mapping[str, Any] = field(repr=False)
    concurrent: bool = True
    pinned: bool = False
    pixie: PixieTraits | None = field(default=None, repr=False)


def name_trouble(name: str) -> str | None:
    """Say why a name cannot be a tool's, or None when it can."""
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not NAME.fullmatch(name):
        return "must be lower-case letters, digits and '-', beginning with a letter or digit"
    return None


def check_name(fields: Fields, key: str, folder_name: str) -> None:
    """Note a name that is missing, cannot be one, or differs from the folder's."""
    if not fields.has(key):
        fields.missing(key)
    name = fields.text(key, folder_name)
    trouble = name_trouble(name)
    if trouble:
        fields.wrong(key, f"{name!r} {trouble}")
    elif name != folder_name:
        fields.wrong(key, f"must equal the folder's name: {name!r} in the folder {folder_name!r}")
