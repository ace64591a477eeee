"""Settings are laid over each other by a pure function: its laws."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.daemon.merge import ADDITIVE, Key, Layer, Origin, OriginKind, merge, nearest

KEYS = [("tools", "a"), ("tools", "b"), ("logs", "a"), ("api", "c")]
entries = st.dictionaries(st.sampled_from(KEYS), st.integers(), max_size=4)


def layer(values: dict[tuple[str, str], Any], number: int) -> Layer:
    tree: dict[str, Any] = {}
    origins: dict[Key, Origin] = {}
    for line, ((section, name), value) in enumerate(values.items(), start=1):
        tree.setdefault(section, {})[name] = value
        origins[section, name] = Origin(OriginKind.FILE, f"layer{number}", line)
    return Layer(Origin(OriginKind.FILE, f"layer{number}"), tree, origins)


@given(st.lists(entries, max_size=5))
def test_the_last_layer_that_says_something_wins_and_is_named(stack: list[dict[tuple[str, str], int]]) -> None:
    merged = merge([layer(values, number) for number, values in enumerate(stack)])
    for key in KEYS:
        said = [number for number, values in enumerate(stack) if key in values]
        if not said:
            assert key not in merged.origins
            assert key[1] not in merged.tree.get(key[0], {})
        else:
            assert merged.tree[key[0]][key[1]] == stack[said[-1]][key]
            assert merged.origins[key].where == f"layer{said[-1]}"


@given(st.lists(entries, max_size=3), st.lists(entries, max_size=3))
def test_merging_in_two_steps_gives_the_same(
    lower: list[dict[tuple[str, str], int]], upper: list[dict[tuple[str, str], int]]
) -> None:
    layers = [layer(values, number) for number, values in enumerate([*lower, *upper])]
    half = merge(layers[: len(lower)])
    below = Layer(Origin(), half.tree, half.origins)
    assert merge([below, *layers[len(lower) :]]) == merge(layers)


@given(st.lists(st.lists(st.text(max_size=3)), max_size=4))
def test_folders_of_tools_add_up_in_order(stack: list[list[str]]) -> None:
    (section, name) = next(iter(ADDITIVE))
    merged = merge([layer({(section, name): tuple(paths)}, number) for number, paths in enumerate(stack)])
    expected = tuple(path for paths in stack for path in paths)
    assert merged.tree.get(section, {}).get(name, ()) == expected


def test_merging_changes_no_layer() -> None:
    first, second = layer({("tools", "a"): 1}, 0), layer({("tools", "a"): 2, ("tools", "b"): 3}, 1)
    merge([first, second])
    assert first.tree == {"tools": {"a": 1}}


def test_an_origin_is_looked_up_from_the_key_outwards() -> None:
    file = Origin(OriginKind.FILE, "f")
    table = Origin(OriginKind.FILE, "f", 3)
    subject = Layer(file, {}, {("tools",): table})
    assert subject.origin(("tools", "inline", "deep")) is table
    assert subject.origin(("api",)) is file


def test_origins_read_as_people_write_them() -> None:
    assert str(Origin()) == "default"
    assert str(Origin(OriginKind.FILE, "/etc/pxd.toml", 7)) == "/etc/pxd.toml:7"
    assert str(Origin(OriginKind.FILE, "/etc/pxd.toml")) == "/etc/pxd.toml"
    assert str(Origin(OriginKind.ENVIRONMENT, "PX_A__B")) == "env PX_A__B"
    assert str(Origin(OriginKind.FLAG, "--set a.b")) == "flag --set a.b"


def test_nearest_guesses_or_stays_silent() -> None:
    assert nearest("warm_keep_mxa", ["queue_max", "warm_keep_max"]) == "warm_keep_max"
    assert nearest("zzz", ["queue_max"]) is None
