"""How pipes run, as their owner sees it: what a failure means, what may be written, who waits
for whom.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import until
from e2e.pipe_house import PipeHouse, pipes_house


@pytest.fixture(scope="module")
def home() -> Iterator[PipeHouse]:
    with pipes_house(PX_PIPES__RETRIES="3", PX_PIPES__RETRY_INITIAL_SECONDS="0.1") as made:
        yield made
        made.nothing_left()


# -- what a failure means --------------------------------------------------------------------------


def test_a_command_that_fails_runs_once_whatever_it_printed(home: PipeHouse) -> None:
    """By hand and by its schedule; the error is what it complained of."""
    words = {
        "import": "503 rows imported",
        "codes": "expected code 500, got 501",
        "backup": "backup of table rate_limits failed",
        "billing": "401 customers billed",
        "printer": "Connection refused by printer 3",
    }
    for name, said in words.items():
        home.shell(name, f"echo '{said}'; echo \"KeyError: 'price'\" >&2; exit 1")
        done = home.execute(name)
        assert (done.ended, done.error_message) == (
            ("failed", "crash"),
            "exit code 1: KeyError: 'price'",
        )
    home.shell("timed", "echo 'Connection refused by printer 3' >&2; exit 1", "schedule: every 1h")
    (by_itself,) = home.of("timed", 1)
    assert (by_itself.trigger, by_itself.ended) == ("scheduled", ("failed", "crash"))
    told = home.pxctl("pipe", "run", "import")
    assert (told.returncode, "KeyError" in told.stderr, "tried again" in told.stderr) == (
        1,
        True,
        False,
    )
    assert "presets.toml" not in home.pxctl("pipe", "run", "billing").stderr
    for name in (*words, "timed"):
        until(lambda name=name: not home.pipe(name)["queued"], "no further try")
        assert {each.retry_of for each in home.rows(f"pipe={name}")} == {None}


# -- what may be written ---------------------------------------------------------------------------


def test_a_command_written_for_a_shell_is_refused_and_its_cure_works(home: PipeHouse) -> None:
    """By `validate` and by `run`, before anything of it is run; twice, as nothing of it is
    remembered.
    """
    home.write("two", "command: echo step one && touch second")
    until(lambda: "two" in home.names(), "it is known")
    for _ in range(2):
        for verb in ("validate", "run"):
            told = home.pxctl("pipe", verb, "two")
            assert told.returncode != 0
            assert "[sh, -c, 'echo step one && touch second']" in told.stdout + told.stderr
    assert home.rows("pipe=two") == []
    folder = home.write("two", "command: [sh, -c, 'echo step one && touch second']")
    assert home.pxctl("pipe", "validate", "two").returncode == 0
    assert home.pxctl("pipe", "run", "two").stdout == "step one\n"
    assert (folder / "second").exists()
    for number, legitimate in enumerate(
        ("echo 'a | b'", 'echo "a && b"', r"find . -name x -exec echo {} \;")
    ):
        home.write(f"quoted-{number}", f"command: {legitimate}")
        assert home.execute(f"quoted-{number}").status == "completed"


# -- files that change -----------------------------------------------------------------------------

IN_PIECES = "for i in 1 2 3 4 5; do head -c 1000 /dev/zero >> film; sleep 0.2; done"
SLOWLY = "exec > copy; head -c 1000 /dev/zero; sleep 2.5; head -c 1000 /dev/zero"


def test_a_file_starts_a_pipe_once_when_it_is_whole(home: PipeHouse) -> None:
    """One that is opened for each piece, one that is open for long, and one that is renamed into
    its place.
    """
    inbox = home.home / "inbox"
    inbox.mkdir()
    size = f"cd {inbox} && stat -c '%n %s' film copy ready 2>/dev/null; true"
    for name in ("film", "copy", "ready"):
        events = f"trigger: {{events: ['file_changed:{inbox}/{name}']}}"
        home.shell(f"on-{name}", size, f"schedule: manual\n{events}")

    def place(name: str) -> None:
        fresh = Path(f"{inbox}.fresh")
        fresh.write_text("x")
        fresh.replace(inbox / name)

    until(lambda: place("ready") or home.rows("pipe=on-ready"), "the folder is watched")
    writers = [subprocess.Popen(["sh", "-c", script], cwd=inbox) for script in (IN_PIECES, SLOWLY)]
    assert [writer.wait() for writer in writers] == [0, 0]
    (film,) = home.of("on-film", 1)
    (copy,) = home.of("on-copy", 1)
    assert ("film 5000" in film.stdout, "copy 2000" in copy.stdout) == (True, True)
    before = len(home.rows("pipe=on-ready"))
    place("ready")
    home.of("on-ready", before + 1)
    assert [len(home.rows(f"pipe=on-{name}")) for name in ("film", "copy")] == [1, 1]


# -- who waits for whom ----------------------------------------------------------------------------

UNTIL_OPEN = "while [ ! -e ../open ]; do sleep 0.02; done"


def test_two_scheduled_runs_go_beside_each_other_and_a_third_knows_for_whom_it_waits(
    home: PipeHouse,
) -> None:
    for name in ("long-a", "long-b"):
        home.shell(name, UNTIL_OPEN, "schedule: every 1h")
        until(lambda name=name: home.rows(f"pipe={name}&status=running"), "it runs")
    home.shell("third", "echo", "schedule: every 1h")
    until(lambda: home.rows("pipe=third&status=queued"), "the third waits")
    holders = [
        f"pipe:{name} (execution {home.pipe(name)['running']})" for name in ("long-a", "long-b")
    ]
    shown = {
        "next": home.pxctl("pipe", "next", "third").stdout,
        "list": home.pxctl("pipe", "list", env={"COLUMNS": "400"}).stdout,
        "queue": home.pxctl("pipe", "queue", env={"COLUMNS": "400"}).stdout,
        "why": home.pxctl("why", "pipe:third").stdout,
    }
    for where, text in shown.items():
        assert all(holder in text for holder in holders), (where, text)
    (waiting,) = [one for group in home.json("pipe", "queue")["groups"] for one in group["waiting"]]
    assert "pipes.slots_scheduled" in waiting["waits_for"]
    (home.home / "pipes" / "open").touch()
    for name in ("long-a", "long-b", "third"):
        home.of(name, 1)
    assert home.pipe("third")["waits_for"] is None
    assert "waits for a slot" not in home.pxctl("pipe", "next", "third").stdout


def test_what_failed_can_be_retried_at_once_and_waits_in_line(home: PipeHouse) -> None:
    """All failed ones of a pipe, each twice."""
    folder = home.shell("slow", "while [ ! -e go ]; do sleep 0.02; done; exit 1")
    (folder / "go").touch()
    failed = [home.execute("slow").id for _ in range(2)]
    (folder / "go").unlink()
    refused = None
    for number in failed:
        refused = home.pxctl("pipe", "retry", str(number), "--no-wait")
    assert refused is not None
    assert (refused.returncode, "--queue" in refused.stderr) == (8, True)
    for number in failed * 2:
        queued = home.pxctl("pipe", "retry", str(number), "--no-wait", "--queue", "-q")
        assert (queued.returncode, queued.stdout.strip().isdecimal()) == (0, True), queued.stderr
    (folder / "go").touch()
    again = home.of("slow", 7)
    assert [each.retry_of for each in again] == [None, None, failed[0], *failed, *failed]


# -- what is struck out ----------------------------------------------------------------------------


def test_values_of_keys_are_struck_out_by_name_and_those_of_other_variables_stay(
    home: PipeHouse,
) -> None:
    told = (
        "echo $MAX_TOKENS rows copied to $KEYSPACE with $OPENAI_API_KEY of $apiKey; echo card "
        "1234-5678 >&2; exit 3"
    )
    folder = home.shell("copies", told, "redact: '[0-9]{4}-[0-9]{4}'")
    secrets = {
        "OPENAI_API_KEY": "sk-of-the-copier",
        "apiKey": "another-secret",
        "PGPASSWORD": "of-the-database",
    }
    ordinary = {"MAX_TOKENS": "100000", "KEYSPACE": "production", "MONKEYPATCH": "copied"}
    (folder / ".env").write_text(
        "".join(f"{name}={value}\n" for name, value in {**secrets, **ordinary}.items())
    )
    done = home.execute("copies")
    assert (
        done.stdout
        == "100000 rows copied to production with [redacted: OPENAI_API_KEY] of [redacted: "
        "apiKey]\n"
    )
    assert (done.stderr, done.error_message) == (
        "card [redacted]\n",
        "exit code 3: card [redacted]",
    )
    assert home.pxctl("pipe", "output", str(done.id)).stdout == done.stdout


def test_where_the_output_folder_is_a_file_both_validate_and_run_say_so(home: PipeHouse) -> None:
    folder = home.shell("blocked", "echo fine")
    (folder / "output").write_text("mine")
    until(lambda: "blocked" in home.names(), "it is known")
    for verb in ("validate", "run"):
        told = home.pxctl("pipe", verb, "blocked")
        assert (
            told.returncode,
            f"mv {folder}/output {folder}/output.old" in told.stdout + told.stderr,
        ) == (1, True)
    (folder / "output").unlink()
    assert home.pxctl("pipe", "validate", "blocked").returncode == 0
    assert home.execute("blocked").status == "completed"
