"""The input that a validation sends: the tool's own `test-request.json`, else one made from what it declares.

For Pixie tools the values are those of the original's validator: defaults, mid-range, first option, a tiny picture.
"""

from __future__ import annotations

import base64
import io
import struct
import wave
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import InvalidInputError
from supervisord_py.process.bounded_file import read_bounded
from supervisord_py.tools.checking.sample_schema import sample_of
from supervisord_py.tools.declaring.input import check_input
from supervisord_py.tools.declaring.json_positions import JsonSyntaxError, parse_bytes
from supervisord_py.tools.declaring.pixie_schema import CHAT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from supervisord_py.tools.spec import PixieInput, PixieTraits, ToolSpec

TEST_REQUEST = "test-request.json"


@dataclass(frozen=True, slots=True)
class Sample:
    """An input to try, where it comes from, and why it does not fit (empty when it does)."""

    value: Any
    origin: str
    trouble: str = ""


def sample_input(spec: ToolSpec, now: datetime) -> Sample:
    """Return an input for the tool: its test request, else a generated one.

    Args:
        spec: The tool.
        now: For inputs that are dates.
    """
    try:
        value = parse_bytes(read_bounded(spec.folder / TEST_REQUEST)).value
    except FileNotFoundError:
        return _checked(spec, generated_input(spec, now), "generated from the input's declaration")
    except OSError as error:
        return Sample({}, TEST_REQUEST, f"{TEST_REQUEST} {error.strerror or error}")
    except JsonSyntaxError as error:
        return Sample({}, TEST_REQUEST, f"{TEST_REQUEST}, line {error.place.line}: {error.message}")
    return _checked(spec, value, TEST_REQUEST)


def generated_input(spec: ToolSpec, now: datetime) -> Any:
    """Return an input made from the declaration alone."""
    if spec.pixie is not None:
        return _pixie_input(spec.pixie, now)
    return next(iter(sample_of(spec.input_schema)), {})


def _checked(spec: ToolSpec, value: Any, origin: str) -> Sample:
    try:
        check_input(spec, value)
    except InvalidInputError as error:
        return Sample(value, origin, error.detail)
    return Sample(value, origin)


def _pixie_input(traits: PixieTraits, now: datetime) -> dict[str, Any]:
    """Return values for all inputs but those that are optional without default, or hidden by their `show_if`."""
    if traits.layout == CHAT:
        return {"messages": [{"role": "user", "content": "Validation probe"}], "history": []}
    values: dict[str, Any] = {}
    for declared in traits.inputs:
        if declared.defaults:
            values[declared.key] = declared.defaults[0]
    for declared in traits.inputs:
        hidden = declared.show_if is not None and values.get(declared.show_if.key) != declared.show_if.equals
        if not declared.defaults and declared.required and not hidden:
            values[declared.key] = _pixie_value(declared, now)
    return values


def _pixie_value(declared: PixieInput, now: datetime) -> Any:
    settings = declared.settings
    today = now.date().isoformat()
    centre = settings.get("default_center") or [0, 0]
    made: Mapping[str, Callable[[], Any]] = {
        "number": lambda: _middle(settings),
        "slider": lambda: [settings["min"], settings["max"]] if settings.get("range") else _middle(settings),
        "select": lambda: declared.options[0],
        "radio": lambda: declared.options[0],
        "multiselect": list,
        "checkbox": bool,
        "toggle": bool,
        "date": lambda: today,
        "time": lambda: "00:00",
        "datetime": lambda: now.isoformat(timespec="seconds"),
        "date_range": lambda: [today, today],
        "file": lambda: [one_pixel_png()] if settings.get("multiple") else one_pixel_png(),
        "image": lambda: [one_pixel_png()] if settings.get("multiple") else one_pixel_png(),
        "audio": silent_wav,
        "colour": lambda: "#000000",
        "json": lambda: next(iter(sample_of(settings.get("schema") or {})), {}),
        "tags": list,
        "table": lambda: [_row(settings) for _ in range(int(settings.get("min_rows") or 0))],
        "map_point": lambda: centre,
        "map_bbox": lambda: [centre, [each + 0.01 for each in centre]],
        "map_polygon": lambda: [centre],
        "map_multipoint": lambda: [centre],
    }
    return made.get(declared.type, str)()


def _middle(settings: Mapping[str, Any]) -> float:
    low, high = settings.get("min"), settings.get("max")
    if low is not None and high is not None:
        return float(low / 2 + high / 2)
    return float(max(low, 0) if low is not None else min(high, 0) if high is not None else 0)


def _row(settings: Mapping[str, Any]) -> dict[str, Any]:
    columns = settings.get("columns") or []
    named = [each for each in columns if isinstance(each, dict) and "key" in each]
    return {each["key"]: 0 if each.get("type") == "number" else "" for each in named}


def one_pixel_png() -> str:
    """Return a transparent picture of one pixel as a data URL."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 5)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def silent_wav() -> str:
    """Return one second of silence (8 kHz, 8 bit, mono) as a data URL."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80" * 8000)
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"
