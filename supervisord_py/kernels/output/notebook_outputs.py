"""Outputs of cells as notebooks hold them: nbformat's shapes, valid by its schema.

Law: a notebook is valid whatever a cell gave. What is not in it is named in it: a reference to an artifact, which no
schema knows, becomes a sentence and metadata; a cell that failed without an exception of its own says how it failed.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.output.artifacts import joined
from supervisord_py.kernels.output.records import STATUS_MIME
from supervisord_py.kernels.output.render import PLAIN, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisord_py.kernels.cell import CellError
    from supervisord_py.kernels.config import OutputLimits
    from supervisord_py.kernels.output.cell_log import CellLog
    from supervisord_py.kernels.output.render import Output

MIB = 1024 * 1024
RICH_BYTES = 16 * MIB
FULL_BYTES = 64 * MIB
ALL_OUTPUTS = 100_000
_WORDS = {
    CellStatus.TIMED_OUT: "the cell ran out of its time and was ended",
    CellStatus.CANCELLED: "the cell was cancelled",
}


class Detail(Enum):
    """How much of what a cell gave goes into a notebook.

    `CUT`: as in answers. `RICH`: rich outputs whole up to 16 MiB each, stream text cut. `FULL`: up to 64 MiB of text
    and of each rich output.
    """

    CUT = "cut"
    RICH = "rich"
    FULL = "full"


def notebook_outputs(log: CellLog, limits: OutputLimits, detail: Detail = Detail.CUT) -> list[Output]:
    """Return the outputs of a cell; blocking. A cell without files has none."""
    most = ALL_OUTPUTS
    match detail:
        case Detail.CUT:
            shown = show(log, limits)
        case Detail.RICH:
            shown = show(log, replace(limits, inline_bytes=RICH_BYTES), most)
        case Detail.FULL:
            whole = replace(limits, preview_bytes=FULL_BYTES, head_bytes=FULL_BYTES // 2, inline_bytes=FULL_BYTES)
            shown = show(log, whole, most)
    return valid_outputs(shown.outputs)


def valid_outputs(outputs: Iterable[Mapping[str, Any]]) -> list[Output]:
    """Return outputs of an answer as a notebook may hold them; status events have no place there."""
    return [_valid(output) for output in outputs if set(output.get("data", {"": None})) != {STATUS_MIME}]


def _valid(output: Mapping[str, Any]) -> Output:
    if "data" not in output:
        return dict(output)
    kept: dict[str, Any] = {}
    away: dict[str, Any] = {}
    for mime, value in output["data"].items():
        if is_reference(value):
            away[mime] = value
        else:
            kept[mime] = value if mime.endswith("json") or isinstance(value, str) else joined(value)
    metadata = dict(output.get("metadata") or {})
    if away:
        metadata["px"] = {"artifacts": away}
        kept.setdefault(PLAIN, "\n".join(_reference_words(mime, each) for mime, each in away.items()))
    return {**output, "data": kept, "metadata": metadata}


def is_reference(value: Any) -> bool:
    """Say whether a value of a bundle stands for an artifact."""
    return isinstance(value, dict) and set(value) in ({"artifact", "bytes"}, {"artifact", "bytes", "error"})


def _reference_words(mime: str, reference: Mapping[str, Any]) -> str:
    where = f"artifact {reference['artifact']}" if reference["artifact"] else reference.get("error", "not kept")
    return f"[{mime}, {reference['bytes']} bytes: {where}]"


def with_failure(outputs: list[Output], status: CellStatus, error: CellError | None) -> list[Output]:
    """Return the outputs with the failure of a cell told, where no output of its own tells it."""
    if status is CellStatus.OK or any(output["output_type"] == "error" for output in outputs):
        return outputs
    name = error.name if error is not None else status.value
    value = error.value if error is not None else _WORDS.get(status, status.value)
    traceback = list(error.traceback) if error is not None else []
    told = {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback or [f"{name}: {value}"]}
    return [*outputs, told]
