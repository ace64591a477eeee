"""The small pure modules: times, media types, query parameters, CPU samples, counters."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.api.cpu import CpuSamples
from supervisord_py.api.metrics import BOUNDS, Histogram
from supervisord_py.api.negotiation import NDJSON, SSE, choose
from supervisord_py.api.parameters import Form, Parameter, read_arguments
from supervisord_py.api.times import parse_age, parse_since, rfc3339
from supervisord_py.errors import BadRequestError

NOW = 1_800_000_000.0


@given(st.floats(min_value=0, max_value=4e9))
def test_a_time_survives_the_way_out_and_in(moment: float) -> None:
    text = rfc3339(moment)
    assert text is not None
    assert text.endswith("Z")
    assert abs(parse_since(text, NOW) - moment) <= 0.001


def test_no_time_stays_none() -> None:
    assert rfc3339(None) is None
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("1w", 604800), ("0.5h", 1800)],
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds
    assert parse_since(text, NOW) == NOW - seconds


@pytest.mark.parametrize("text", ["", "m", "-5", "10 m", "10x", "٣m", "9" * 400, "99999999999d", "1m30"])
def test_what_is_no_age(text: str) -> None:
    assert parse_age(text) is None


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", ""])
def test_what_is_no_time_says_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_since(text, NOW)


def test_a_time_without_a_zone_is_utc_and_one_with_a_zone_is_converted() -> None:
    assert parse_since("2026-01-31T12:00:00", NOW) == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    assert parse_since("2026-01-31T14:00:00+02:00", NOW) == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, NDJSON),
        ("*/*", NDJSON),
        ("text/event-stream", SSE),
        ("text/event-stream, application/x-ndjson;q=0.9, */*;q=0.1", SSE),
        ("image/png", NDJSON),
        ("TEXT/EVENT-STREAM; Q=1", SSE),
        (",;,", NDJSON),
    ],
)
def test_the_wanted_media_type(accept: str | None, chosen: str) -> None:
    assert choose(accept, (NDJSON, SSE)) == chosen


DECLARED = (
    Parameter("follow", Form.FLAG, "go on"),
    Parameter("timeout", Form.NUMBER, "seconds", minimum=-1, maximum=100),
    Parameter("lines", Form.INTEGER, "count", maximum=1000),
    Parameter("stream", Form.TEXT, "which", choices=("stdout", "stderr")),
    Parameter("unit", Form.TEXT, "whose", repeated=True),
)


def test_parameters_are_read_by_their_form() -> None:
    given_pairs = [
        ("follow", "1"),
        ("timeout", "1.5"),
        ("lines", "10"),
        ("stream", "stdout"),
        ("unit", "a"),
        ("unit", "b"),
    ]
    arguments = read_arguments(DECLARED, given_pairs)
    assert arguments.flag("follow")
    assert arguments.number("timeout") == 1.5
    assert arguments.integer("lines") == 10
    assert arguments.text("stream") == "stdout"
    assert arguments.texts("unit") == ("a", "b")


def test_what_was_not_given_is_none_or_off() -> None:
    arguments = read_arguments(DECLARED, [])
    assert not arguments.flag("follow")
    assert arguments.number("timeout") is None
    assert arguments.integer("lines") is None
    assert arguments.text("stream") is None
    assert arguments.texts("unit") == ()


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_flags_that_are_off(text: str) -> None:
    assert not read_arguments(DECLARED, [("follow", text)]).flag("follow")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("follow", "perhaps"),
        ("timeout", "soon"),
        ("timeout", "nan"),
        ("timeout", "inf"),
        ("timeout", "-2"),
        ("timeout", "101"),
        ("lines", "1.5"),
        ("lines", "-1"),
        ("lines", "1001"),
        ("lines", "9" * 5000),
        ("lines", "²"),
        ("stream", "stdin"),
    ],
)
def test_an_impossible_value_is_refused_by_the_parameters_name(name: str, value: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_arguments(DECLARED, [(name, value)])
    assert caught.value.extra["parameter"] == name


def test_an_unknown_parameter_comes_with_the_nearest() -> None:
    with pytest.raises(BadRequestError) as caught:
        read_arguments(DECLARED, [("folow", "1")])
    assert caught.value.hint == "did you mean 'follow'?"
    with pytest.raises(BadRequestError) as caught:
        read_arguments(DECLARED, [("zzzz", "1")])
    assert caught.value.hint == "known: follow, timeout, lines, stream, unit"
    with pytest.raises(BadRequestError) as caught:
        read_arguments((), [("zzzz", "1")])
    assert caught.value.hint == "this route takes no query parameters"


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(BadRequestError, match="more than once"):
        read_arguments(DECLARED, [("follow", "1"), ("follow", "0")])


@pytest.mark.parametrize("parameter", DECLARED)
def test_every_parameter_has_a_schema(parameter: Parameter) -> None:
    assert parameter.schema()["type"] in {"string", "number", "integer"}


def test_cpu_percent_needs_two_samples_and_is_of_one_cpu() -> None:
    samples = CpuSamples()
    assert samples.percent("a", 1.0, now=10.0) is None
    assert samples.percent("a", 2.0, now=12.0) == 50.0
    assert samples.percent("a", 6.0, now=14.0) == 200.0


def test_two_clients_at_once_share_a_sample() -> None:
    samples = CpuSamples()
    samples.percent("a", 1.0, now=10.0)
    assert samples.percent("a", 2.0, now=12.0) == 50.0
    assert samples.percent("a", 2.0, now=12.01) == 49.8


def test_cpu_time_that_shrinks_with_the_tree_is_no_negative_load() -> None:
    samples = CpuSamples()
    samples.percent("a", 5.0, now=10.0)
    assert samples.percent("a", 1.0, now=12.0) == 0.0


def test_a_clock_that_stands_still_says_nothing() -> None:
    samples = CpuSamples()
    assert samples.percent("a", 1.0, now=10.0) is None
    assert samples.percent("a", 2.0, now=10.0) is None


def test_instances_that_are_gone_are_forgotten() -> None:
    samples = CpuSamples()
    samples.percent("a", 1.0, now=10.0)
    samples.percent("b", 1.0, now=10.0)
    samples.keep_only({"b"})
    assert samples.percent("a", 2.0, now=12.0) is None
    assert samples.percent("b", 2.0, now=12.0) == 50.0


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_the_histogram_counts_everything_once(observed: list[float]) -> None:
    histogram = Histogram()
    for seconds in observed:
        histogram.observe(seconds)
    counts = [count for _, count in histogram.cumulative()]
    assert counts == sorted(counts)
    assert counts[-1] == len(observed)
    assert math.isclose(histogram.seconds, sum(observed), abs_tol=1e-6)
    for bound, count in zip(BOUNDS, counts, strict=False):
        assert count == sum(seconds <= bound for seconds in observed)


def test_the_bounds_of_a_whole_number_are_told_as_they_are() -> None:
    offset = Parameter("offset", Form.INTEGER, "of the first byte", maximum=2**63 - 1)
    with pytest.raises(BadRequestError) as refused:
        read_arguments([offset], [("offset", "-1")])
    assert refused.value.hint == f"give a whole number from 0 to {2**63 - 1}"
    assert read_arguments([offset], [("offset", str(2**63 - 1))]).integer("offset") == 2**63 - 1
