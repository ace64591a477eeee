"""The Prometheus text format, version 0.0.4. Pure: families in, text out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Type(StrEnum):
    """Type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line; `suffix` extends the family's name (`_bucket`)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its explanation and samples."""

    name: str
    type: Type
    explanation: str
    samples: Sequence[Sample]


def exposition(families: Iterable[Family]) -> str:
    """Return the whole page."""
    return "".join(_family(family) for family in families)


def histogram_samples(bounds: Sequence[float], cumulative: Sequence[int], total: float) -> list[Sample]:
    """Return buckets, sum and count; `cumulative` has one element more than `bounds`, for +Inf."""
    edges = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    buckets = [Sample(count, {"le": edge}, "_bucket") for edge, count in zip(edges, cumulative, strict=True)]
    return [*buckets, Sample(total, suffix="_sum"), Sample(cumulative[-1], suffix="_count")]


def _family(family: Family) -> str:
    head = f"# HELP {family.name} {family.explanation}\n# TYPE {family.name} {family.type}\n"
    return head + "".join(
        f"{family.name}{one.suffix}{_labels(one.labels)} {_value(one.value)}\n" for one in family.samples
    )


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _value(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
