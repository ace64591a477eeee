"""What a dialect says about a tool, before the settings of ours are added; and the reader of the plain dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.tools.declaring.json_positions import child
from supervisord_py.tools.declaring.schema import schema_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.declaring.fields import Fields
    from supervisord_py.tools.spec import PixieTraits

MAX_NAME = 64
PLAIN_KEYS = ("name", "version", "description", "input", "output")
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


def read_plain(fields: Fields, folder_name: str) -> Declaration:
    """Read what the plain dialect says; every problem is noted, none raised."""
    check_name(fields, "name", folder_name)
    return Declaration(
        title=folder_name,
        version=fields.text("version", ""),
        description=fields.text("description", ""),
        input_schema=_schema(fields, "input"),
        output_schema=_schema(fields, "output"),
    )


def _schema(fields: Fields, key: str) -> Mapping[str, Any]:
    """Read a JSON Schema; `true` and an absent one accept everything, `false` nothing."""
    if not fields.has(key):
        return {}
    schema = fields.raw(key)
    found = schema_problems(schema)
    for each in found:
        fields.problems.add(
            fields.file, fields.document, child(fields.pointer, key) + each.pointer, f"JSON Schema: {each.message}"
        )
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema if isinstance(schema, dict) and not found else {}
