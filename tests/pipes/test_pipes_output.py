"""What is made of what an agent wrote: the same bytes whatever the pieces, and whoever begins
again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipe_rig import PipeRig, eventually
from supervisord_py.ledger.pipes import Status
from supervisord_py.pipes import output
from supervisord_py.pipes.output import MARK, Copier, OutputStream, Redactor, redact

OUT, ERR, EVENTS = OutputStream.STDOUT, OutputStream.STDERR, OutputStream.EVENTS
KEY = "sk-very-secret"
PIECES = (
    b"plain ",
    b"caf\xc3\xa9 ",
    b"\xff",
    KEY.encode(),
    KEY.encode()[:5],
    b"card 1234-5678",
    b"\n",
    b"x" * 70_000,
)


def copier(folder: Path, *, copied: bool = True, parser: str = "text") -> Copier:
    return Copier(
        folder, parser, copied=copied, secrets={KEY: "SOME_KEY"}, patterns=(r"\d{4}-\d{4}",)
    )


def opened(folder: Path) -> None:
    for fd in output.open_for_child(folder, copied=True):
        os.close(fd)


def files(folder: Path) -> dict[str, bytes]:
    return {
        it.name: it.read_bytes()
        for it in sorted(folder.iterdir())
        if not it.name.startswith("raw.")
    }


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.sampled_from(PIECES)), max_size=12),
    st.lists(st.integers(0, 11), max_size=4),
)
@example([(OUT, KEY.encode()[:5]), (OUT, KEY.encode()[5:]), (OUT, b"!")], [1])
def test_what_is_kept_depends_on_the_bytes_alone(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[OutputStream, bytes]],
    deaths: list[int],
) -> None:
    """Not on when a look came, nor on how often another control plane began again at byte 0."""
    folder, other = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    for each in (folder, other):
        opened(each)
    running = copier(folder)
    for at, (stream, data) in enumerate(pieces):
        for place in (folder, other):
            with (place / output.RAW[stream]).open("ab") as file:
                file.write(data)
        running = copier(folder) if at in deaths else running
        running.step()
    running.finish()
    at_once = copier(other)
    at_once.finish()
    assert files(folder) == files(other)
    kept, raw = (
        files(folder),
        {it: b"".join(data for stream, data in pieces if stream is it) for it in (OUT, ERR)},
    )
    assert KEY.encode() not in kept["stdout"] + kept["stderr"]
    assert b"1234-5678" not in kept["stdout"] + kept["stderr"]
    plain = (
        raw[OUT].replace(KEY.encode(), b"[redacted: SOME_KEY]").replace(b"1234-5678", b"[redacted]")
    )
    assert kept["stdout"] == plain


def test_records_and_text_of_a_format_go_into_files_of_their_own(tmp_path: Path) -> None:
    opened(tmp_path)
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": f"it is {KEY}"}],
        "stopReason": "stop",
    }
    lines = [
        {"type": "turn_start"},
        {"type": "message_end", "message": message},
        {"type": "agent_settled"},
    ]
    (tmp_path / "raw.stdout").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    made = copier(tmp_path, parser="pi-jsonl")
    made.finish()
    assert made.summary.settled
    assert (output.read(tmp_path, "stdout", 0, 100), output.size(tmp_path, ERR)) == (
        b"it is [redacted: SOME_KEY]\n",
        0,
    )
    assert KEY not in (tmp_path / "events.jsonl").read_text()
    assert made.redact(f"failed with {KEY}") == "failed with [redacted: SOME_KEY]"
    assert {it.stat().st_mode & 0o777 for it in tmp_path.iterdir()} == {0o600}
    output.remove_raw(tmp_path)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["events.jsonl", "stderr", "stdout"]


def test_a_full_disk_loses_nothing_of_what_it_takes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    (tmp_path / "raw.stdout").write_bytes(b"first second")
    made, write = copier(tmp_path), os.pwrite

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if offset:
            raise OSError(28, "No space left on device")
        return write(fd, data[:5], offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="space"):
                made.finish()
    made.finish()
    assert output.read(tmp_path, "stdout", 0, 100) == b"first second"


@pytest.mark.parametrize(
    ("data", "limit", "text"),
    [
        (b"it fits", 7, "it fits"),
        (b"a" * 100, 8, "aa\n[... 92 bytes left out ...]\naaaaaa"),
        ("aé".encode() * 50, 20, "aéa\n[... 130 bytes left out ...]\naéaéaéaéaé"),
        (
            b"\xff" * 20,
            8,
            "\ufffd\ufffd\n[... 12 bytes left out ...]\n\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd",
        ),
    ],
)
def test_the_text_of_a_row_is_all_or_head_and_tail_with_whole_characters(
    tmp_path: Path, data: bytes, limit: int, text: str
) -> None:
    (tmp_path / "stdout").write_bytes(data)
    assert output.texts(tmp_path, limit)["stdout"] == text


async def test_whoever_reads_an_output_whose_files_are_gone_is_told(own_rig: PipeRig) -> None:
    own_rig.shell("long", "head -c 400000 /dev/zero | tr '\\0' x; echo err >&2")
    done = await own_rig.run("long")
    assert (done.status, done.stdout_bytes, done.lost_bytes > 0) == (
        Status.COMPLETED,
        400_000,
        False,
    )
    await eventually(lambda: not own_rig.placement.children(), "the release")
    shutil.rmtree(own_rig.room.folder(done.id))
    page = await own_rig.room.output(done.id, OUT, 0, 1_000_000)
    assert (page.data, page.complete, page.truncated) == (b"", False, True)
    assert (await own_rig.room.execution(done.id, blobs=True)).stdout == done.stdout


# -- redaction -------------------------------------------------------------------------------------


def test_what_is_held_and_what_is_a_secret() -> None:
    redactor = Redactor({"secret": "", "secret-and-more": ""}, [r"\d{4}-\d{4}$"])
    assert redactor.feed(b"secret-and-more secret. 1234-5678") == b"", (
        "lines are looked at when they are whole"
    )
    assert (redactor.feed(b"\nrest"), redactor.end()) == (
        MARK + b" " + MARK + b". " + MARK + b"\n",
        b"rest",
    )
    assert Redactor({}).feed(b"any") == b"any", "who knows no secret holds nothing back"
    assert redact(r'{"k": "pa\"ss\u00e9word"}', {'pa"sséword': "A"}) == '{"k": "[redacted: A]"}', (
        "as JSON writes it"
    )
    assert redact("a short abc", {"": "A", "short": "B", "  abc  ": "C"}) == "a short abc", (
        "short values are left alone"
    )
    assert (
        redact("one: first-line\nsecond-line", {"first-line\nsecond-line": "A"})
        == "one: [redacted: A]\n[redacted: A]"
    )
    with pytest.raises(re.error):
        Redactor({}, ["[a"])


def test_a_line_without_end_is_let_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LINE_BYTES", 10)
    redactor = Redactor({}, ["x[0-9]+x"])
    assert redactor.feed(b"x7x" + b"." * 10) == MARK + b"." * 7
    assert redactor.end() == b"..."
