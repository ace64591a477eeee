"""Events: which pattern fits, what is watched for it."""

from __future__ import annotations

import pytest

from supervisord_py.errors import ConfigError
from supervisord_py.pipes.definition import parse_pattern
from supervisord_py.pipes.models import EventPattern, PublishedEvent
from supervisord_py.pipes.triggers import matches, watch_root

HOME = "/home/me/pipes/summary"


def event(text: str) -> PublishedEvent:
    name, colon, subject = text.partition(":")
    return PublishedEvent(name, subject if colon else None, "1")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("tool_failed: my tool", EventPattern("tool_failed", "my tool")),
        ("pipe_failed", EventPattern("pipe_failed")),
        ("file_changed:inbox/**/*.md", EventPattern("file_changed", "inbox/**/*.md")),
        ("not a name", "pipe_completed:NAME"),
        ("pipe_failed:", "pipe_failed:NAME"),
        ("pipe-completed:x", "`pipe_completed`"),
    ],
)
def test_patterns_are_read_and_what_could_never_happen_is_an_error(text: str, want: EventPattern | str) -> None:
    if isinstance(want, str):
        with pytest.raises(ConfigError) as caught:
            parse_pattern(text)
        assert want in str(caught.value.hint)
    else:
        assert parse_pattern(text) == want


@pytest.mark.parametrize(
    ("pattern", "happened", "fits"),
    [
        ("pipe_completed:x", "pipe_completed:x", True),
        ("pipe_completed:x", "pipe_failed:x", False),
        ("pipe_completed:x?", "pipe_completed:xy", True),
        ("meeting_ended:board", "meeting_ended", False),
        ("file_changed:*.md", f"file_changed:{HOME}/notes.md", True),
        ("file_changed:*.md", f"file_changed:{HOME}/in/notes.md", False),
        ("file_changed:**/*.md", f"file_changed:{HOME}/in/deep/notes.md", True),
        ("file_changed:/var/log/*.log", "file_changed:/var/log/x.log", True),
        ("file_changed:../inbox/*", "file_changed:/home/me/pipes/inbox/x", True),
        # What the pipe itself writes is no news to it.
        ("file_changed:**", f"file_changed:{HOME}/output/7/x.md", False),
        ("file_changed:**", f"file_changed:{HOME}/pipe.md", False),
        ("file_changed:**", f"file_changed:{HOME}/outputs/x", True),
        ("file_changed:in/box/", f"file_changed:{HOME}/in/box/deep/x.md", True),
    ],
)
def test_patterns_fit(pattern: str, happened: str, fits: bool) -> None:
    assert matches(parse_pattern(pattern), event(happened), HOME) is fits


@pytest.mark.parametrize(
    ("pattern", "root", "deep"),
    [
        ("*.md", HOME, False),
        ("in/box/*.md", f"{HOME}/in/box", False),
        ("in/**", f"{HOME}/in", True),
        ("/var/lo?/x", "/var", True),
        ("../../x", "/home/me", False),
        ("/", "/", True),
    ],
)
def test_what_to_watch(pattern: str, root: str, deep: bool) -> None:
    assert watch_root(EventPattern("file_changed", pattern), HOME) == (root, deep)
