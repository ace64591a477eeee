"""The plain dialect of `tool.json`: name, version, description, and two JSON Schemas (CONTRACT §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.tools.declaring.declaration import Declaration, check_name
from supervisord_py.tools.declaring.json_positions import child
from supervisord_py.tools.declaring.schema import schema_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.declaring.fields import Fields

KEYS = ("name", "version", "description", "input", "output")


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
