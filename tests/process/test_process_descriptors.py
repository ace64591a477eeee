"""Counting descriptors before they run out."""

from __future__ import annotations

import errno
import gc
import os
import resource

import pytest

from supervisord_py.errors import StartFailedError
from supervisord_py.process import descriptors


def test_what_is_left_falls_by_what_is_opened() -> None:
    gc.collect()  # what earlier tests left to it must not be closed in between
    before = descriptors.descriptors_left()
    assert before is not None
    with open(os.devnull, encoding="utf-8"):
        assert descriptors.descriptors_left() == before - 1


def test_a_start_with_room_is_let_through_and_one_without_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descriptors.check_room("tool:x")
    limit = len(os.listdir("/proc/self/fd")) + 3
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    with pytest.raises(StartFailedError) as refused:
        descriptors.check_room("tool:x")
    assert refused.value.extra["errno"] == errno.EMFILE
    assert f"of {limit}" in refused.value.detail
    assert "LimitNOFILE" in (refused.value.hint or "")


def test_no_descriptor_even_to_count_with_means_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr("supervisord_py.process.descriptors.os.listdir", none_left)
    assert descriptors.descriptors_left() == 0


def test_where_it_cannot_be_counted_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(path: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, "none", path)

    monkeypatch.setattr("supervisord_py.process.descriptors.os.listdir", not_there)
    assert descriptors.descriptors_left() is None
    descriptors.check_room("tool:x")
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors.descriptors_left() is None
